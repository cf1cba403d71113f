"""Renders templates. Escapes every text that comes from the folder, and hides private names."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from harness.core.files import PARTIAL
from harness.core.shown.escapes import visible
from harness.core.shown.private import hide
from harness.core.units import show_ns, show_percent, show_rate, show_wait
from harness.results import run_folder
from harness.results.pages.page import (
    DOUBTS_CHIP,
    counted_codes,
    short_digests,
    typeset,
    with_meanings,
)
from harness.results.pages.runs.rows import run_name
from harness.results.pages.tables import Table, shown_rows

TEMPLATES = Path(__file__).with_name("templates")

_SHORTER = (
    (re.compile(r" of ([\d.]+ \w+) allowed"), " ≤\u00a0\\1"),
    (re.compile(r", above the ([\d.]+ \w+) allowed"), " >\u00a0\\1"),
    (re.compile(r"not proven to be within ([\d.]+ \w+)"), "not proven ≤\u00a0\\1"),
    (re.compile(r" queries/s\b"), "/s"),
)
"""Patterns in a headline, and their shorter forms in the list of runs."""

VIEWS = {
    "/": "Runs",
    "/history": "History",
    "/pareto": "Pareto",
    "/studies": "Studies",
    "/machines": "Machines",
}
"""Maps a path to its name in the bar at the top of the page."""


def _shown(value: Any) -> Any:
    """Returns a value as a page shows it. Leaves the harness's own HTML unchanged."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return visible(hide(value))
    return "-" if value is None else value


def url(view: str, path: str, query: str = "") -> Markup:
    """Returns the URL that shows the folder at `path` in a view, for use in an attribute."""
    return escape(f"/{view}/{quote(path)}{query}")


def brief(answer: str | None) -> str | None:
    """Shortens a headline so that its bound and its rate fit in one line of the list."""
    for pattern, shorter in _SHORTER:
        answer = answer and pattern.sub(shorter, answer)
    return answer


def _plain(path: str) -> Markup:
    """Returns the path, including private names, for the value of a form field."""
    return escape(path)


def _html(text: str) -> Markup:
    """Marks HTML from results/pages as safe, because that code has already escaped all texts from outside."""
    return Markup(typeset(hide(text)))  # noqa: S704


_ENVIRONMENT = Environment(
    loader=FileSystemLoader(TEMPLATES),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=_shown,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)


def _own_name(path: str) -> str:
    """Returns what a folder's path states beyond its workload and start: nothing if the harness chose the name; for a
    run of a study, its path in the study's folder.
    """
    first, _, rest = path.partition("/")
    return rest if run_folder.TIMED.fullmatch(first) else path


_ENVIRONMENT.globals |= {"views": VIEWS, "url": url, "html": _html}
_ENVIRONMENT.globals |= {"counted_codes": counted_codes, "doubts_chip": DOUBTS_CHIP}
_ENVIRONMENT.filters |= {
    "plain": _plain,
    "brief": brief,
    "linkable": str.isprintable,
    "ns": lambda ns: None if ns is None else typeset(show_ns(ns)),
    "seconds": lambda s: None if s is None else typeset(show_ns(s * 1e9)),
    "rate": lambda rate: None if rate is None else show_rate(rate),
    "percent": show_percent,
    "wait": lambda s: typeset(show_wait(s)),
    "typeset": lambda text: None if text is None else typeset(visible(hide(text))),
    "year": lambda text: text[:4],
    "own_name": _own_name,
    "short_digests": lambda text: None if text is None else _html(short_digests(visible(text))),
    "second": lambda text: text[:19].replace("T", " "),
    "moment": lambda text: text[:16].replace("T", " "),
    "unpartial": lambda path: path.removesuffix(PARTIAL).replace(f"{PARTIAL}/", "/"),
}


_ENVIRONMENT.filters["chips"] = lambda codes: _html(with_meanings(visible(codes)))
_ENVIRONMENT.filters["short"] = run_name
_ENVIRONMENT.tests["inside"] = lambda path, folders: any(
    str(up) in folders for up in PurePosixPath(path).parents
)


def render(template: str, **values: Any) -> str:
    return _ENVIRONMENT.get_template(template).render(**values)


def cells(table: Table) -> Sequence[Sequence[str]]:
    """Returns a table's rows as texts with units."""
    return shown_rows(table.columns, table.rows)


def asset(name: str) -> bytes | None:
    """Returns a shipped file's content by the file's name in a URL; None for an unknown name."""
    paths = _ASSETS.get(name)
    return b"".join(path.read_bytes() for path in paths) if paths is not None else None


def _assets() -> Mapping[str, Sequence[Path]]:
    """Maps the name of a shipped file to the files that it consists of."""
    from harness.results.pages import page

    ours = Path(__file__).with_name("assets")
    shared = Path(page.__file__).parent
    palette = shared / "palette.js"
    return {
        **{path.name: [path] for path in ours.iterdir()},
        "page.css": [shared / "page.css"],
        "page.js": [palette, shared / "page.js"],
        "live.js": [palette, ours / "live.js"],
    }


_ASSETS = _assets()
