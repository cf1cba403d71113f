"""The files in `examples/` equal the blocks in the docs, and the files for forges fit their schemas."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.servers.real_servers import environment

ROOT = Path(__file__).parents[2]
PAGES = ("plugins.md", "ci.md")
EXAMPLES = sorted(p for p in (ROOT / "examples").iterdir() if p.suffix in (".py", ".yml"))
BLOCK = re.compile(r"```(?:python|yaml)\n(.*?)```", re.DOTALL)

SCHEMAS = {
    ".github/workflows/tests.yml": "vendor.github-workflows",
    "examples/speed.yml": "vendor.github-workflows",
    ".github/ISSUE_TEMPLATE/fault.yml": "vendor.github-issue-forms",
    ".github/ISSUE_TEMPLATE/question.yml": "vendor.github-issue-forms",
    "CITATION.cff": "vendor.citation-file-format",
}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_a_block_of_a_page(path: Path) -> None:
    """test_readme.py and test_guides.py run the blocks."""
    assert any(
        path.read_text() in BLOCK.findall((ROOT / "docs" / page).read_text()) for page in PAGES
    )


def test_every_plugin_of_the_page_is_an_example() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/plugins.md").read_text(), re.DOTALL)
    assert {*blocks} <= {p.read_text() for p in EXAMPLES}


def test_the_workflow_tests_every_python_of_the_package() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())
    tested = workflow["jobs"]["tests"]["strategy"]["matrix"]["python"]
    named = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    assert tested == named


def test_the_hooks_run_programs_that_the_suite_runs() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    suite = (ROOT / "test.sh").read_text()
    (repository,) = config["repos"]
    # The hooks are local, because the versions come from constraints.txt.
    assert repository["repo"] == "local"
    for hook in repository["hooks"]:
        program = hook["entry"].removeprefix(".venv/bin/").split()[0]
        assert program in suite


@pytest.mark.slow
@pytest.mark.parametrize("path", SCHEMAS)
def test_a_forge_file_fits_its_schema(path: str, pytestconfig: pytest.Config) -> None:
    assert pytestconfig.cache is not None
    folder = environment(pytestconfig.cache.mkdir("servers"), "check-jsonschema")
    program = str(folder / "bin/check-jsonschema")
    words = [program, "--builtin-schema", SCHEMAS[path], str(ROOT / path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
