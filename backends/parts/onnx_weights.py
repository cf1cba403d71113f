"""Reads the weights in an ONNX file and holds them once for all instances of a process.

Read from the file's bytes (harness/core/formats/protobuf.py). The field numbers are those of onnx.proto
(ModelProto, GraphProto, TensorProto).
"""

import mmap
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import onnxruntime as ort

from harness.core.formats.protobuf import fields, messages, packed

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
_OTHER_TYPES = {16: "bfloat16", 17: "float8_e4m3fn", 19: "float8_e5m2", 21: "uint4", 22: "int4"}
"""Number types that NumPy lacks."""

_MIN_BYTES = 1024
"""Smaller weights stay in each session: they are shapes and scalars that the optimiser folds."""


class SharedWeights:
    """values: name -> tensor, which must outlive the sessions that use it."""

    def __init__(self, values: Mapping[str, ort.OrtValue]) -> None:
        self.values = values


_lock = threading.Lock()
_held: WeakValueDictionary[Path, SharedWeights] = WeakValueDictionary()


def shared_weights(path: Path) -> SharedWeights:
    """Returns the same object for the same file while any session holds it."""
    with _lock:
        weights = _held.get(path)
        if weights is None:
            weights = SharedWeights(dict(_read(path)))
            _held[path] = weights
        return weights


def weight_types(path: Path) -> list[tuple[Sequence[int], str]]:
    """Shape and number type of each initializer, [] where the file is not an ONNX file."""
    try:
        tensors = [_tensor(message) for message in _initializers(path)]
    except (OSError, ValueError):
        return []
    kinds = _DTYPES | _OTHER_TYPES
    return [(tensor.shape, kinds[tensor.type]) for tensor in tensors if tensor.type in kinds]


def _read(path: Path) -> Iterator[tuple[str, ort.OrtValue]]:
    """The initializers whose values are raw bytes, as in all large files. Copying aligns the values."""
    for shape, kind, name, raw in map(_tensor, _initializers(path)):
        if kind in _DTYPES and len(raw) >= _MIN_BYTES:
            values = np.array(np.frombuffer(raw, _DTYPES[kind]).reshape(shape))
            yield bytes(name).decode(), ort.OrtValue.ortvalue_from_numpy(values)


def _initializers(path: Path) -> Iterator[memoryview]:
    with path.open("rb") as file:  # the map outlives it, and goes with its last slice
        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    for graph in messages(content, _MODEL_GRAPH):
        yield from messages(graph, _GRAPH_INITIALIZER)


class _Tensor(NamedTuple):
    """A TensorProto. type: its code in onnx.proto. raw: its values if they lie in this file."""

    shape: Sequence[int]
    type: int
    name: memoryview
    raw: memoryview


def _tensor(message: memoryview) -> _Tensor:
    shape: list[int] = []
    kind, name, raw = 0, message[:0], message[:0]
    for number, value in fields(message):
        if isinstance(value, int):
            if number == _DATA_TYPE:
                kind = value
            elif number == _DIMS:
                shape.append(value)
        elif number == _DIMS:
            shape += packed(value)
        elif number == _NAME:
            name = value
        elif number == _RAW_DATA:
            raw = value
    return _Tensor(shape, kind, name, raw)
