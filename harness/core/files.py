"""Reads, writes and digests files. A file is either written completely or does not exist."""

import csv
import hashlib
import json
import math
import os
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.errors import ConfigError, one_line, type_and_text

PARTIAL = ".partial"
"""Suffix of a file or folder that is still being written, or whose writer died."""

WRONG_CONTENT: tuple[type[Exception], ...] = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,  # the header of a damaged array may claim more rows than fit into memory
    RecursionError,
    TypeError,
    ValueError,
    csv.Error,
    zipfile.BadZipFile,
)
"""Exceptions that Python and NumPy raise if a file's content has an unexpected structure."""

MOST_NAMED = 3
"""Maximum number of runs that a message lists."""


def cache_dir() -> Path:
    """Returns the folder in which downloaded models and preprocessed samples are kept between runs.

    If the user has neither an account nor HOME, or if HOME is not absolute, the folder cannot be created. The caller
    then does not cache anything.
    """
    home = os.path.expanduser("~/.cache")  # noqa: PTH111 - Path.home() raises
    base = os.environ.get("XDG_CACHE_HOME") or (home if home.startswith("/") else os.devnull)
    return Path(base) / "mlperf-harness"


@contextmanager
def atomic_file(path: Path, *, new: bool = False) -> Iterator[Path]:
    """Yields a temporary path next to `path`, and renames the file to `path` at the end.

    After an error, removes the temporary file, and leaves an earlier file at `path` unchanged. Several processes may
    write the same path. The file from the last process
    remains, and every reader sees a complete file. new: whether to raise FileExistsError if `path` exists.
    """
    if new:
        path.open("x").close()  # creates an empty file, which reserves the name for this process
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}{PARTIAL}")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        if new:
            path.unlink(missing_ok=True)
        raise


@contextmanager
def cached_file(path: Path) -> Iterator[Path]:
    """Yields an `atomic_file` in the cache, and creates the folders for it. Raises ConfigError if the file cannot be
    written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as temporary:
            yield temporary
    except OSError as e:
        raise ConfigError(
            f"{path} cannot be written ({e.strerror or e}): set XDG_CACHE_HOME to a writable folder with free space"
        ) from e


@contextmanager
def cached_folder(path: Path) -> Iterator[Path]:
    """Yields an empty folder in the cache, and renames the folder to `path` at the end. If the folder `path` already
    exists, keeps that folder.

    After an error, removes the temporary folder. Raises a ConfigError if the folder cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}{PARTIAL}")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        if not path.exists():  # another process may have created the path first
            temporary.replace(path)
    except OSError as e:
        raise ConfigError(
            f"{path} cannot be written ({e.strerror or e}): set XDG_CACHE_HOME to a writable folder with free space"
        ) from e
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Replaces the file atomically, or writes to a device or a pipe. Characters that UTF-8 cannot encode become `?`."""
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8", errors="replace")
        return
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="replace")


def sha256(path: Path) -> str:
    """Returns the SHA-256 of a file's content as hexadecimal digits. Raises OSError if the file cannot be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(content, indent=2, allow_nan=False, default=str) + "\n")


def not_a_run(folder: Path, name: str, sign: str = "", verb: str = "") -> str:
    """Returns the error message for a folder that does not contain the file `name`. The message lists the newest runs
    in the folder.

    sign: the file that identifies a run, by default `name`. verb: the verb that writes such folders, or '' for runs.
    """
    kind = f"a folder of `{verb}`" if verb else "a run's folder"
    for below in ("*", "*/*"):  # some verbs store their runs in a subfolder
        found = (p.parent for p in folder.glob(f"{below}/{sign or name}"))
        if runs := [run for run in found if not run.is_symlink()]:
            break
    else:
        expected = f"expected {kind}" if verb else "check that it is a run's folder"
        return f"{folder} has no {name}: {expected}"
    newest = sorted(runs, key=lambda run: (run.stat().st_mtime_ns, run.name))[-MOST_NAMED:]
    shown = ", ".join(map(str, sorted(newest)))
    more = f" and {len(runs) - MOST_NAMED} more" if len(runs) > MOST_NAMED else ""
    runs_or_folders = "folders" if verb else "runs"
    return (
        f"{folder} is not {kind}, but contains {runs_or_folders} ({shown}{more}): name one of them"
    )


def not_a_study(folder: Path, verb: str) -> str:
    """Returns the error message for a folder that contains none of the files in which `verb` stores its summaries."""
    if not folder.exists():
        return _no_folder(folder)
    problem = f"contains no result of `{verb}`" if folder.is_dir() else "is not a folder"
    return f"{folder} {problem}: pass a folder that `{verb}` wrote"


def _no_folder(folder: Path) -> str:
    """Returns the error message for a missing folder. If a run with this name is unfinished or in progress, the message
    names its folder.
    """
    unfinished = folder.with_name(folder.name + PARTIAL)
    if not unfinished.is_dir():
        return f"{folder} does not exist"
    return f"{folder} does not exist, but {unfinished} exists: its run is in progress or did not finish"


def parse_json(text: str) -> Any:
    """Returns the content of a JSON text.

    Raises ValueError for numbers that are not finite, because JSON does not allow them, and for duplicate keys, because
    readers see only one of the values.
    """
    return json.loads(text, object_pairs_hook=_object, parse_float=_finite, parse_constant=_finite)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a finite number")
    return number


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} appears twice")
    return content


def read_json(path: Path, verb: str = "") -> Mapping[str, Any]:
    """Returns the JSON object in a file that a run or `verb` wrote. Raises a ConfigError if the file's content is
    faulty.
    """
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError as e:
        if path.parent.is_dir():
            raise ConfigError(not_a_run(path.parent, path.name, verb=verb)) from e
        raise ConfigError(_no_folder(path.parent)) from e
    except NotADirectoryError as e:
        file = path.parent
        raise ConfigError(f"{file} is a file: pass a folder, e.g. {file.parent}") from e
    except OSError as e:
        raise ConfigError(
            f"{path} cannot be read ({e.strerror}): check that it is a run's folder"
        ) from e
    except (ValueError, RecursionError) as e:
        raise ConfigError(f"{path} is not valid JSON: {e}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is not a file of a run")
    return content


@contextmanager
def reading(problem: str, hint: str = "", also: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Converts exceptions about a file's content to a ConfigError with the text '<problem>: <fault>: <hint>'.

    also: additional exceptions to convert, such as OSError if the block opens the file.
    """
    try:
        yield
    except WRONG_CONTENT + also as e:
        text = f"{problem}: {_fault(e)}"
        raise ConfigError(f"{text}: {hint}" if hint else text) from e


def _fault(error: Exception) -> str:
    """Describes the fault in a file, with the exception's type if the exception's text alone is not clear."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, json.JSONDecodeError):
        return f"not valid JSON: {error}"
    if type(error) is KeyError and error.args:
        return f"no entry {error.args[0]!r:.100}"
    if type(error) is ValueError and error.args:
        return one_line(error)
    return type_and_text(error)


def free_name(path: Path) -> Path:
    """Returns the first of path, path-2, path-3, ... that is free, both with and without the suffix PARTIAL."""
    free, number = path, 1
    while any(os.path.lexists(one) for one in (free, free.with_name(free.name + PARTIAL))):
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free


def point_link(link: Path, name: str) -> None:
    """Atomically creates or replaces a symbolic link to the entry `name` in the same folder."""
    fresh = link.with_name(f".{link.name}-{os.getpid()}")
    fresh.symlink_to(name)
    fresh.replace(link)
