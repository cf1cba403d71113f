"""Stores each brick's times in one SQLite file, so that nothing is measured twice."""

import json
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from harness.errors import ConfigError

SCHEMA = 1
"""Stored in the file's user_version."""

_LOCKED_S = 5
_TABLE = """
CREATE TABLE IF NOT EXISTS bricks (
    brick TEXT NOT NULL, machine TEXT NOT NULL, version TEXT NOT NULL, threads INTEGER NOT NULL,
    measured TEXT NOT NULL, result TEXT NOT NULL,
    PRIMARY KEY (brick, machine, version, threads)
)
"""


def prepare(path: Path) -> None:
    """Creates the file, so that a file that cannot be written is reported before anything is
    measured.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _open(path).close()
    except (OSError, sqlite3.Error) as e:
        raise _unusable(path, e) from None


def read(
    path: Path, digests: Iterable[str], machine: str, version: str, threads: int
) -> dict[str, dict[str, Any]]:
    """digest -> stored result of bricks measured under this key. The file need not exist.
    Raises ConfigError where it is not such a database.
    """
    if not path.exists():
        return {}
    keys = set(digests)
    query = "SELECT brick, result FROM bricks WHERE machine = ? AND version = ? AND threads = ?"
    try:
        with closing(_open(path)) as db:
            rows = db.execute(query, (machine, version, threads)).fetchall()
            return {digest: json.loads(result) for digest, result in rows if digest in keys}
    except (sqlite3.Error, ValueError) as e:
        raise _unusable(path, e) from None


def add(
    path: Path, results: Mapping[str, Mapping[str, Any]], machine: str, version: str, threads: int
) -> None:
    """results: digest -> the result of time/runs.py with its time (`measured`)."""
    rows = [
        (digest, machine, version, threads, result["measured"], json.dumps(result))
        for digest, result in results.items()
    ]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(_open(path)) as db, db:
            db.executemany("INSERT OR REPLACE INTO bricks VALUES (?, ?, ?, ?, ?, ?)", rows)
    except (OSError, sqlite3.Error) as e:
        raise _unusable(path, e) from None


def _open(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=_LOCKED_S)
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA:
        db.close()
        raise sqlite3.DatabaseError(f"it has schema {version}, this harness knows {SCHEMA}")
    with db:
        db.execute(_TABLE)
        db.execute(f"PRAGMA user_version = {SCHEMA}")
    return db


def _unusable(path: Path, error: Exception) -> ConfigError:
    return ConfigError(f"{path} cannot be used: {error}: pass another --database")
