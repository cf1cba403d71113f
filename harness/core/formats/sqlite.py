"""Opens the harness's SQLite files, creates their tables, and refuses files from a newer version of the harness."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from harness.errors import ConfigError

_LOCKED_S = 10


@contextmanager
def opened(path: Path, schema: int, create: str) -> Iterator[sqlite3.Connection]:
    """Yields a connection to the file, and commits the changes at the end. Several processes may use the file at the
    same time.

    schema: version of the table's layout, which the file's user_version stores. create: statement that creates the
    table. Raises ConfigError if the file cannot be used, or if its layout is newer than `schema`.
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
