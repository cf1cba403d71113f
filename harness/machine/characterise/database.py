"""Stores measured points in SQLite, keyed by machine, versions and settings."""

import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from sqlite3 import Connection
from typing import Any, NamedTuple

from harness.core.clock import utc_text
from harness.core.formats.sqlite import opened

DEFAULT = Path("results/machine.sqlite")
SCHEMA = 1
_CREATE = """
CREATE TABLE IF NOT EXISTS points (
    machine TEXT NOT NULL, versions TEXT NOT NULL, settings TEXT NOT NULL, point TEXT NOT NULL,
    measured_at TEXT NOT NULL, result TEXT NOT NULL,
    PRIMARY KEY (machine, versions, settings, point)
)
"""


class Key(NamedTuple):
    """The conditions under which a stored time is valid."""

    machine: str
    """The result of harness.machine.identity.machine_key."""
    versions: str
    """Versions of the computing library and of the measuring method (recipe)."""
    settings: str
    """The settings for the length of the measurement."""


class Database:
    """A database file of measured points. Every method raises ConfigError if the file cannot be used or has a newer
    schema.
    """

    def __init__(self, path: Path) -> None:
        """Creates the file if it is missing."""
        self._path = path
        with self._open():
            pass

    def _open(self) -> AbstractContextManager[Connection]:
        return opened(self._path, SCHEMA, _CREATE)

    def read(self, keys: Mapping[str, Key]) -> dict[str, Any]:
        """Returns the stored results by point, omitting points without a result. keys: maps each point to its key."""
        query = (
            "SELECT result FROM points WHERE machine = ? AND versions = ? AND settings = ? "
            "AND point = ?"
        )
        with self._open() as db:
            rows = {name: db.execute(query, (*key, name)).fetchone() for name, key in keys.items()}
        return {name: json.loads(row[0]) for name, row in rows.items() if row is not None}

    def newest(self, machine: str, versions: Collection[str] | None = None) -> list[Any]:
        """Returns a machine's newest result for each point, measured with one of the versions and with any settings.

        versions: None for any version.
        """
        query = "SELECT point, versions, result FROM points WHERE machine = ? ORDER BY measured_at"
        with self._open() as db:
            rows = db.execute(query, (machine,)).fetchall()
        return [
            *{
                point: json.loads(text)
                for point, of, text in rows
                if versions is None or of in versions
            }.values()
        ]

    def add(self, results: Iterable[tuple[Key, str, Mapping[str, Any]]]) -> None:
        """Adds results, which replace earlier results for the same key and point. results: (key, point, result)."""
        now = utc_text()
        rows = [(*key, point, now, json.dumps(result)) for key, point, result in results]
        with self._open() as db:
            db.executemany("INSERT OR REPLACE INTO points VALUES (?, ?, ?, ?, ?, ?)", rows)
