"""The weights in an ONNX file, held once for all instances of a process.

Read from the file's bytes instead of with the `onnx` package, which is no dependency of ONNX
Runtime, and which would hold the file three times while it is parsed. The field numbers are those
of onnx.proto (ModelProto, GraphProto, TensorProto); the encoding is protobuf's wire format.
"""

import mmap
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np
import onnxruntime as ort

_MODEL_GRAPH = 7
_GRAPH_INITIALIZER = 5
_DIMS, _DATA_TYPE, _NAME, _RAW_DATA = 1, 2, 8, 9
_DTYPES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    5: "int16",
    6: "int32",
    7: "int64",
    10: "float16",
    11: "float64",
}
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MIN_BYTES = 1024
"""Smaller ones stay with each session: they are shapes and scalars that the optimiser folds."""


class SharedWeights:
    """values: name -> tensor, which must live as long as the sessions that were given it."""

    def __init__(self, values: Mapping[str, ort.OrtValue]) -> None:
        self.values = values


_lock = threading.Lock()
_held: WeakValueDictionary[Path, SharedWeights] = WeakValueDictionary()


def shared_weights(path: Path) -> SharedWeights:
    """The same object for the same file, as long as somebody holds it."""
    with _lock:
        weights = _held.get(path)
        if weights is None:
            weights = SharedWeights(dict(_read(path)))
            _held[path] = weights
        return weights


def _read(path: Path) -> Iterator[tuple[str, ort.OrtValue]]:
    """The initializers whose values lie in the file as raw bytes, as they do in all large ones."""
    with path.open("rb") as file:  # the map outlives it, and goes with its last slice
        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    for graph in _of(content, _MODEL_GRAPH):
        for tensor in _of(graph, _GRAPH_INITIALIZER):
            yield from _tensor(tensor)


def _tensor(message: memoryview) -> Iterator[tuple[str, ort.OrtValue]]:
    """One or none. The values are copied out of the map once, so that they are aligned."""
    shape: list[int] = []
    dtype, name, raw = None, "", message[:0]
    for number, value in _fields(message):
        if isinstance(value, int):
            if number == _DATA_TYPE:
                dtype = _DTYPES.get(value)
            elif number == _DIMS:
                shape.append(value)
        elif number == _DIMS:
            shape += _packed(value)
        elif number == _NAME:
            name = bytes(value).decode()
        elif number == _RAW_DATA:
            raw = value
    if dtype is not None and len(raw) >= _MIN_BYTES:
        values = np.array(np.frombuffer(raw, dtype).reshape(shape))
        yield name, ort.OrtValue.ortvalue_from_numpy(values)


def _packed(numbers: memoryview) -> Iterator[int]:
    """Repeated numbers in one field, as newer writers put them."""
    position = 0
    while position < len(numbers):
        number, position = _varint(numbers, position)
        yield number


def _of(message: memoryview, wanted: int) -> Iterator[memoryview]:
    return (v for n, v in _fields(message) if n == wanted and isinstance(v, memoryview))


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Number and value of each field; numbers of fixed width are skipped, none is needed here."""
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, position = _varint(message, position)
            yield number, value
        elif kind == _BYTES:
            size, position = _varint(message, position)
            if position + size > len(message):
                raise ValueError("the file is cut")
            yield number, message[position : position + size]
            position += size
        elif kind in (_FIXED32, _FIXED64):
            position += 4 if kind == _FIXED32 else 8
        else:
            raise ValueError("not a protobuf message")


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    """-> the number at `position`, and where the next thing begins."""
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(message):
            raise ValueError("the file is cut")
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("not a protobuf message")
