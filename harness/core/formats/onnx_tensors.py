"""Reads the initializers in an ONNX file, each with its shape, number type, name and bytes."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.core.formats.protobuf import fields, mapped, messages, packed

_MODEL_GRAPH = 7
_GRAPH_INITIALIZER = 5
_DIMS, _DATA_TYPE, _NAME, _RAW_DATA = 1, 2, 8, 9
"""Field numbers in onnx.proto: ModelProto, GraphProto, TensorProto."""

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
"""Maps a TensorProto.DataType to a number type."""


class Tensor(NamedTuple):
    """Content of a TensorProto."""

    shape: Sequence[int]
    dtype: str
    """Number type; '' for a type that is not in `_DTYPES`, such as strings."""
    name: str
    raw: memoryview
    """Bytes of the values; empty if another field or file stores them."""


def initializers(path: Path) -> Iterator[Tensor]:
    """Yields the initializers. Raises OSError if the file cannot be read, and ValueError if it is not an ONNX file."""
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
