"""Any folder, read without trust.

Links are never followed, nothing is read but regular files of a sensible size, and whatever cannot be
read is a fact and not an exception.
"""

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

MOST_ENTRIES = 200_000
"""A whole round of all submitters has fewer; a wrong path (/, a home folder) has more."""

TEXT_LIMIT_BYTES = 1 << 20
LOG_LIMIT_BYTES = 64 << 20
"""Larger ones are found by their size, and not read."""


class Entry(NamedTuple):
    """kind: file, folder, link or other (a device, a pipe). size_bytes: of a file."""

    kind: str
    size_bytes: int


class Tree:
    """What lies under `root`, by path relative to it ('' is the root itself). Read once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.unreadable: list[str] = []
        self.is_cut = False
        self._entries: dict[str, Entry] = {}
        self._children: dict[str, list[str]] = {}
        self._walk()

    def _walk(self) -> None:
        waiting = [""]
        while waiting:
            folder = waiting.pop()
            names = self._children.setdefault(folder, [])
            try:
                with os.scandir(self.root / folder) as found:
                    for item in found:
                        path = f"{folder}/{item.name}" if folder else item.name
                        self._entries[path] = entry = self._entry(item, path)
                        names.append(item.name)
                        if entry.kind == "folder":
                            waiting.append(path)
            except OSError:
                self.unreadable.append(folder or ".")
            names.sort()
            if len(self._entries) > MOST_ENTRIES:
                self.is_cut = True
                return

    def _entry(self, item: "os.DirEntry[str]", path: str) -> Entry:
        try:
            info = item.stat(follow_symlinks=False)
        except OSError:
            self.unreadable.append(path)
            return Entry("other", 0)
        for kind, test in (
            ("link", stat.S_ISLNK),
            ("folder", stat.S_ISDIR),
            ("file", stat.S_ISREG),
        ):
            if test(info.st_mode):
                return Entry(kind, info.st_size)
        return Entry("other", 0)

    def all(self) -> Iterator[tuple[str, Entry]]:
        """Every path but the root's."""
        yield from sorted(self._entries.items())

    def kind(self, path: str) -> str | None:
        """None where there is nothing."""
        entry = self._entries.get(path)
        return entry.kind if entry else None

    def names(self, path: str, kind: str | None = None) -> list[str]:
        """What lies directly in a folder, sorted; [] where there is no such folder."""
        names = self._children.get(path, [])
        return [n for n in names if kind is None or self.kind(join(path, n)) == kind]

    def folders(self, path: str) -> list[str]:
        return self.names(path, "folder")

    def files(self, path: str) -> list[str]:
        return self.names(path, "file")

    def has(self, path: str) -> bool:
        return self.kind(path) == "file"

    def size_bytes(self, path: str) -> int:
        return self._entries[path].size_bytes if path in self._entries else 0

    def content(self, path: str, limit_bytes: int = TEXT_LIMIT_BYTES) -> bytes | None:
        """None where there is no such file, it is larger than the limit, or cannot be read."""
        if not self.has(path) or self.size_bytes(path) > limit_bytes:
            return None
        try:
            with (self.root / path).open("rb") as f:
                return f.read(limit_bytes + 1)
        except OSError:
            self.unreadable.append(path)
            return None

    def text(self, path: str) -> str:
        """Of a small file, whatever bytes it holds; '' where there is none."""
        return (self.content(path) or b"").decode("utf-8", errors="replace")

    def json(self, path: str, limit_bytes: int = TEXT_LIMIT_BYTES) -> Any:
        """The content of a file; None where it is not JSON, or larger than the limit."""
        content = self.content(path, limit_bytes)
        if content is None:
            return None
        try:
            return json.loads(content.decode("utf-8"), parse_constant=_no_constant)
        except (ValueError, RecursionError):
            return None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def is_folder(path: Path) -> bool:
    """False, too, for a name that cannot be one: too long, or in a folder nobody may enter."""
    try:
        return path.is_dir()
    except OSError:
        return False


def join(*parts: str) -> str:
    return "/".join(p for p in parts if p)


def shown(path: str) -> str:
    """A path as text for people: bytes that are no UTF-8 and control characters are escaped."""
    plain = path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in plain)
