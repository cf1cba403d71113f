"""Reads the folders of verbs with many runs: a line for the list, and the table that the verb printed."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.browse import within
from harness.browse.index import SEARCHES, Entry
from harness.core.files import parse_json, reading
from harness.core.units import counted, show_rate
from harness.errors import ConfigError, HarnessError, one_line
from harness.search.grid.view import page as grid_page
from harness.search.overhead import page as overhead_page
from harness.search.overhead import table as overhead_table
from harness.search.peak import table as peak_table
from harness.search.sweep import page as sweep_page
from harness.search.sweep import table as sweep_table
from harness.search.tune import page as tune_page
from harness.search.tune import table as tune_table

PAGES: Mapping[str, str] = {
    sweep_page.PAGE: "plots of the sweep",
    grid_page.PAGE: "heat maps and tables of the grid",
    tune_page.PAGE: "plots of the forecast and the runs",
    overhead_page.PAGE: "plots of the parts and the pairs",
}

_FILES = {verb: file for file, verb in SEARCHES.items()}

_TABLES: Mapping[str, Callable[[Mapping[str, Any], Path], Iterator[str]]] = {
    "peak": peak_table.lines,
    "sweep": sweep_table.lines,
    "tune": tune_table.lines,
    "overhead": overhead_table.lines,
}
"""Verb -> the lines that it printed; `grid` has them on its page, the runs of `repeats` are compared."""


def read(root: Path, file: str) -> Mapping[str, Any]:
    """The JSON object in a file below the root. Raises OSError or ConfigError."""
    with reading(f"{file} is not a file of a run"):
        content = parse_json(within.read_file(root, file).decode())
    if not isinstance(content, dict):
        raise ConfigError(f"{file} is not a file of a run")
    return content


def _content(root: Path, entry: Entry) -> Mapping[str, Any]:
    return read(root, f"{entry.path}/{_FILES[entry.search or '']}")


def text(root: Path, entry: Entry) -> str:
    """The verb's table; empty where it has none, and a line that says why where it cannot be made."""
    lines = _TABLES.get(entry.search or "")
    if lines is None:
        return ""
    try:
        content = _content(root, entry)
        with reading(f"{entry.path}: its table cannot be made"):
            return "\n".join(lines(content, Path(entry.path)))
    except (OSError, HarnessError) as e:
        return one_line(e)


def summary(root: Path, entry: Entry) -> tuple[str, str]:
    """(workload, outcome) in a few words."""
    try:
        content = _content(root, entry)
        with reading(f"{entry.path} has another shape"):
            return _SUMMARIES[entry.search or ""](content)
    except (OSError, HarnessError) as e:
        return "-", one_line(e)


def _peak(content: Mapping[str, Any]) -> tuple[str, str]:
    found = content["peak"]
    outcome = f"{show_rate(found)} {content['unit']}" if found is not None else "no peak"
    return _words(content), outcome if content["finished"] else f"not finished: {outcome} so far"


def _sweep(content: Mapping[str, Any]) -> tuple[str, str]:
    highest = content["highest_valid"]
    outcome = (
        f"highest VALID {show_rate(highest)} queries/s" if highest is not None else "none VALID"
    )
    words = " ".join(word for word in sweep_table.words(content) if word)
    return words, f"{counted(len(content['points']), 'rate')}, {outcome}"


def _grid(content: Mapping[str, Any]) -> tuple[str, str]:
    axes = content["axes"]
    sizes = [f"{len(values)} {name}" for name, values in axes.items() if isinstance(values, list)]
    return str(content["config"]["scenario"]), f"axes: {', '.join(sizes)}"


def _tune(content: Mapping[str, Any]) -> tuple[str, str]:
    return _words(content), str(content["taken"] or "no plan was taken")


def _repeats(content: Mapping[str, Any]) -> tuple[str, str]:
    valid = sum(verdict == "VALID" for verdict in content["verdicts"])
    return _words(content), f"{counted(len(content['verdicts']), 'run')}, {valid} VALID"


def _overhead(content: Mapping[str, Any]) -> tuple[str, str]:
    return str(content["model"]), overhead_table.headline(content)


def _words(content: Mapping[str, Any]) -> str:
    names = ("scenario", "backend", "model", "slo")
    return " ".join(str(content[name]) for name in names if content.get(name))


_SUMMARIES: Mapping[str, Callable[[Mapping[str, Any]], tuple[str, str]]] = {
    "peak": _peak,
    "sweep": _sweep,
    "grid": _grid,
    "tune": _tune,
    "repeats": _repeats,
    "overhead": _overhead,
}
