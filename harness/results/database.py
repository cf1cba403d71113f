"""Maintains results/runs.sqlite with one row per run, so that runs can be listed without opening their folders."""

import json
import os
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from harness.core.shown import cells

SCHEMA = 2
"""Version of the table, stored in the file's user_version. `add` adds any columns that an older file lacks. An older
harness ignores columns that it does not know.
"""

_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "folder": ("TEXT PRIMARY KEY",),
    "started": ("TEXT NOT NULL", "started"),
    "scenario": ("TEXT NOT NULL", "scenario"),
    "backend": ("TEXT NOT NULL", "backend"),
    "model": ("TEXT NOT NULL", "model"),
    "dataset": ("TEXT NOT NULL", "dataset"),
    "mode": ("TEXT NOT NULL", "mode"),
    "verdict": ("TEXT NOT NULL", "verdict"),
    "reasons": ("TEXT NOT NULL",),
    "headline_value": ("REAL", "headline", "value"),
    "headline_unit": ("TEXT", "headline", "unit"),
    "p50_ns": ("INTEGER", "latency_ns", "p50"),
    "p90_ns": ("INTEGER", "latency_ns", "p90"),
    "p99_ns": ("INTEGER", "latency_ns", "p99"),
    "completed_per_s": ("REAL", "throughput_per_s", "completed"),
    "accuracy": ("REAL", "accuracy", "value"),
    "harness_commit": ("TEXT", "environment", "harness", "commit"),
    "host": ("TEXT", "environment", "machine", "host"),
    "metric": ("TEXT", "accuracy", "metric"),
    "lower_is_better": ("INTEGER", "accuracy", "lower_is_better"),
    "joules_per_sample": ("REAL",),
    "energy_source": ("TEXT",),
    "asked_per_s": ("REAL", "throughput_per_s", "asked"),
    "concurrency": ("INTEGER", "arrivals", "concurrency"),
    "arrivals_sha256": ("TEXT", "arrivals", "schedule_sha256"),
    "samples_per_query": ("INTEGER", "queries", "samples_per_query"),
    "slo": ("TEXT", "slo"),
    "dataset_digest": ("TEXT", "dataset_description", "digest"),
    "peak": ("REAL",),
    "framework": ("TEXT", "backend_description", "framework"),
    "tokens_per_s": ("REAL", "tokens", "output_per_s"),
    "ttft_p50_ns": ("INTEGER", "tokens", "ttft_ns", "p50"),
    "ttft_p99_ns": ("INTEGER", "tokens", "ttft_ns", "p99"),
    "tpot_p50_ns": ("INTEGER", "tokens", "tpot_ns", "p50"),
    "tpot_p99_ns": ("INTEGER", "tokens", "tpot_ns", "p99"),
    "accuracy_unit": ("TEXT", "accuracy", "unit"),
    "settings": ("TEXT",),
}
"""Maps a column to its SQL type and to the keys of its value in result.json. `columns_of` sets the other columns.

peak: the load that `peak` found, if a run confirmed it. settings: a JSON object with the settings that repeats of a run
share, from the plan and the backend's description.
"""

COLUMNS = tuple(_COLUMNS)

_PLANNED = ("instances", "threads", "max_batch", "dispatch", "batch_wait_ns")
"""Keys of the plan that the user may set."""

_CONDITIONS = {
    "model": "model GLOB ?",
    "backend": "backend GLOB ?",
    "host": "host GLOB ?",
    "scenario": "scenario = ?",
    "verdict": "verdict = ?",
    "since": "started >= ?",
}
_LOCKED_S = 5


def path_in(results: Path) -> Path:
    return results / "runs.sqlite"


def add(results: Path, folder: str, result: Mapping[str, Any], peak: float | None = None) -> None:
    """Adds a run to the database. Raises sqlite3.Error if the database cannot be written; the run's folder stays
    unchanged.

    peak: the load that a search found, if a run confirmed it.
    """
    path = path_in(results)
    if path.is_symlink() and path.lstat().st_uid != os.geteuid():
        raise sqlite3.OperationalError("it is a link of another user")
    with closing(sqlite3.connect(path, timeout=_LOCKED_S)) as db, db:
        db.execute("BEGIN IMMEDIATE")  # two runs may create the database at the same time
        version = _version(db)
        if version == 0:
            columns = ", ".join(f"{name} {kind}" for name, (kind, *_) in _COLUMNS.items())
            db.execute(f"CREATE TABLE runs ({columns})")
        for name in _lacking(db):
            db.execute(f"ALTER TABLE runs ADD COLUMN {name} {_COLUMNS[name][0]}")
        if version != SCHEMA:
            db.execute(f"PRAGMA user_version = {SCHEMA}")
        names, marks = ", ".join(COLUMNS), ", ".join("?" * len(COLUMNS))
        query = f"INSERT OR REPLACE INTO runs ({names}) VALUES ({marks})"  # noqa: S608 - our own names
        db.execute(query, tuple(columns_of(folder, result, peak).values()))


def columns_of(folder: str, result: Mapping[str, Any], peak: float | None = None) -> dict[str, Any]:
    """Returns a mapping from column to value for a run. result: the content of result.json. peak: as in `add`."""
    energy = energy_of(result.get("power") or {})
    values = {name: _value(result, keys) for name, (_, *keys) in _COLUMNS.items() if keys}
    values |= {
        "folder": folder,
        "peak": peak,
        "reasons": " ".join(reason["code"] for reason in result["reasons"]),
        "joules_per_sample": energy.get("joules_per_sample"),
        "energy_source": energy.get("source"),
        "settings": _settings(result),
    }
    return {name: values[name] for name in COLUMNS}


def _settings(result: Mapping[str, Any]) -> str | None:
    """Returns the value of the column `settings`; None if the run recorded neither a plan nor a description."""
    plan = result.get("plan") or {}
    described = result.get("backend_description") or {}
    planned = {name: plan[name] for name in _PLANNED if name in plan}
    set_by = {name: value for name, value in described.items() if name != "use"}
    return json.dumps({**set_by, **planned}) if set_by or planned else None


def content_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the part of result.json that a row holds."""
    content: dict[str, Any] = {}
    for name, (_, *keys) in _COLUMNS.items():
        inner = content
        for key in keys[:-1]:
            inner = inner.setdefault(key, {})
        inner |= dict.fromkeys(keys[-1:], row[name])
    joules, source = row["joules_per_sample"], row["energy_source"]
    reading = {"source": source, "joules_per_sample": joules}
    return {**content, "power": {"readings": [reading] if joules is not None else []}}


def _value(content: Mapping[str, Any], keys: Sequence[str]) -> Any:
    """Returns the value at the path `keys`; None if a key is missing or the value is null."""
    for key in keys[:-1]:
        content = content.get(key) or {}
    return content.get(keys[-1])


def energy_of(power: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the first measured source or, if no source was measured, the first estimated source; {} if the section
    has neither.
    """
    readings: Sequence[Mapping[str, Any]] = power.get("readings", ())
    measured = [one for one in readings if one["provenance"] == "measured"]
    return next(iter([*measured, *readings]), {})


def _lacking(db: sqlite3.Connection) -> Sequence[str]:
    """Returns the columns that the table lacks."""
    has = {name for _, name, *_ in db.execute("PRAGMA table_info(runs)")}
    return [name for name in COLUMNS if name not in has]


def _version(db: sqlite3.Connection) -> int:
    """Returns the table's version; 0 if the table does not exist."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    exists = bool(db.execute("PRAGMA table_info(runs)").fetchall())
    if version not in (1, SCHEMA) and (exists or version):
        raise sqlite3.DatabaseError(
            f"it has schema {version}, but this harness reads schema {SCHEMA}"
        )
    return int(version) if exists else 0


def null_ceiling_per_s(results: Path, scenario: str, host: str) -> float | None:
    """Returns the highest rate among VALID null runs on the host; None without a readable database or such a run."""
    try:
        rows = newest_first(results, scenario=scenario, backend="null", host=host, verdict="VALID")
    except sqlite3.Error:
        return None
    return max((row["completed_per_s"] or 0.0 for row in rows), default=None)


def newest_first(
    results: Path, limit: int | None = None, **conditions: str
) -> list[dict[str, Any]]:
    """Returns the matching rows, newest first; [] without a database. Does not change the database file.

    conditions: model, backend and host (patterns), scenario, verdict, since (ISO 8601, UTC). A row's key `removed` is
    true if the run's folder no longer exists. Raises sqlite3.Error.
    """
    if not path_in(results).is_file():
        return []
    with closing(sqlite3.connect(path_in(results), timeout=_LOCKED_S)) as db:
        db.row_factory = sqlite3.Row
        version = _version(db)
        if version == 0:
            return []
        lacks = _lacking(db)
        columns = ", ".join(f"NULL AS {name}" if name in lacks else name for name in COLUMNS)
        where = " AND ".join(_CONDITIONS[name] for name in conditions) or "TRUE"
        query = (
            f"SELECT {columns} FROM runs WHERE {where} "  # noqa: S608 - our own names
            "ORDER BY started DESC, folder DESC LIMIT ?"
        )
        values = (*conditions.values(), -1 if limit is None else limit)
        rows = [dict(row) for row in db.execute(query, values)]
    if not all(isinstance(row["folder"], str) for row in rows):
        raise sqlite3.DatabaseError("one of its rows does not name a folder")
    return [{**row, "removed": not (results / row["folder"]).is_dir()} for row in rows]


def export(rows: Sequence[Mapping[str, Any]], kind: str) -> str:
    """Formats the rows. kind: `csv` (with a header; missing values are empty) or `json` (missing values are null)."""
    if kind == "json":
        return json.dumps(rows, indent=2)
    columns = (*COLUMNS, "removed")
    return cells.to_text(columns, ([row[name] for name in columns] for row in rows)).rstrip("\n")
