"""Stores each brick's times in one SQLite file, so that nothing is measured twice."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harness.explain.measurements import opened

SCHEMA = 1
"""Stored in the file's user_version."""

_TABLE = """
CREATE TABLE IF NOT EXISTS bricks (
    brick TEXT NOT NULL, machine TEXT NOT NULL, version TEXT NOT NULL, threads INTEGER NOT NULL,
    measured TEXT NOT NULL, result TEXT NOT NULL,
    PRIMARY KEY (brick, machine, version, threads)
)
"""


def prepare(path: Path) -> None:
    """Creates the file, so that one that cannot be written is reported before the first run."""
    with opened(path, SCHEMA, _TABLE):
        pass


def read(
    path: Path, digests: Iterable[str], machine: str, version: str, threads: int
) -> dict[str, dict[str, Any]]:
    """digest -> stored result of bricks measured under this key. The file need not exist."""
    if not path.exists():
        return {}
    keys = set(digests)
    query = "SELECT brick, result FROM bricks WHERE machine = ? AND version = ? AND threads = ?"
    with opened(path, SCHEMA, _TABLE) as db:
        rows = db.execute(query, (machine, version, threads)).fetchall()
        return {digest: json.loads(result) for digest, result in rows if digest in keys}


def add(
    path: Path, results: Mapping[str, Mapping[str, Any]], machine: str, version: str, threads: int
) -> None:
    """results: digest -> the result of time/runs.py with its time (`measured`)."""
    rows = [
        (digest, machine, version, threads, result["measured"], json.dumps(result))
        for digest, result in results.items()
    ]
    with opened(path, SCHEMA, _TABLE) as db:
        db.executemany("INSERT OR REPLACE INTO bricks VALUES (?, ?, ?, ?, ?, ?)", rows)
