"""Runs a command line of the harness on a node. Files can be written into the command's folder before the run, and read
during the run.
"""

import hashlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from harness.core import files
from harness.core.child import Guard, start
from harness.errors import ConfigError, RunDied

COMMAND_MODULE = "harness.cli.main"

_DIGEST_BYTES = 32
_LOG_LIMIT = 1 << 16
"""Maximum number of bytes from the command's output that one call of `state` returns."""


def inside(folder: Path, name: str) -> Path:
    """Returns the path in this folder for a file from another machine. Refuses a name that leads to a path outside the
    folder.
    """
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or ".." in path.parts or "\0" in name:
        raise ConfigError(f"{name!r} is not a file name inside a results folder")
    return folder / path


def sealed(content: bytes) -> bytes:
    """Returns a file's content in the form in which the file is sent: 32 bytes of SHA-256, followed by the content."""
    return hashlib.sha256(content).digest() + content


def unsealed(name: str, data: bytes) -> bytes:
    """Returns the content of a received file. Raises RunDied if the content's SHA-256 does not match."""
    content = data[_DIGEST_BYTES:]
    if hashlib.sha256(content).digest() != data[:_DIGEST_BYTES]:
        raise RunDied(f"{name} did not arrive as it was sent (its SHA-256 differs): run again")
    return content


def put(folder: Path, name: str, content: bytes) -> None:
    """Writes the file atomically, so that concurrent readers see only a complete file."""
    path = inside(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.write_bytes(content)
    new.replace(path)


def listed(folder: Path) -> Mapping[str, Sequence[int]]:
    """Maps each file's name to its size and the time of its last change in ns. Omits links."""
    found = {}
    for path in folder.rglob("*"):
        with suppress(OSError):  # because the folder may be renamed at this moment
            about = path.lstat()
            if path.is_file() and not path.is_symlink():
                found[path.relative_to(folder).as_posix()] = (about.st_size, about.st_mtime_ns)
    return found


def is_unfinished(name: str) -> bool:
    """Whether the file belongs to an incomplete run."""
    return any(part.endswith(files.PARTIAL) for part in PurePosixPath(name).parts)


class Command:
    """A command and its folder. `close`, or the end of this process, kills the command and removes the folder."""

    def __init__(self) -> None:
        self._work = TemporaryDirectory(prefix="mlperf-harness-")
        self.folder = Path(self._work.name) / "results"
        self.folder.mkdir()
        self._log = Path(self._work.name) / "log"
        self._guard = Guard()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, words: Sequence[str], out: str) -> None:
        """Starts the command. out: name of the results folder, which is passed to the command as --out."""
        with self._log.open("wb") as log:
            self._process = start(
                COMMAND_MODULE,
                [*words, "--out", str(self.folder / out)],
                log=log,
                new_session=True,
            )
        self._guard.watch(self._process.pid)

    def state(self, log_from: int) -> dict[str, Any]:
        """Returns the command's state. status: None while the command is running. log: the command's output, starting
        at byte `log_from`.

        files: the files in `folder`, as `listed` returns them.
        """
        status = self._process.poll() if self._process is not None else None
        with self._log.open("rb") as file:
            file.seek(log_from)
            text = file.read(_LOG_LIMIT)
            log_to = file.tell()
        shown = text.decode("utf-8", "replace")
        return {
            "status": status,
            "log": shown,
            "log_to": log_to,
            "folder": str(self.folder),
            "files": listed(self.folder),
        }

    def interrupt(self) -> None:
        """Interrupts the command as Ctrl-C would, so that the command saves its measurements."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    def close(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._guard.watch(None)
        self._guard.close()
        self._work.cleanup()
