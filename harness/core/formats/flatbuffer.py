"""Reads FlatBuffers, the format of ExecuTorch files, field by field and without a schema.

The module does not need generated code, and refuses a faulty file before native code reads the file. Every offset is
checked. Functions raise ValueError if the bytes are not a FlatBuffer.
"""

import struct
from collections.abc import Sequence

_IDENTIFIER = slice(4, 8)
_VTABLE_HEAD_BYTES = 4
_MOST_ITEMS = 1 << 24


class Table:
    """A table in a buffer. Fields are numbered in the order in which the schema lists them. A union takes two field
    numbers.
    """

    def __init__(self, buffer: memoryview, position: int) -> None:
        self._buffer, self._position = buffer, position
        self._vtable = position - self._read("<i", position)
        self._vtable_bytes = self._read("<H", self._vtable)

    def number(self, field: int, kind: str, default: int = 0) -> int:
        """Returns a number. kind: a format character for `struct`, such as I for uint32."""
        position = self._place(field)
        return default if position is None else self._read(f"<{kind}", position)

    def table(self, field: int) -> "Table | None":
        position = self._place(field)
        return None if position is None else Table(self._buffer, self._target(position))

    def text(self, field: int) -> str:
        """Returns a string; '' if the field is absent."""
        return bytes(self.content(field)).decode()

    def content(self, field: int) -> memoryview:
        """Returns the bytes of a string or vector; empty if the field is absent."""
        start, count = self._vector(field, 1)
        return self._buffer[start : start + count]

    def numbers(self, field: int, kind: str) -> Sequence[int]:
        size = struct.calcsize(f"<{kind}")
        start, count = self._vector(field, size)
        return struct.unpack_from(f"<{count}{kind}", self._buffer, start)

    def tables(self, field: int) -> "list[Table]":
        start, count = self._vector(field, 4)
        places = range(start, start + 4 * count, 4)
        return [Table(self._buffer, self._target(place)) for place in places]

    def _place(self, field: int) -> int | None:
        entry = _VTABLE_HEAD_BYTES + 2 * field
        if entry + 2 > self._vtable_bytes:
            return None
        offset = self._read("<H", self._vtable + entry)
        return self._position + offset if offset else None

    def _vector(self, field: int, item_bytes: int) -> tuple[int, int]:
        """Returns the position of the first item and the number of items."""
        position = self._place(field)
        if position is None:
            return 0, 0
        head = self._target(position)
        count, start = self._read("<I", head), head + 4
        if count > _MOST_ITEMS * 64 or start + count * item_bytes > len(self._buffer):
            raise ValueError("a vector extends past the end of the buffer")
        return start, count

    def _target(self, position: int) -> int:
        return position + self._read("<I", position)

    def _read(self, kind: str, position: int) -> int:
        if position < 0 or position + struct.calcsize(kind) > len(self._buffer):
            raise ValueError("an offset points outside the buffer")
        (number,) = struct.unpack_from(kind, self._buffer, position)
        return int(number)


def root(buffer: memoryview, identifier: bytes) -> Table:
    """Returns the buffer's root table. identifier: start of the four-character file identifier."""
    if len(buffer) < _IDENTIFIER.stop or not bytes(buffer[_IDENTIFIER]).startswith(identifier):
        raise ValueError(
            f"it does not have the file identifier {identifier.decode()} of its format"
        )
    (offset,) = struct.unpack_from("<I", buffer)
    return Table(buffer, offset)
