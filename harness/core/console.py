"""Prints results to stdout and messages to stderr, and finds the name under which the user called the program."""

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import BinaryIO, TextIO

from harness.core.shown.escapes import visible
from harness.core.shown.secrets import masked
from harness.core.shown.status_line import StatusLine

_user_stderr: TextIO | None = None
"""Set only while `frameworks_output` redirects the process's stderr to a file."""

_messages: ContextVar[TextIO | None] = ContextVar("messages", default=None)
"""Set only in a thread whose messages go to a separate stream."""

CANONICAL = "python -m harness"
"""Program name in files that other machines read, and in texts when the user did not type a program name."""

PROGRAM_VARIABLE = "MLPERF_HARNESS_PROGRAM"
"""Environment variable that contains the program name, for processes that the user did not start. run.sh and
`child.start` set the variable.
"""

_SCRIPT = "mlperf-harness"
"""Console script that the package installs."""


def program() -> str:
    """Returns the words with which the user called the program, such as `./run.sh`, for usage texts and messages."""
    if name := os.environ.get(PROGRAM_VARIABLE):
        return name
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name == "harness.__main__" and "-m" in sys.orig_argv:
        return shlex.join([*sys.orig_argv[: sys.orig_argv.index("-m")], "-m", "harness"])
    called = Path(sys.argv[0])
    if called.name != _SCRIPT:
        return CANONICAL
    # The kernel passes the full path even if the user typed only the script's name.
    found = shutil.which(_SCRIPT)
    is_on_path = found is not None and Path(found).resolve() == called.resolve()
    return _SCRIPT if is_on_path else shlex.quote(str(called))


_status = StatusLine()
"""Status line on the process's stderr. The line is cleared before each message."""


def stderr() -> TextIO:
    """Returns the stream that the user sees, even if the process's stderr is redirected to a log."""
    own = _messages.get()
    if own is not None:
        return own
    return sys.stderr if _user_stderr is None else _user_stderr


def show(text: str, paint: Callable[[str], str] | None = None) -> None:
    """Prints text to stdout. paint: adds colours on terminals that support them."""
    _print([text], sys.stdout, paint if _has_colours(sys.stdout) else None)


def columns() -> int | None:
    """Returns the width of the terminal at stdout; None if stdout is not a terminal."""
    return shutil.get_terminal_size().columns if _is_terminal(sys.stdout) else None


_SGR = {"red": 31, "green": 32, "yellow": 33}
"""Maps a colour to its code for Select Graphic Rendition (ECMA-48)."""


def coloured(text: str, colour: str) -> str:
    return f"\x1b[{_SGR[colour]}m{text}\x1b[0m"


def _has_colours(stream: TextIO) -> bool:
    """Returns whether to print colours to the stream. For NO_COLOR, see no-color.org."""
    return (
        _is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # the stream is closed
        return False


def say(text: str) -> None:
    """Prints each line to stderr."""
    _print([f"harness: {line}" for line in text.splitlines()], stderr())


def draw_status(rows: Sequence[str]) -> None:
    """Draws the current status on stderr, which must be a terminal, and replaces the previous status."""
    _status.draw(stderr(), rows)


def clear_status() -> None:
    if _messages.get() is not None:
        return  # this thread prints to another stream, so the terminal's status stays
    with suppress(OSError):  # the terminal was closed
        _status.clear(stderr())


def _print(lines: Sequence[str], stream: TextIO, paint: Callable[[str], str] | None = None) -> None:
    """Prints lines. A closed pipe (`| head`) or a full disk leaves the exit status unchanged."""
    clear_status()
    try:
        for line in lines:
            text = visible(masked(line))
            print(paint(text) if paint else text, file=stream, flush=True)
    except OSError as e:
        _give_up(stream, e)


def _give_up(stream: TextIO, error: OSError) -> None:
    """Stops printing to a stream after an error. Reports a full disk on stderr, but not a closed pipe, because the
    reader closed the pipe on purpose.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    if stream is sys.stdout and not isinstance(error, BrokenPipeError):
        say(f"stdout cannot be written, so its output is incomplete: {error.strerror}")


@contextmanager
def frameworks_output() -> Iterator[BinaryIO]:
    """Redirects to a file what frameworks write to stderr, from C++ or Python. Messages from `say` still reach the
    user.

    Yields the file, which exists until the end of the context. An exception other than a HarnessError is a bug; the
    file is then printed, because its text may show the cause. Enter this context before any thread prints, and do not
    nest it.
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
            _user_stderr.write(visible(masked(log.read().decode("utf-8", "replace"))))
            raise
        finally:
            theirs.flush()
            os.dup2(kept, 2)
            sys.stderr, _user_stderr = before, None


def keep_output(log: BinaryIO, path: Path) -> None:
    """Writes the log from `frameworks_output` to `path`, unless the log is empty."""
    log.seek(0)
    if printed := log.read():
        path.write_text(masked(printed.decode("utf-8", "replace")), encoding="utf-8")


def _is_descriptor_2(stream: TextIO) -> bool:
    """Returns whether the stream writes to descriptor 2; a test may have replaced the stream."""
    try:
        return stream.fileno() == 2
    except (OSError, ValueError):
        return False


@contextmanager
def messages_to(stream: TextIO) -> Iterator[None]:
    """Redirects the output of `say` and the status line, for this thread only."""
    token = _messages.set(stream)
    try:
        yield
    finally:
        _messages.reset(token)


@contextmanager
def output() -> Iterator[TextIO]:
    """Yields stdout, to which the caller prints a file unchanged. The program that wrote the file must have escaped
    control characters.
    """
    try:
        yield sys.stdout
        sys.stdout.flush()
    except OSError as e:  # a closed pipe or a full disk, as in `_print`
        _give_up(sys.stdout, e)
