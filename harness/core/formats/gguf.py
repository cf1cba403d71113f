"""Reads the header of a GGUF file: its values, and the shapes and number types of the weights."""

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from harness.core.formats.protobuf import mapped

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Maps the code of a value's type to its size in bytes."""

_WHOLE = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 10: "Q", 11: "q"}
"""Maps the code of an integer type to its form in Python's struct."""

_TEXT, _LIST = 8, 9
_MOST_AXES = 4
_CUT = "the file is truncated: fetch it again"

_TYPES = {
    0: "float32",
    1: "float16",
    30: "bfloat16",
    28: "float64",
    **dict.fromkeys((2, 3, 10, 11, 12, 16, 17, 18, 19, 20, 21, 22, 23, 29, 34, 35, 39), "int4"),
    **dict.fromkeys((6, 7, 8, 9, 13, 14, 15, 24), "int8"),
    25: "int16",
    26: "int32",
    27: "int64",
}
"""Maps ggml's type code to the narrowest NumPy type for the weights. Types with 5 or 6 bits become int8, and narrower
types become int4.
"""


class Weight(NamedTuple):
    shape: tuple[int, ...]
    dtype: str


class Header(NamedTuple):
    values: Mapping[str, int | str]
    """The whole numbers and texts in the file, by key."""
    lengths: Mapping[str, int]
    """The number of items of each list, by key."""
    weights: list[Weight]


class _Reader:
    def __init__(self, content: memoryview) -> None:
        self._content, self._at = content, 0

    def number(self, form: str) -> int:
        size = struct.calcsize(form)
        if self._at + size > len(self._content):
            raise ValueError(_CUT)
        (value,) = struct.unpack_from(f"<{form}", self._content, self._at)
        self._at += size
        return int(value)

    def skip(self, size: int) -> None:
        self._at += size
        if self._at > len(self._content):
            raise ValueError(_CUT)

    def skip_text(self) -> None:
        self.skip(self.number("Q"))

    def text(self) -> str:
        size = self.number("Q")
        begin = self._at
        self.skip(size)
        return bytes(self._content[begin : self._at]).decode("utf-8", "replace")

    def value(self, kind: int) -> int | str | None:
        """Returns a whole number or a text; skips a value of another type."""
        if kind == _TEXT:
            return self.text()
        if kind in _WHOLE:
            return self.number(_WHOLE[kind])
        if kind not in _SIZES:
            raise ValueError(f"a value has the type {kind}, which GGUF does not define")
        self.skip(_SIZES[kind])
        return None

    def list_length(self) -> int:
        """Skips a list, and returns its number of items."""
        inner, count = self.number("I"), self.number("Q")
        self._skip_list(inner, count)
        return count

    def _skip_list(self, kind: int, count: int) -> None:
        if kind in _SIZES:
            self.skip(_SIZES[kind] * count)
        elif kind == _TEXT:
            for _ in range(count):
                self.skip_text()
        else:
            raise ValueError("it has a list of lists, which llama.cpp does not read")


def read(path: Path) -> Header:
    """Returns the header; raises a ValueError with the reason if the file is not a GGUF file."""
    content = mapped(path)
    if bytes(content[:4]) != _MAGIC:
        raise ValueError(
            "it is not a GGUF file: convert the model with llama.cpp's convert_hf_to_gguf.py"
        )
    reader = _Reader(content)
    reader.skip(len(_MAGIC))
    version = reader.number("I")
    if version not in _VERSIONS:
        raise ValueError(f"it is a GGUF file of version {version}: convert it again, to version 3")
    tensors, count = reader.number("Q"), reader.number("Q")
    values: dict[str, int | str] = {}
    lengths: dict[str, int] = {}
    for _ in range(count):
        key, kind = reader.text(), reader.number("I")
        if kind == _LIST:
            lengths[key] = reader.list_length()
        elif (value := reader.value(kind)) is not None:
            values[key] = value
    return Header(values, lengths, [*_infos(reader, tensors)])


def _infos(reader: _Reader, count: int) -> Iterator[Weight]:
    for _ in range(count):
        reader.skip_text()
        axes = reader.number("I")
        if axes > _MOST_AXES:
            raise ValueError(f"a weight has {axes} axes, more than llama.cpp reads")
        shape = tuple(reader.number("Q") for _ in range(axes))
        kind = reader.number("I")
        reader.skip(8)  # skips the offset of the tensor's data
        yield Weight(shape, _TYPES.get(kind, f"ggml type {kind}"))
