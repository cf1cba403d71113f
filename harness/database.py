"""results/runs.sqlite: one row a run, so that runs can be listed without opening folders."""

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
    folder TEXT PRIMARY KEY,
    started TEXT NOT NULL,
    scenario TEXT NOT NULL,
    backend TEXT NOT NULL,
    model TEXT NOT NULL,
    dataset TEXT NOT NULL,
    mode TEXT NOT NULL,
    verdict TEXT NOT NULL,
    reasons TEXT NOT NULL,
    headline_value REAL,
    headline_unit TEXT,
    p50_ns INTEGER,
    p99_ns INTEGER,
    completed_per_s REAL,
    accuracy REAL,
    harness_commit TEXT
)
"""
COLUMNS = (
    "folder",
    "started",
    "scenario",
    "backend",
    "model",
    "dataset",
    "mode",
    "verdict",
    "reasons",
    "headline_value",
    "headline_unit",
    "p50_ns",
    "p99_ns",
    "completed_per_s",
    "accuracy",
    "harness_commit",
)


def path_in(results: Path) -> Path:
    return results / "runs.sqlite"


def add(results: Path, folder: str, result: Mapping[str, Any]) -> None:
    """Raises sqlite3.Error; the run's own folder does not depend on it."""
    latency = result.get("latency_ns") or {}
    headline = result.get("headline") or {}
    accuracy = result.get("accuracy") or {}
    throughput = result.get("throughput_per_s") or {}
    row = (
        folder,
        result["started"],
        result["scenario"],
        result["backend"],
        result["model"],
        result["dataset"],
        result["mode"],
        result["verdict"],
        " ".join(r["code"] for r in result["reasons"]),
        headline.get("value"),
        headline.get("unit"),
        latency.get("p50"),
        latency.get("p99"),
        throughput.get("completed"),
        accuracy.get("value"),
        (result["environment"].get("harness") or {}).get("commit"),
    )
    with closing(sqlite3.connect(path_in(results), timeout=5)) as db, db:
        db.execute(_SCHEMA)
        marks = ", ".join("?" * len(COLUMNS))
        db.execute(f"INSERT OR REPLACE INTO runs VALUES ({marks})", row)  # noqa: S608 - marks only


def newest_first(results: Path, limit: int) -> list[dict[str, Any]]:
    """[] where there is no database yet."""
    if not path_in(results).is_file():
        return []
    with closing(sqlite3.connect(path_in(results), timeout=5)) as db:
        db.row_factory = sqlite3.Row
        query = "SELECT * FROM runs ORDER BY started DESC, folder DESC LIMIT ?"
        return [dict(row) for row in db.execute(query, (limit,))]
