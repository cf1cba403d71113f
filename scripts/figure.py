"""Writes one of a page's plots as an SVG file for docs/, with a headless Chromium.

    python scripts/figure.py results/PROFILE/profile.html 'Roofline (A9, A14)' docs/figures/profile-roofline.svg

The page's copy of plotly draws the plot, on a white background and without mouse controls.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET  # safe here, because this script parses only pages that the harness wrote
from html import unescape
from pathlib import Path
from urllib.parse import unquote

REM_PX = 16
MOST_BYTES = 60_000
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
    "--virtual-time-budget=20000", "--dump-dom",
)  # fmt: skip
_DRAWS = """
<script>
(async () => {
  const place = document.getElementById("plot-%d");
  const layout = { ...place.layout, paper_bgcolor: "#ffffff", plot_bgcolor: "#ffffff" };
  const size = { format: "svg", width: %d, height: %d };
  const image = await Plotly.toImage({ data: place.data, layout }, size);
  document.body.dataset.figure = image;
})();
</script>
"""


def draw(page: Path, title: str, width_px: int) -> str:
    """Returns the page's first plot with this title, as SVG. If the page contains no such plot, prints the reason and
    exits.
    """
    text = page.read_text(encoding="utf-8")
    plots = re.findall(
        r'<h2[^>]*>([^<]*)</h2>\n<p[^>]*>[^<]*</p>\n<div class="plot" id="plot-(\d+)" '
        r'[^>]* data-rem="([0-9.]+)">',
        text,
    )
    matching = [(int(i), float(rem)) for name, i, rem in plots if unescape(name) == title]
    if not matching:
        sys.exit(f"{page} has no plot {title!r}: {', '.join(unescape(p[0]) for p in plots)}")
    browser = next((b for b in map(shutil.which, _BROWSERS) if b), None)
    if browser is None:
        sys.exit(f"no browser on the PATH: install one of {', '.join(_BROWSERS)}")
    number, height_rem = matching[0]
    script = _DRAWS % (number, width_px, round(height_rem * REM_PX))
    with tempfile.NamedTemporaryFile("w", dir=page.parent, suffix=".html") as copy:
        copy.write(text.replace("</body>", f"{script}</body>"))
        copy.flush()
        address = Path(copy.name).absolute().as_uri()
        done = subprocess.run(
            [browser, *_OPTIONS, address], capture_output=True, text=True, timeout=120, check=True
        )
    image = re.search(r'data-figure="data:image/svg\+xml,([^"]*)"', done.stdout)
    if image is None:
        sys.exit(f"{page}: the browser drew nothing")
    return unquote(image[1])


def trimmed(svg: str) -> str:
    """Returns the SVG without empty groups, and with numbers rounded to a tenth of a pixel. Raises a ParseError if the
    text is not XML.
    """
    ET.register_namespace("", "http://www.w3.org/2000/svg")
    ET.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    root = ET.fromstring(svg)  # noqa: S314
    while sum(_without_empty_groups(parent) for parent in root.iter()):
        pass
    for element in root.iter():
        for name in ("d", "transform", "x", "y", "width", "height"):
            if name in element.attrib:
                element.set(name, re.sub(r"\d+\.\d{2,}", _tenth, element.attrib[name]))
    return ET.tostring(root, encoding="unicode") + "\n"


def _tenth(number: re.Match[str]) -> str:
    return f"{float(number[0]):.1f}".removesuffix(".0")


def _without_empty_groups(parent: ET.Element) -> bool:
    empty = [child for child in parent if child.tag.endswith("}g") and not len(child)]
    for child in empty:
        parent.remove(child)
    return bool(empty)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path, help="a page that the harness wrote")
    parser.add_argument("title", help="title of the plot on the page")
    parser.add_argument("out", type=Path, help="the SVG file, which is overwritten")
    parser.add_argument("--width", type=int, default=800, help="in px (default 800)")
    options = parser.parse_args()
    svg = trimmed(draw(options.page, options.title, options.width))
    if len(svg.encode()) > MOST_BYTES:
        sys.exit(
            f"{options.out} would have {len(svg.encode()):,} bytes, {MOST_BYTES:,} are allowed"
        )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(svg, encoding="utf-8")
    sys.stdout.write(f"{options.out}: {len(svg.encode()):,} bytes\n")


if __name__ == "__main__":
    main()
