"""Reads an .mnn file, a FlatBuffer: its inputs, its outputs, its operations and the types of its weights.

Source: the schema of MNN (MNN.fbs). MNN's Python interface reports only the current shapes.
"""

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.core.formats.protobuf import mapped
from harness.profiler import WiredNode

_OPS, _OUTPUTS, _TENSORS = 3, 4, 7
"""Field numbers of Net."""

_READS, _KIND, _MAIN, _NAME, _WRITES, _TYPE = range(6)
"""Field numbers of Op, whose parameters are a union: a kind and a table."""

_DIMS = 0
"""Field number of Input."""

_COMMON, _WEIGHT, _, _QUANTISED, _SYMMETRIC = range(5)
"""Field numbers of Convolution2D, which also stores the weights of matrix products."""

_STRIDE_X, _STRIDE_Y, _ROWS = 4, 5, 10
"""Field numbers of Convolution2DCommon; the last is the number of output channels."""

_BLOB_DIMS, _BLOB_REALS = 0, 7
"""Field numbers of Blob, which is a constant."""

_BUFFER = 0
"""Field number of IDSTQuan: the packed weights."""

_BLOB, _CONVOLUTION = 7, 9
"""Kinds in the union: Blob, Convolution2D."""

_EXTERNAL = 6
"""Field number of Convolution2D: the position of its weights in a second file."""

INPUT = 34
"""The type number of the operation Input."""


_KINDS = {
    7: "BinaryOp",
    10: "Concat",
    28: "Flatten",
    66: "Rank",
    73: "Reshape",
    80: "Shape",
    84: "SliceTf",
    107: "Unsqueeze",
    129: "ConvertTensor",
}
"""Types of operations that MNN computes when it resizes a session; such operations do not occur in a run."""


def kind_name(number: int) -> str:
    return _KINDS.get(number, f"type {number}")


class Operation(NamedTuple):
    """An operation of the network."""

    node: WiredNode
    type: int
    """Number of the type in MNN's list of operations."""
    dims: tuple[int, ...]
    """Sizes that an input records, with -1 for an open size; () for other operations."""
    weights: tuple[tuple[int, ...], str] | None
    """Shape and number type; None if the file stores no weights for the operation."""
    strides: tuple[int, ...] = ()
    """Strides of a convolution; () for other operations."""
    is_external: bool = False
    """True if the weights are in a second file, which this module does not read."""


class MnnFile(NamedTuple):
    """The content of the file."""

    operations: Sequence[Operation]
    outputs: tuple[str, ...]
    """Names of the outputs that the converter recorded."""

    @property
    def inputs(self) -> dict[str, tuple[int, ...]]:
        """Maps an input to the sizes that the file records."""
        return {one.node.outputs[0]: one.dims for one in self.operations if one.type == INPUT}


def read(path: Path) -> MnnFile:
    """Reads the file; raises a ValueError if it is incomplete or has a different format."""
    try:
        return _read(_Buffer(mapped(path)))
    except (struct.error, IndexError, OverflowError, UnicodeDecodeError):
        raise ValueError("it is not a complete .mnn file: convert it again") from None


class _Buffer:
    """The bytes of a FlatBuffer, with functions that follow its offsets. A position of 0 stands for an absent field."""

    def __init__(self, content: memoryview) -> None:
        self._content = content

    def number(self, at: int) -> int:
        (value,) = struct.unpack_from("<i", self._content, self._inside(at))
        return int(value)

    def _inside(self, at: int) -> int:
        if at < 0:  # because Python would count from the end
            raise IndexError(at)
        return at

    def byte(self, at: int) -> int:
        return self._content[self._inside(at)]

    def field(self, table: int, number: int) -> int:
        """Returns the position of a table's field."""
        fields = table - self.number(table)
        (size,) = struct.unpack_from("<H", self._content, self._inside(fields))
        place = 4 + 2 * number
        if place >= size:
            return 0
        (offset,) = struct.unpack_from("<H", self._content, fields + place)
        return table + offset if offset else 0

    def followed(self, at: int) -> int:
        """Returns the position to which the offset at `at` points; 0 if the field is absent."""
        return at + self.number(at) if at else 0

    def vector(self, at: int) -> tuple[int, int]:
        """Returns the length of a field's vector and the position of the first element; (0, 0) without the field."""
        start = self.followed(at)
        if not start:
            return 0, 0
        length = self.number(start)
        if not 0 <= length <= len(self._content) - start:
            raise IndexError(length)
        return length, start + 4

    def numbers(self, at: int) -> tuple[int, ...]:
        length, first = self.vector(at)
        return struct.unpack_from(f"<{length}i", self._content, first)

    def tables(self, at: int) -> Iterator[int]:
        length, first = self.vector(at)
        for index in range(length):
            yield self.followed(first + 4 * index)

    def text(self, start: int) -> str:
        """Returns the string that begins at `start`; '' if the field is absent."""
        if not start:
            return ""
        length = self.number(start)
        if not 0 <= length <= len(self._content) - start - 4:
            raise IndexError(length)
        return bytes(self._content[start + 4 : start + 4 + length]).decode()


def _read(buffer: _Buffer) -> MnnFile:
    net = buffer.number(0)
    names = [buffer.text(start) for start in buffer.tables(buffer.field(net, _TENSORS))]
    tables = buffer.tables(buffer.field(net, _OPS))
    operations = [_operation(buffer, table, names) for table in tables]
    if not operations:
        raise IndexError("it has no operation")
    outputs = tuple(buffer.text(start) for start in buffer.tables(buffer.field(net, _OUTPUTS)))
    return MnnFile(operations, outputs)


def _operation(buffer: _Buffer, table: int, names: Sequence[str]) -> Operation:
    def tensors(field: int) -> tuple[str, ...]:
        return tuple(names[at] for at in buffer.numbers(buffer.field(table, field)) if at >= 0)

    at = buffer.field(table, _TYPE)
    kind = buffer.number(at) if at else 0
    main = buffer.followed(buffer.field(table, _MAIN))
    name = buffer.text(buffer.followed(buffer.field(table, _NAME)))
    node = WiredNode(name, "", "", tensors(_READS), tensors(_WRITES))
    dims = buffer.numbers(buffer.field(main, _DIMS)) if kind == INPUT and main else ()
    of_kind = buffer.field(table, _KIND)
    union = buffer.byte(of_kind) if of_kind and main else 0
    if union == _CONVOLUTION:
        common = buffer.followed(buffer.field(main, _COMMON))
        strides = tuple(_number(buffer, common, key, 1) for key in (_STRIDE_Y, _STRIDE_X))
        is_external = bool(buffer.vector(buffer.field(main, _EXTERNAL))[0])
        weights = _weights(buffer, main, _number(buffer, common, _ROWS, 0))
        return Operation(node, kind, dims, weights, strides, is_external)
    return Operation(node, kind, dims, _constant(buffer, main) if union == _BLOB else None)


def _number(buffer: _Buffer, table: int, field: int, default: int) -> int:
    at = buffer.field(table, field) if table else 0
    return buffer.number(at) if at else default


def _constant(buffer: _Buffer, main: int) -> tuple[tuple[int, ...], str] | None:
    """Returns the shape and number type of a Blob of real numbers; None for other Blobs, which are shapes and indices."""
    count, _ = buffer.vector(buffer.field(main, _BLOB_REALS))
    return (buffer.numbers(buffer.field(main, _BLOB_DIMS)), "float32") if count else None


def _weights(buffer: _Buffer, main: int, rows: int) -> tuple[tuple[int, ...], str] | None:
    """Returns the weights of a Convolution2D. Without a quantisation scheme for activations, MNN expands packed weights
    on loading.
    """
    count, _ = buffer.vector(buffer.field(main, _WEIGHT))
    if not count and (packed := buffer.followed(buffer.field(main, _QUANTISED))):
        count, _ = buffer.vector(buffer.field(packed, _BUFFER))
    if rows < 1 or not count:
        return None
    return (rows, max(1, count // rows)), "int8" if buffer.field(main, _SYMMETRIC) else "float32"
