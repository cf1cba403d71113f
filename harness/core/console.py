"""Prints results on stdout and messages on stderr, with the control characters in them as text."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TextIO

from harness.core.shown.escapes import visible

_user_stderr: TextIO | None = None
"""Set while `frameworks_output` keeps the process's stderr for others."""


def stderr() -> TextIO:
    """The stream that the user reads, also while the process's stderr goes to a log."""
    return sys.stderr if _user_stderr is None else _user_stderr


def show(text: str, paint: Callable[[str], str] | None = None) -> None:
    """Print on stdout. paint: adds colours to the text, on a terminal that has them."""
    _print([text], sys.stdout, paint if _has_colours(sys.stdout) else None)


def columns() -> int | None:
    """Width of the terminal that stdout is; None where it is none."""
    return shutil.get_terminal_size().columns if _is_terminal(sys.stdout) else None


_SGR = {"red": 31, "green": 32, "yellow": 33}
"""Colour -> code of ECMA-48's Select Graphic Rendition."""


def coloured(text: str, colour: str) -> str:
    return f"\x1b[{_SGR[colour]}m{text}\x1b[0m"


def _has_colours(stream: TextIO) -> bool:
    """NO_COLOR: see no-color.org."""
    return (
        _is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # it is closed
        return False


def say(text: str) -> None:
    """Print each line on stderr."""
    _print([f"harness: {line}" for line in text.splitlines()], stderr())


def _print(lines: Sequence[str], stream: TextIO, paint: Callable[[str], str] | None = None) -> None:
    """A closed pipe (`| head`) or a full disk does not change the exit status."""
    try:
        for line in lines:
            text = visible(line)
            print(paint(text) if paint else text, file=stream, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def frameworks_output() -> Iterator[BinaryIO]:
    """Redirects the stderr of frameworks, from C++ or Python, into a file; `say` still reaches the user.

    Yields the file, which exists as long as the context. An exception other than a HarnessError is a
    bug: the file is then printed, because it may show the cause. Do not nest it, and enter it before
    any thread prints.
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
            _user_stderr.write(visible(log.read().decode("utf-8", "replace")))
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
