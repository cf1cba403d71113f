"""The plots of pages and the charts of a run in progress have the same colours."""

import re
from pathlib import Path

import harness.browse
from harness.browse import texts
from harness.results.pages import page

SCRIPT = Path(page.__file__).with_name("page.js").read_text()
ASSETS = Path(harness.browse.__file__).with_name("assets")


def test_pages_and_charts_give_a_name_the_same_place() -> None:
    for script in ("page.js", "live.js"):
        assert (texts.asset(script) or b"").count(b"const PLACES = {") == 1


def test_pages_and_charts_have_the_same_palette() -> None:
    of_pages = [
        re.findall("#[0-9a-f]{6}", text) for text in re.findall(r"lines: \[(.*?)\]", SCRIPT)
    ]
    css = (ASSETS / "browse.css").read_text()
    of_charts = [
        re.findall("#[0-9a-f]{6}", text) for text in re.findall(r":root \{ (--s0.*?)\}", css)
    ]
    assert len(of_pages) == len(of_charts) == 2
    for lines, charts in zip(of_pages, of_charts, strict=True):
        assert charts == lines
        assert len(set(lines)) == 8
