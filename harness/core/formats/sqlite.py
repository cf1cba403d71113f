"""Opens a SQLite file of the harness, creates its table, and refuses files of a newer harness version."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from harness.errors import ConfigError

_LOCKED_S = 10


@contextmanager
def opened(path: Path, schema: int, create: str) -> Iterator[sqlite3.Connection]:
    """Yields a connection and commits its changes at the end. Several processes may use the file at the same time.

    schema: version of the table layout, stored in the file's user_version. create: the statement that
    creates the table. Raises ConfigError if the file cannot be used or has a newer schema.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(path, timeout=_LOCKED_S)) as db, db:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version > schema:
                known = f"it has schema {version}, but this harness supports {schema}"
                raise sqlite3.DatabaseError(known)
            if version < schema:
                db.execute(create)
                db.execute(f"PRAGMA user_version = {schema}")
            yield db
    except (OSError, sqlite3.Error, ValueError) as e:
        raise ConfigError(f"{path} cannot be used ({e}): pass a different --database") from None
