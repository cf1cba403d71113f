"""Reads an untrusted folder tree.

Never follows links, reads only regular files up to a size limit, and records an unreadable entry instead of raising an
error.
"""

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

MOST_ENTRIES = 200_000
"""A tree with more entries is refused. All submissions to a round together have fewer entries; a wrong path, such as /
or a home folder, has more.
"""

TEXT_LIMIT_BYTES = 1 << 20
LOG_LIMIT_BYTES = 64 << 20
"""Maximum size of a log. The contents of larger files are not read, and only their sizes are reported."""


class Entry(NamedTuple):
    kind: str
    """`file`, `folder`, `link`, or `other` (such as a device or a pipe)."""
    size_bytes: int
    """0 for an unreadable entry."""


class Tree:
    """All entries below `root`, each read only once. Paths are relative to `root`, which is ''."""

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
                with os.scandir(self.root / folder) as items:
                    for item in items:
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
        """Yields every entry except the root, sorted by path."""
        yield from sorted(self._entries.items())

    def kind(self, path: str) -> str | None:
        entry = self._entries.get(path)
        return entry.kind if entry else None

    def names(self, path: str, kind: str | None = None) -> list[str]:
        """Returns the sorted names of the entries directly in a folder; [] if the folder does not exist."""
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
        """Returns the file's bytes; None if it is missing, larger than the limit, or unreadable."""
        if not self.has(path) or self.size_bytes(path) > limit_bytes:
            return None
        try:
            with (self.root / path).open("rb") as f:
                return f.read(limit_bytes + 1)
        except OSError:
            self.unreadable.append(path)
            return None

    def text(self, path: str) -> str:
        """Returns a small file's text, in which replacement characters stand for invalid UTF-8; '' if the file is not
        readable.
        """
        return (self.content(path) or b"").decode("utf-8", errors="replace")

    def json(self, path: str, limit_bytes: int = TEXT_LIMIT_BYTES) -> Any:
        """Returns the parsed file; None if it is not valid JSON or larger than the limit."""
        content = self.content(path, limit_bytes)
        if content is None:
            return None
        try:
            return json.loads(content.decode("utf-8"), parse_constant=_no_constant)
        except (ValueError, RecursionError):
            return None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not valid JSON")


def is_folder(path: Path) -> bool:
    """Returns the result of Path.is_dir. For a path that is too long or not accessible, returns False instead of
    raising an error.
    """
    try:
        return path.is_dir()
    except OSError:
        return False


def join(*parts: str) -> str:
    return "/".join(p for p in parts if p)


def shown(path: str) -> str:
    """Returns the path for display in messages, with control characters and invalid UTF-8 escaped."""
    return "".join(c if c.isprintable() else _escaped(c) for c in path)


def _escaped(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # a byte that is not valid UTF-8
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()
