"""Observes every operation that changes files below a folder, and can end the process at any of them."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_CHANGES = ("os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.symlink", "sqlite3.connect")
_FSYNC = "tests.fsync"
"""Name of our own audit event for fsync, because Python raises none."""

Act = Callable[[int, str, Path], None]
"""Called before each operation with the operation's number (from 1), its kind, and the path that it changes."""

_watching: list[Callable[[str, tuple[Any, ...]], None]] = []


def _hook(event: str, values: tuple[Any, ...]) -> None:
    if _watching:
        _watching[-1](event, values)


sys.addaudithook(_hook)  # the hook is added only once, because Python cannot remove it


def _changed(event: str, values: tuple[Any, ...]) -> Path | None:
    """Returns the path that the operation changes; None if it only reads."""
    if event == "open":
        path, _, flags = values
        writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        return Path(os.fsdecode(path)) if writes and isinstance(path, str | bytes) else None
    if event in _CHANGES or event == _FSYNC:
        return Path(os.fsdecode(values[0]))
    return None


@contextmanager
def writes(folder: Path, act: Act) -> Iterator[list[Path]]:
    """Calls `act` before each operation that changes something in `folder`. Yields the list of changed paths."""
    seen: list[Path] = []
    is_acting = [False]

    def on_event(event: str, values: tuple[Any, ...]) -> None:
        path = None if is_acting[0] else _changed(event, values)
        if path is not None and path.is_relative_to(folder):
            seen.append(path)
            is_acting[0] = True  # the flag hides the operations of `act` itself
            try:
                act(len(seen), event, path)
            finally:
                is_acting[0] = False

    fsync = os.fsync

    def watched_fsync(fd: int) -> None:
        sys.audit(_FSYNC, str(Path(f"/proc/self/fd/{fd}").readlink()))
        fsync(fd)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", watched_fsync)
        _watching.append(on_event)
        try:
            yield seen
        finally:
            _watching.pop()
