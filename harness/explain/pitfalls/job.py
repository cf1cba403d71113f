"""Runs the verb `pitfalls`: measures each subject, prints its table, writes the JSON file and the page."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

from harness import __version__
from harness.core.console import frameworks_output, keep_output, show
from harness.core.files import write_json
from harness.errors import ConfigError
from harness.explain.pitfalls import page
from harness.explain.pitfalls.measure import measure
from harness.explain.subjects import subjects
from harness.results.pages.tables import aligned
from harness.run.study import write_page

JSON, LOG = "pitfalls.json", "pitfalls.log"


def pitfalls(values: Mapping[str, Any], *, samples: int, out: Path | None) -> int:
    """Prints the tables and writes the files to `out`. After Ctrl-C, the files contain the subjects measured so far.

    Returns the exit status. values: parsed options.
    """
    check_out(out)
    reports: list[Mapping[str, Any]] = []
    with frameworks_output() as log, ExitStack() as stack:
        try:
            for subject in subjects(values, stack):
                reports.append(measure(subject, samples))
                show("\n".join(["", *table(reports[-1])] if reports[1:] else table(reports[-1])))
        finally:
            if out is not None and reports:
                write(reports, out, log)
    return 0


def table(report: Mapping[str, Any]) -> Iterator[str]:
    """Yields the text for one entry of `reports` in pitfalls.json."""
    yield title(report)
    yield from (f"baseline   {line}" for line in _steps(report))
    yield from (f"note       {note}" for note in report["notes"])
    changes = page.changes_table(report)
    yield from aligned(changes.columns, changes.rows)
    names: dict[tuple[str, str], list[str]] = {}
    for one in report["not_possible"]:
        names.setdefault((one["kind"], one["reason"]), []).append(one["name"])
    if names:
        yield "not possible"
    for (kind, reason), same in names.items():
        yield f"{kind:<11}{' | '.join(same)}: {reason}"


def _steps(report: Mapping[str, Any]) -> Iterator[str]:
    for name, steps in report["steps"].items():
        words = [
            f"{step}({', '.join(f'{k}={v}' for k, v in options.items() if v is not None)})"
            for one in steps
            for step, options in one.items()
        ]
        if words:
            yield f"{name}: {' '.join(words)}"


def title(report: Mapping[str, Any]) -> str:
    on = f" on {report['backend']}" if report["backend"] else ", inputs only"
    return f"{report['model']}{on}, {report['dataset']}: {page.summary(report)}"


def check_out(out: Path | None) -> None:
    """Raises ConfigError if `out` is not writable or already contains a report. Call this before the first measurement."""
    if out is None:
        return
    home = next(path for path in (out, *out.parents) if path.exists())
    if not home.is_dir() or not os.access(home, os.W_OK):
        raise ConfigError(f"--out {out}: {home} is not a writable folder: pass a different --out")
    for name in (JSON, LOG, page.PAGE):
        if (out / name).exists():
            raise ConfigError(
                f"{out / name} already exists and will not be overwritten: pass a different --out"
            )


def write(reports: Sequence[Mapping[str, Any]], out: Path, log: BinaryIO) -> None:
    """Writes the JSON file, the page and the log. log: output of the frameworks on stderr."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        keep_output(log, out / LOG)
        write_json(out / JSON, {"harness": __version__, "reports": reports})
        write_page(page.write, reports, out)
    except OSError as e:
        raise ConfigError(f"--out {out} cannot be written: {e.strerror}") from e
