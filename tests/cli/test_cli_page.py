"""docs/cli.md contains the current help of every verb."""

import os
import re
import subprocess
import sys
from pathlib import Path

from harness.cli.verbs import VERBS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/cli.md").read_text(encoding="utf-8")


def test_the_page_is_current_whatever_the_width_of_the_terminal() -> None:
    command = [sys.executable, "-P", str(ROOT / "scripts/docs.py"), "--check"]
    narrow = {**os.environ, "COLUMNS": "60"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", env=narrow)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_verb_has_a_section_and_a_row_that_links_to_it() -> None:
    assert re.findall(r"^## ([a-z -]+)$", PAGE, re.MULTILINE) == [*VERBS]
    rows = re.findall(r"^\| \[`([a-z -]+)`\]\(#([a-z-]+)\) \|", PAGE, re.MULTILINE)
    assert rows == [(name, name.replace(" ", "-")) for name in VERBS]


def test_an_option_of_a_run_is_explained_once() -> None:
    """Searches and `submit` explain only the groups of options whose texts differ from the texts of `run`."""
    # --max-batch is explained for a run, for `serve` and for `overhead`.
    assert PAGE.count("\n  --max-batch N ") == 3
    assert PAGE.count("\nand these options of [run](#run): ") == 7
    assert PAGE.count("\nand these options of [run](#run): instances and batches; backend; ") == 7
