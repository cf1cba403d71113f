"""Pages in a real headless browser."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

CHROMIUM = shutil.which("chromium")
_OPTIONS = (
    "--headless --no-sandbox --disable-gpu --enable-logging=stderr --hide-scrollbars "
    "--virtual-time-budget=20000"
)


class Shown(NamedTuple):
    """console: every console line of the page's scripts. drawn: number of plots that contain marks."""

    console: list[str]
    document: str
    drawn: int


def needs_chromium() -> pytest.MarkDecorator:
    return pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")


def _browser(page: Path, *more: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(CHROMIUM), *_OPTIONS.split(), *more, page.absolute().as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )


def shown(page: Path) -> Shown:
    done = _browser(page, "--dump-dom")
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    plots = done.stdout.split('class="plot js-plotly-plot"')[1:]
    layers = re.compile(r'class="(?:scatterlayer|barlayer)[^"]*"><g class="trace')
    return Shown(console, done.stdout, sum(bool(layers.search(plot)) for plot in plots))


def photograph(page: Path, picture: Path, *, width: int, height: int, dark: bool = False) -> Path:
    """Writes a PNG of the page from its top, and returns the path."""
    theme = ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if dark else []
    _browser(page, f"--screenshot={picture}", f"--window-size={width},{height}", *theme)
    return picture


def width_needed(page: Path, width: int) -> int:
    """Returns the width in pixels that the page needs in a frame of this width; the result is larger than the frame if
    the page scrolls sideways.

    A frame is used because a browser window cannot be as narrow as a phone.
    """
    frame = page.with_name("frame.html")
    frame.write_text(
        f"""<!doctype html><iframe src="{page.name}" width="{width}" height="900"></iframe><script>
        onload = () => setTimeout(() => document.title = document.querySelector("iframe").contentDocument
            .documentElement.scrollWidth, 3000);</script>"""
    )
    done = _browser(frame, "--dump-dom", "--allow-file-access-from-files")
    (found,) = re.findall(r"<title>(\d+)</title>", done.stdout)
    return int(found)
