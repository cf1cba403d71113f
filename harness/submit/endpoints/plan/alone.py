"""Ensures that only one process at a time takes measurements in a work folder."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.errors import ConfigError

FILE = "run.lock"


@contextmanager
def alone(work: Path) -> Iterator[None]:
    """Raises a ConfigError if another process is measuring in this folder, or if the folder is not writable."""
    path = work / FILE
    try:
        work.mkdir(parents=True, exist_ok=True)
        file = path.open("wb")
    except OSError as e:
        raise ConfigError(
            f"{path} cannot be written ({e.strerror}): pass a different --work"
        ) from e
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{path} is locked by another `endpoints` verb that is measuring: wait until it ends"
            ) from None
        yield
