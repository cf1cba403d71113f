"""Prints results on stdout and messages on stderr."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TextIO

_user_stderr: TextIO | None = None
"""Set while `frameworks_output` keeps the process's stderr for others."""


def stderr() -> TextIO:
    """The stream that the user reads, also while the process's stderr goes to a log."""
    return sys.stderr if _user_stderr is None else _user_stderr


def show(text: str) -> None:
    """Print on stdout. A closed pipe (`| head`) or a full disk does not change the exit status."""
    try:
        print(text, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(text: str) -> None:
    """Print each line on stderr. A closed pipe or a full disk does not change the exit status."""
    stream = stderr()
    try:
        for line in text.splitlines():
            print(f"harness: {line}", file=stream, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def frameworks_output() -> Iterator[BinaryIO]:
    """Keeps what frameworks print on stderr, from C++ or Python, out of what the user reads.

    Yields the file that it goes to, which exists as long as the context. `say` and `stderr()` still
    reach the user. Where an exception leaves that is no HarnessError, a bug, the file's content is
    printed: it may say why. Not to be nested, and entered before any thread prints.
    """
    global _user_stderr  # noqa: PLW0603 - the process has one stderr
    from tempfile import TemporaryFile

    from harness.errors import HarnessError

    sys.stderr.flush()
    before, kept = sys.stderr, os.dup(2)
    with (
        TemporaryFile() as log,
        open(kept, "w", encoding="utf-8", errors="replace") as real,  # noqa: PTH123 - a descriptor
        open(os.dup(log.fileno()), "w", encoding="utf-8", errors="replace", buffering=1) as theirs,  # noqa: PTH123
    ):
        _user_stderr = real if _is_descriptor_2(before) else before
        sys.stderr = theirs
        os.dup2(log.fileno(), 2)
        try:
            yield log
        except HarnessError:
            raise
        except Exception:
            log.seek(0)
            _user_stderr.write(log.read().decode("utf-8", "replace"))
            raise
        finally:
            theirs.flush()
            os.dup2(kept, 2)
            sys.stderr, _user_stderr = before, None


def keep_output(log: BinaryIO, path: Path) -> None:
    """log: of `frameworks_output`. No file where nothing was printed."""
    log.seek(0)
    if printed := log.read():
        path.write_bytes(printed)


def _is_descriptor_2(stream: TextIO) -> bool:
    """False for a stream that a test has put in its place."""
    try:
        return stream.fileno() == 2
    except (OSError, ValueError):
        return False
