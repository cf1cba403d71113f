"""Reads a profile's folder and writes its tables and trace.

profile.json and the harness run next to it contain the measurements; `profile` and `profile --from` derive everything
else from them.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.core.config.run_config import SCHEMA_VERSION
from harness.core.files import read_json, write_json
from harness.core.shown.escapes import visible
from harness.core.shown.private import hidden, hide
from harness.errors import ConfigError
from harness.explain.profile.spans.spans import Span, chrome_trace
from harness.explain.profile.tables import trace as profile_trace
from harness.explain.profile.tables.layer_tables import Profiled, most_time
from harness.explain.profile.tables.tables import tables as tables_of
from harness.loadgen.scenario import scenario_named
from harness.results import records, run_folder
from harness.results.answer import headline_in_short
from harness.results.evidence.evidence import Evidence
from harness.results.pages import tables
from harness.results.pages.tables import Table
from harness.results.run_files import read_files, reading_run
from harness.run.study import machine_text, other_doubts

PROFILE, TRACE, PAGE, RUN = "profile.json", "trace.json", "profile.html", "run"
TEXT, JSON, CSV = "tables.txt", "tables.json", "tables"
LOG = "frameworks.log"
"""Log of the framework's output outside the harness run, which writes separate logs."""

SHOWN_ROWS = 12
"""A table shows at most this many rows on the screen. The table's file contains all rows."""


def read(folder: Path) -> Profiled:
    """Reads a profile or a run. A run contains only the levels query, batch and stage."""
    if (folder / PROFILE).is_file():
        content = read_json(folder / PROFILE)
        if content.get("schema_version") != SCHEMA_VERSION or "batch" not in content:
            raise ConfigError(f"{folder / PROFILE} was not written by this version of `profile`")
        return _profiled(content, records.read(folder / RUN / run_folder.PERFORMANCE, ""))
    if not (folder / run_folder.RESULT).is_file():
        raise ConfigError(
            f"{folder} has neither {PROFILE} nor {run_folder.RESULT}: pass the folder of a profile or "
            "of a run"
        )
    files = read_files(folder)
    if files.performance is None:
        raise ConfigError(f"{folder} has no performance run: there is nothing to profile")
    content = {
        "batch": 1,
        "started": files.result.get("started", ""),
        "model_name": files.result["model"],
        "run": about_run(files.result),
    }
    return _profiled(content, files.performance)


def _profiled(content: Mapping[str, Any], run: Evidence | None) -> Profiled:
    return Profiled(content, (run.done or None) if run is not None else None)


def about_run(result: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the facts about the harness run.

    loadgen_mean_ns: None in multi-stream, because LoadGen counts whole queries in that scenario.
    """
    latency = result["latency_ns"]
    by_query = scenario_named(result["scenario"]).by_query
    return {
        "scenario": result["scenario"],
        "verdict": result["verdict"],
        "answer": headline_in_short(result) if latency else None,
        "doubts": [doubt["code"] for doubt in result["doubts"]],
        "loadgen_mean_ns": latency["mean"] if latency and not by_query else None,
    }


def headline(profiled: Profiled) -> Iterator[str]:
    """Yields lines with the unprofiled run's answer, the kernels that take the most time, the doubts and the missing
    levels.
    """
    content = profiled.content
    run = content.get("run")
    if run:
        answer = run.get("answer", "not stored by the version that made this profile") or "none"
        yield f"answer      {answer}  ({run['scenario']}, {run['verdict']}, not profiled)"
        if disturbed := machine_text([run]):
            yield f"{'machine':<12}{disturbed}: stop other programs and profile again"
        yield from (f"  doubt   {code}" for code in other_doubts([run]))
    else:
        yield "answer      none: the query level was not requested"
    if profiled.level is not None:
        yield f"most time   {most_time(profiled.level)}"
    yield from (f"  doubt   {doubt}" for doubt in profiled.doubts)
    for level, why in content.get("missing", {}).items():
        yield f"  missing {level}: {why}"
    yield ""


def profile_tables(profiled: Profiled, folder: Path) -> list[Table]:
    """folder: the folder to name in an error message if its files do not fit together."""
    with reading_run(folder):
        return tables_of(profiled)


def text(shown: Sequence[Table], most_rows: int | None = SHOWN_ROWS) -> str:
    return "\n\n".join("\n".join(tables.lines(table, most_rows)) for table in shown)


def to_json(shown: Sequence[Table]) -> dict[str, Any]:
    return {table.key: table.to_json() for table in shown}


def spans(profiled: Profiled, folder: Path) -> list[Span]:
    """folder: the folder to name in an error message if its files do not fit together."""
    with reading_run(folder):
        return profile_trace.spans_of(profiled)


def write(profiled: Profiled, shown: Sequence[Table], folder: Path) -> None:
    """Writes all files except the page. Raises OSError if the folder cannot be written."""
    (folder / TEXT).write_text(visible(hide(text(shown, None))) + "\n", encoding="utf-8")
    write_json(folder / JSON, hidden(to_json(shown)))
    (folder / CSV).mkdir(exist_ok=True)
    for table in shown:
        (folder / CSV / f"{table.key}.csv").write_text(tables.to_csv(table), encoding="utf-8")
    about = {
        "model": profiled.content.get("model_name", ""),
        "note": "harness run, bare calls and profiled calls are drawn one after the other",
    }
    trace = chrome_trace(spans(profiled, folder), str(profiled.content.get("started", "")), about)
    (folder / TRACE).write_text(json.dumps(trace, allow_nan=False) + "\n", encoding="utf-8")
