"""Reads FlatBuffers, the format of LiteRT files, field by field and without a schema.

Every function raises ValueError for bytes that are no FlatBuffer, and reads nothing outside of them.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple


class Table(NamedTuple):
    """A table that begins at byte `at` of `content`. A field is its number in the schema."""

    content: memoryview
    at: int

    def number(self, field: int, kind: str = "i") -> int:
        """kind: a format of `struct`: b, B, i, I or Q. 0, the default, where the field is left out."""
        place = self._place(field)
        return _unpacked(self.content, kind, place) if place else 0

    def table(self, field: int) -> "Table | None":
        place = self._place(field)
        return Table(self.content, _pointed(self.content, place)) if place else None

    def tables(self, field: int) -> "Iterator[Table]":
        for place in self._items(field, 4):
            yield Table(self.content, _pointed(self.content, place))

    def numbers(self, field: int) -> list[int]:
        """A vector of signed 32-bit numbers."""
        return [_unpacked(self.content, "i", place) for place in self._items(field, 4)]

    def count(self, field: int) -> int:
        """Number of elements of a vector of any type."""
        place = self._place(field)
        return _unpacked(self.content, "I", _pointed(self.content, place)) if place else 0

    def _items(self, field: int, size_bytes: int) -> range:
        place = self._place(field)
        if not place:
            return range(0)
        first = _pointed(self.content, place) + 4
        end = first + size_bytes * self.count(field)
        if end > len(self.content):
            raise ValueError("the file is cut")
        return range(first, end, size_bytes)

    def _place(self, field: int) -> int:
        """Position of the field's bytes; 0 where the field is left out."""
        fields_at = self.at - _unpacked(self.content, "i", self.at)
        if 4 + 2 * field >= _unpacked(self.content, "H", fields_at):
            return 0
        offset = _unpacked(self.content, "H", fields_at + 4 + 2 * field)
        return self.at + offset if offset else 0


def root(content: memoryview) -> Table:
    return Table(content, _pointed(content, 0))


def _pointed(content: memoryview, place: int) -> int:
    return place + _unpacked(content, "I", place)


def _unpacked(content: memoryview, kind: str, place: int) -> int:
    if place < 0 or place + struct.calcsize("<" + kind) > len(content):
        raise ValueError("the file is cut, or no FlatBuffer")
    (value,) = struct.unpack_from("<" + kind, content, place)
    return int(value)
