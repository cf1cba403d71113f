"""Holds one copy of an ONNX file's weights for all instances in a process."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np
import onnxruntime as ort

from harness.core.formats.onnx_tensors import initializers

_NOT_IN_NUMPY = ("", "bfloat16", "float8_e4m3fn", "float8_e5m2", "uint4", "int4")

_MIN_BYTES = 1024
"""Minimum size of a weight that is shared. Smaller weights stay in each session, because the optimiser folds small
shapes and scalars.
"""


class SharedWeights:
    """The weights of a file, by name. The weights must outlive every session that uses them."""

    def __init__(self, values: Mapping[str, ort.OrtValue]) -> None:
        self.values = values


_lock = threading.Lock()
_held: WeakValueDictionary[Path, SharedWeights] = WeakValueDictionary()


def shared_weights(path: Path) -> SharedWeights:
    """Returns the same object for the same file while any session holds the object."""
    with _lock:
        weights = _held.get(path)
        if weights is None:
            weights = SharedWeights(dict(_read(path)))
            _held[path] = weights
        return weights


def weight_types(path: Path) -> list[tuple[Sequence[int], str]]:
    """Returns the shape and number type of each initializer; [] if the file is not an ONNX file."""
    try:
        return [(tensor.shape, tensor.dtype) for tensor in initializers(path) if tensor.dtype]
    except (OSError, ValueError):
        return []


def _read(path: Path) -> Iterator[tuple[str, ort.OrtValue]]:
    """Yields the initializers whose values are raw bytes, as in all large files. The values are copied, so that they
    are aligned in memory.
    """
    for tensor in initializers(path):
        if tensor.dtype not in _NOT_IN_NUMPY and len(tensor.raw) >= _MIN_BYTES:
            values = np.array(np.frombuffer(tensor.raw, tensor.dtype).reshape(tensor.shape))
            yield tensor.name, ort.OrtValue.ortvalue_from_numpy(values)
