"""Prints the pitfall report and writes its JSON file and page."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

from harness import __version__
from harness.core.console import frameworks_output, keep_output, say, show
from harness.core.files import write_json
from harness.core.units import counted
from harness.errors import ConfigError, PluginUnavailable
from harness.explain.pitfalls import page
from harness.explain.pitfalls.job import Report, Row, measure
from harness.explain.subjects import subjects
from harness.results.pages.tables import aligned

JSON, LOG = "pitfalls.json", "pitfalls.log"

FEW = 100
"""With fewer samples, agreement and accuracy move in steps of more than a percent."""


def report(values: Mapping[str, Any], *, samples: int, out: Path | None) -> None:
    """Prints the table on stdout and writes the files to `out`. values: parsed options."""
    check_out(out)
    reports: list[Report] = []
    with frameworks_output() as log, ExitStack() as stack:
        for subject in subjects(values, stack):
            reports.append(measure(subject, samples))
            show("\n".join(["", *table(reports[-1])] if reports[1:] else table(reports[-1])))
        if out is not None:
            write(reports, out, log)


def table(report: Report) -> Iterator[str]:
    yield title(report)
    yield from (f"baseline   {line}" for line in _steps(report))
    yield from (f"note       {note}" for note in _notes(report))
    shown = page.changes_table(_plain(report))
    yield from aligned(shown.columns, shown.rows)
    yield from _impossible(report)


def _impossible(report: Report) -> Iterator[str]:
    """Changes with the same reason share a line."""
    names: dict[tuple[str, str], list[str]] = {}
    for one in report.impossible:
        names.setdefault((one.kind, one.reason), []).append(one.name)
    if names:
        yield "not possible"
    for (kind, reason), changes in names.items():
        yield f"{kind:<11}{' | '.join(changes)}: {reason}"


def _steps(report: Report) -> Iterator[str]:
    for name, steps in report.subject.steps.items():
        words = [
            f"{step.name}({', '.join(f'{k}={v}' for k, v in step.options.items() if v is not None)})"
            for step in steps
        ]
        if words:
            yield f"{name}: {' '.join(words)}"


def _notes(report: Report) -> Iterator[str]:
    yield from report.subject.notes
    if report.samples < FEW and report.subject.has_answers:
        yield f"{report.samples} samples are few: unchanged answers prove little"


def title(report: Report) -> str:
    subject = report.subject
    on = f" on {subject.config.backend}" if subject.has_answers else ", inputs only"
    score = f"{report.metric} {report.score:.2f}" if report.score is not None else "no score"
    why = f" ({report.no_score})" if report.no_score else ""
    low, high = report.span
    return (
        f"{subject.model.name}{on}, {_dataset(report)}: {counted(report.samples, 'sample')}, "
        f"input {low:.4g} to {high:.4g}, {score}{why}"
    )


def check_out(out: Path | None) -> None:
    """Raises ConfigError, before anything is measured, where `out` cannot be written or has a
    report.
    """
    if out is None:
        return
    home = next(path for path in (out, *out.parents) if path.exists())
    if not home.is_dir() or not os.access(home, os.W_OK):
        raise ConfigError(f"--out {out}: {home} is not a writable folder: name another")
    for name in (JSON, LOG, page.PAGE):
        if (out / name).exists():
            raise ConfigError(
                f"{out / name} exists: reports are never overwritten; pass another --out"
            )


def write(reports: Sequence[Report], out: Path, log: BinaryIO) -> None:
    """log: what the frameworks printed on stderr."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        content = [_plain(report) for report in reports]
        keep_output(log, out / LOG)
        write_json(out / JSON, {"harness": __version__, "reports": content})
        page.write(content, out)
    except OSError as e:
        raise ConfigError(f"--out {out} cannot be written: {e.strerror}") from e
    except PluginUnavailable as e:
        say(f"no page was made: {e}")


def _plain(report: Report) -> dict[str, Any]:
    subject = report.subject
    return {
        "model": subject.model.name,
        "backend": subject.config.backend if subject.has_answers else None,
        "dataset": _dataset(report),
        "notes": list(_notes(report)),
        "samples": report.samples,
        "steps": {
            name: [{step.name: dict(step.options)} for step in steps]
            for name, steps in subject.steps.items()
        },
        "input_range": list(report.span),
        "metric": report.metric,
        "score": report.score,
        "no_score": report.no_score,
        "changes": [_row(row) for row in report.rows],
        "not_possible": [one._asdict() for one in report.impossible],
    }


def _row(row: Row) -> dict[str, Any]:
    """Differences that are not finite become null: JSON has no infinity."""
    return {
        "kind": row.kind,
        "change": row.name,
        "input_share_differing": row.differing,
        "input_max_difference": _finite(row.largest),
        "input_mean_difference": _finite(row.mean),
        "agreement": row.agreement,
        "score": row.score,
        "verdict": row.verdict,
    }


def _dataset(report: Report) -> str:
    return report.subject.label or report.subject.dataset


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
