"""Stores the times of pieces (layers, bricks) in SQLite for later commands and other models.

A row is valid for one machine, one version of the runtime, one piece and one setting. Rows of a different
machine or version are never read.
"""

import json
import sqlite3
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from harness.core.clock import utc_text
from harness.core.formats.sqlite import opened
from harness.machine.identity import machine_key

SCHEMA = 2
"""Version of the table's layout, stored in the file's user_version."""

_CREATE = """
CREATE TABLE IF NOT EXISTS pieces (
    machine TEXT NOT NULL, runtime TEXT NOT NULL, piece TEXT NOT NULL, setting TEXT NOT NULL,
    layers TEXT NOT NULL, measured_at TEXT NOT NULL, result TEXT NOT NULL,
    PRIMARY KEY (machine, runtime, piece, setting)
)
"""


class Database:
    """The database file. Several processes may use the file at the same time, because each call opens it again."""

    def __init__(self, path: Path, machine: Mapping[str, Any], runtime: str) -> None:
        """machine: `machine` of harness.machine.host.fingerprint(). runtime: name and version.
        Creates the file. Every method raises ConfigError if the file cannot be used or has a newer schema.
        """
        self._path = path
        self._where = (machine_key(machine), runtime)
        with self._open():
            pass

    def _open(self) -> AbstractContextManager[sqlite3.Connection]:
        return opened(self._path, SCHEMA, _CREATE)

    def read(self, pieces: Collection[str], setting: str) -> dict[str, Any]:
        """Returns the stored results by piece. Pieces without a result are left out."""
        query = "SELECT piece, result FROM pieces WHERE machine = ? AND runtime = ? AND setting = ?"
        with self._open() as db:
            rows = db.execute(query, (*self._where, setting)).fetchall()
            return {piece: json.loads(result) for piece, result in rows if piece in pieces}

    def elsewhere(self, pieces: Collection[str]) -> int:
        """Returns how many rows of these pieces belong to a different machine or runtime."""
        query = "SELECT piece FROM pieces WHERE NOT (machine = ? AND runtime = ?)"
        with self._open() as db:
            return sum(piece in pieces for (piece,) in db.execute(query, self._where))

    def add(
        self, results: Mapping[str, Mapping[str, Any]], setting: str, layers: Mapping[str, str]
    ) -> None:
        """Adds results, and replaces earlier results. layers: operators of each piece, stored for people who read the
        file.
        """
        now = utc_text()
        rows = [
            (*self._where, piece, setting, layers[piece], now, json.dumps(result))
            for piece, result in results.items()
        ]
        with self._open() as db:
            db.executemany("INSERT OR REPLACE INTO pieces VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
