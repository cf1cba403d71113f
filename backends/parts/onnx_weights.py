"""The weights in an ONNX file, held once for all instances of a process.

Read from the file's bytes (harness/core/formats/protobuf.py). The field numbers are those of onnx.proto
(ModelProto, GraphProto, TensorProto).
"""

import mmap
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
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
    for graph in messages(content, _MODEL_GRAPH):
        for tensor in messages(graph, _GRAPH_INITIALIZER):
            yield from _tensor(tensor)


def _tensor(message: memoryview) -> Iterator[tuple[str, ort.OrtValue]]:
    """One or none. The values are copied out of the map once, so that they are aligned."""
    shape: list[int] = []
    dtype, name, raw = None, "", message[:0]
    for number, value in fields(message):
        if isinstance(value, int):
            if number == _DATA_TYPE:
                dtype = _DTYPES.get(value)
            elif number == _DIMS:
                shape.append(value)
        elif number == _DIMS:
            shape += packed(value)
        elif number == _NAME:
            name = bytes(value).decode()
        elif number == _RAW_DATA:
            raw = value
    if dtype is not None and len(raw) >= _MIN_BYTES:
        values = np.array(np.frombuffer(raw, dtype).reshape(shape))
        yield name, ort.OrtValue.ortvalue_from_numpy(values)
