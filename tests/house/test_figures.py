"""The pictures in the documentation exist, are self-contained, and equal the script's output."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from harness.results.pages import page
from harness.results.pages.page import Article, Figure
from tests.stand_ins.chromium import needs_chromium

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "figure.py"
SVG = "{http://www.w3.org/2000/svg}"
MOST_BYTES = 60_000
ILLUSTRATED = ("profile", "bricks", "cold", "advise", "grid", "peak", "tune")


def pictures() -> dict[Path, list[Path]]:
    """Maps each document to the pictures that it shows."""
    return {
        document: [
            (document.parent / name).resolve()
            for name in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
        ]
        for document in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
        if (text := document.read_text())
    }


SHOWN = sorted({picture for shown in pictures().values() for picture in shown})


def test_every_verb_that_makes_a_page_shows_one_of_its_plots() -> None:
    shown = {document.stem for document, found in pictures().items() if found}
    assert set(ILLUSTRATED) <= shown
    assert sorted(ROOT.glob("docs/figures/*.[sp][vn]g")) == SHOWN


def test_the_readme_of_figures_lists_every_picture() -> None:
    told = (ROOT / "docs" / "figures" / "README.md").read_text()
    named = re.findall(r"^\| (\S+\.(?:svg|png)) \|", told, re.MULTILINE)
    assert named == [picture.name for picture in SHOWN]


def test_screenshots_are_small() -> None:
    shots = [picture for picture in SHOWN if picture.suffix == ".png"]
    assert shots
    for shot in shots:
        content = shot.read_bytes()
        assert content.startswith(b"\x89PNG\r\n")
        assert len(content) <= MOST_BYTES


@pytest.mark.parametrize(
    "picture", [one for one in SHOWN if one.suffix == ".svg"], ids=lambda p: p.name
)
def test_a_picture_stands_alone(picture: Path) -> None:
    content = picture.read_bytes()
    root = ET.fromstring(content)
    assert root.tag == f"{SVG}svg"
    assert len(content) <= MOST_BYTES
    assert all(float(root.attrib[side]) >= 200 for side in ("width", "height"))
    ground = next(root.iter(f"{SVG}rect"))
    assert "fill: rgb(255, 255, 255)" in ground.attrib["style"]
    assert not list(root.iter(f"{SVG}script"))
    for element in root.iter():
        for name, value in element.attrib.items():
            assert not name.startswith("on"), name
            assert not re.search(r"/(?:tmp|root|home|work|Users)/|file:", value), value
            if name.endswith("href"):
                assert value.startswith(("#", "data:image/png;base64,")), value
    words = "".join(root.itertext())
    assert len(words) > 20


def figure(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def a_page(folder: Path) -> Path:
    pytest.importorskip("plotly")
    plots = [
        Figure("first", "a", [{"x": [1, 2], "y": [3, 4]}], {}),
        Figure("second & last", "b", [{"type": "bar", "x": ["<oak>"], "y": [1]}], {}),
    ]
    return page.write([Article([], plots, [])], "t", folder / "p.html", script_in=folder)


def test_the_script_finds_the_plots_of_a_page(tmp_path: Path) -> None:
    """Bug: the script found no plot, because the headings of pages had got ids."""
    done = figure(a_page(tmp_path), "third", tmp_path / "f.svg")
    assert done.stderr.endswith("no plot 'third': first, second & last\n")


@pytest.mark.slow
@needs_chromium()
def test_the_script_draws_the_plot_of_that_title(tmp_path: Path) -> None:
    made, out = a_page(tmp_path), tmp_path / "figures" / "f.svg"
    done = figure(made, "second & last", out, "--width", 640)
    assert done.returncode == 0, done.stderr
    root = ET.parse(out).getroot()
    assert (root.attrib["width"], root.attrib["height"]) == ("640", "352")
    assert "<oak>" in "".join(root.itertext())
    assert sorted(p.name for p in tmp_path.glob("*.html")) == ["p.html"]
