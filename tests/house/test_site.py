"""The documentation site contains every page, has no dead links, and can be searched."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_site_contains_every_page(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = [str(ROOT / "scripts/site/build.sh"), str(tmp_path / "site")]
    subprocess.run(command, check=True, timeout=300, env={**os.environ, "PATH": path})
    index = (tmp_path / "site/index.html").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert (tmp_path / "site/docs" / f"{page.stem}.html").is_file()
        if page.stem != "README":
            assert f'href="docs/{page.stem}.html"' in index, "the index docs/README.md lacks it"
    assert "docs/intervals.md" in (tmp_path / "site/searchindex.js").read_text()
