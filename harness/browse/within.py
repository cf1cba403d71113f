"""Opens files below a folder to which other people may have written. Refuses links, devices and endless files."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import BinaryIO

from harness.errors import ConfigError
from harness.results import run_folder

MOST_BYTES = 32 * 2**20
"""Larger files are not read into memory."""

MOST_FILES = 5_000
"""A run's folder with more entries is refused. A run has about thirty entries, but a study contains many runs."""

MOST_FILES_OF_STUDY = 200_000
"""A folder with many runs is refused if it contains more entries."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK is set, because opening a pipe must not block.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_file(root: Path, relative: str) -> BinaryIO:
    """Opens the regular file at `relative` below `root`. No part of the path may be a link.

    Raises OSError if the file does not exist, and ConfigError if the path leads outside the folder.
    """
    *parents, name = _parts(relative)
    # The user chose the root, so the root itself may be a link.
    at = os.open(root, _FOLDER & ~os.O_NOFOLLOW)
    try:
        for parent in parents:
            inner = os.open(parent, _FOLDER, dir_fd=at)
            os.close(at)
            at = inner
        descriptor = os.open(name, _FILE, dir_fd=at)
    finally:
        os.close(at)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ConfigError(f"{relative} is not a regular file")
    return os.fdopen(descriptor, "rb")


def read_file(root: Path, relative: str) -> bytes:
    """Returns the content of the file that `open_file` opens. Raises a ConfigError if the file is larger than
    MOST_BYTES.
    """
    with open_file(root, relative) as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ConfigError(f"{relative} has more than {MOST_BYTES:,} bytes")
    return content


def _parts(relative: str) -> list[str]:
    parts = relative.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise ConfigError(f"{relative!r} is not the path of a file in the folder")
    return parts


def check_folder(root: Path, relative: str, most: int = MOST_FILES) -> Path:
    """Returns the folder at `relative`, which can then be read safely by its path.

    Raises a ConfigError if the folder or one of its entries is a link, or is neither a file nor a folder. A link
    `latest` to the newest of several runs is allowed, because code that reads runs does not follow it. most: maximum
    number of entries.
    """
    folder = root
    for part in _parts(relative):
        folder /= part
        if not stat.S_ISDIR(folder.lstat().st_mode):
            raise ConfigError(f"{relative} is not a folder")
    for number, (name, mode) in enumerate(_entries(folder)):
        newest = PurePath(name).name == run_folder.LATEST and stat.S_ISLNK(mode)
        if not (newest or stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise ConfigError(f"{relative}/{name} is not read: it is a link, or not a regular file")
        if number >= most:
            raise ConfigError(
                f"{relative} has more than {most:,} entries: check that it is the folder of a run"
            )
    return folder


def _entries(folder: Path) -> Iterator[tuple[str, int]]:
    """Yields the path and mode of every entry below the folder. Does not follow links."""
    waiting = [folder]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                mode = entry.stat(follow_symlinks=False).st_mode
                yield os.path.relpath(entry.path, folder), mode
                if stat.S_ISDIR(mode):
                    waiting.append(Path(entry.path))
