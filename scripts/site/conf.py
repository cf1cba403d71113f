"""Sphinx settings for the documentation site, which build.sh in this folder builds.

The pages look as they do on a code host. docs/README.md contains the only list of pages, and its tables define the
navigation. The search function and the styles work without a network.
"""

import re
from pathlib import Path
from typing import Any

INDEX = "docs/README"

project = "mlperf-harness"
project_copyright = ""
extensions = ["myst_parser"]
root_doc = "README"
myst_enable_extensions = ["attrs_inline", "colon_fence"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = project
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {"top_of_page_buttons": []}


def _navigation(root: Path) -> str:
    """Returns a list of pages for each group in the index, where a group begins with a bold word."""
    lists = []
    index = (root / f"{INDEX}.md").read_text()
    for group in re.split(r"^(?=\*\*)", index, flags=re.MULTILINE)[1:]:
        (title,) = re.findall(r"\A\*\*(.+?)\*\*", group)
        pages = [f"docs/{page}" for page in re.findall(r"\]\(([\w/-]+)\.md\)", group)]
        lists.append(_pages(title, pages))
    return "\n".join(lists)


def _pages(title: str, pages: list[str]) -> str:
    return "\n".join(["", ":::{toctree}", ":hidden:", f":caption: {title}", "", *pages, ":::", ""])


def _read(app: Any, page: str, source: list[str]) -> None:
    root = Path(app.srcdir)
    if page == root_doc:
        others = {str(path.relative_to(root).with_suffix("")) for path in root.rglob("*.md")}
        others = {p for p in others if not p.startswith("docs/") and p != root_doc}
        source[0] += _navigation(root) + _pages("Project", [INDEX, *sorted(others)])
    elif page == "docs/decisions/README":
        names = {path.stem for path in (root / page).parent.glob("*.md")} - {"README"}
        source[0] += _pages("Decisions", sorted(names))
    # A code host reads the anchor as HTML; MyST finds only anchors in its own syntax.
    source[0] = _ANCHOR.sub(r"[]{#\1}", source[0])


_ANCHOR = re.compile(r'<a id="([\w-]+)"></a>')


def setup(app: Any) -> None:
    """Registers `_read`; called once by Sphinx."""
    app.connect("source-read", _read)
