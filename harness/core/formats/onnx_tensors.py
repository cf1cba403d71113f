"""Reads the initializers of an ONNX file: the shape, number type, name and bytes of each initializer."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.core.formats.protobuf import fields, mapped, messages, packed

_MODEL_GRAPH = 7
_GRAPH_INITIALIZER = 5
_DIMS, _DATA_TYPE, _NAME, _RAW_DATA = 1, 2, 8, 9
"""Field numbers of onnx.proto: ModelProto, GraphProto, TensorProto."""

_DTYPES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    5: "int16",
    6: "int32",
    7: "int64",
    10: "float16",
    11: "float64",
    16: "bfloat16",
    17: "float8_e4m3fn",
    19: "float8_e5m2",
    21: "uint4",
    22: "int4",
}
"""Maps TensorProto.DataType to a number type."""


class Tensor(NamedTuple):
    """A TensorProto."""

    shape: Sequence[int]
    dtype: str
    """'' for a type that is not in `_DTYPES`, e.g. strings."""
    name: str
    raw: memoryview
    """The values; empty if they are stored in another field or file."""


def initializers(path: Path) -> Iterator[Tensor]:
    """Yields the initializers. Raises OSError, and ValueError if the file is not an ONNX file."""
    for graph in messages(mapped(path), _MODEL_GRAPH):
        for message in messages(graph, _GRAPH_INITIALIZER):
            yield tensor_of(message)


def tensor_of(message: memoryview) -> Tensor:
    """Reads a TensorProto."""
    shape: list[int] = []
    dtype, name, raw = "", "", message[:0]
    for number, value in fields(message):
        if isinstance(value, int):
            if number == _DATA_TYPE:
                dtype = _DTYPES.get(value, "")
            elif number == _DIMS:
                shape.append(value)
        elif number == _DIMS:
            shape += packed(value)
        elif number == _NAME:
            name = bytes(value).decode(errors="replace")
        elif number == _RAW_DATA:
            raw = value
    return Tensor(shape, dtype, name, raw)
