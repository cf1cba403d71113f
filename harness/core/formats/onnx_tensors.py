"""Reads the initializers in an ONNX file, each with its shape, number type, name and bytes, and the names of the files
that hold further tensors.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
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

_INSIDE: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
}
"""Maps a message type of onnx.proto to field numbers, and each field number to the message type in that field. The
table covers every path that leads to a tensor.
"""

_SINGULAR: Mapping[str, Sequence[int]] = {
    "model": (7,),
    "training": (1, 2),
    "sparse": (1, 2),
    "attribute": (5, 6, 22),
}
"""Fields that occur once per message. Parsers merge the parts if a file repeats such a field."""

_EXTERNAL_DATA, _DATA_LOCATION, _EXTERNAL = 13, 14, 1
"""Field numbers of TensorProto, and the value of data_location that stands for data in a separate file."""

_KEY, _VALUE = 1, 2


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


def external_data(content: memoryview) -> set[str]:
    """Returns the names of an ONNX model's external files. Raises ValueError if the content is not an ONNX model."""
    names: set[str] = set()
    todo = [("model", content)]
    while todo:
        kind, message = todo.pop()
        if kind == "tensor":
            names.update(_location(message))
            continue
        inside = _INSIDE[kind]
        once: dict[int, memoryview] = {}
        for number, value in fields(message):
            if number not in inside or not isinstance(value, memoryview):
                continue
            if number not in _SINGULAR.get(kind, ()):
                todo.append((inside[number], value))
            elif number in once:  # the parts of a repeated message form a single message
                once[number] = memoryview(bytes(once[number]) + bytes(value))
            else:
                once[number] = value
        todo += ((inside[number], value) for number, value in once.items())
    return names


def _location(tensor: memoryview) -> Iterator[str]:
    """Yields the tensor's file name, decoded with os.fsdecode because it may not be UTF-8."""
    is_external, locations = False, set[str]()
    for number, value in fields(tensor):
        if number == _DATA_LOCATION:
            is_external = value == _EXTERNAL
        elif number == _EXTERNAL_DATA and isinstance(value, memoryview):
            entry = {
                n: os.fsdecode(bytes(v)) for n, v in fields(value) if isinstance(v, memoryview)
            }
            if entry.get(_KEY) == "location":
                locations.add(entry.get(_VALUE, ""))
    if is_external:
        yield from locations - {""}
