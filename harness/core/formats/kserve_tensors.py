"""Reads and writes tensors of the Open Inference Protocol v2: datatypes, raw bytes, JSON values.

Source: github.com/kserve/open-inference-protocol, specification/protocol/inference_rest.md, and
github.com/triton-inference-server/server, docs/protocol/extension_binary_data.md.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from harness.types import Array

DATATYPES = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
    "BYTES": "string",
}
"""Datatype -> number type, as TensorSpec has it. BF16 is missing: NumPy has no such type."""

_BY_DTYPE = {dtype: name for name, dtype in DATATYPES.items()}
_LENGTH = struct.Struct("<I")
_KINDS = {"b": "b", "u": "iu", "i": "iu", "f": "iuf"}
"""Kind of a tensor -> kinds that its JSON values may have. NumPy would turn 1.5 into 1, and "1" into 1."""


def datatype_of(dtype: str) -> str | None:
    """The datatype of a number type by NumPy's name, or of `string`; None where the protocol has none."""
    return _BY_DTYPE.get(dtype)


def datatype_of_array(array: Array) -> str | None:
    if (
        not array.dtype.isnative
    ):  # the protocol's order, little endian, is that of every machine here
        return None
    return "BYTES" if array.dtype.kind in "OSU" else _BY_DTYPE.get(array.dtype.name)


def texts_from(raw: bytes | memoryview, count: int) -> Array:
    """(count,) objects from BYTES: a length of 4 bytes, little endian, before each text.

    Raises a ValueError where the bytes are not those of `count` texts.
    """
    texts: list[str] = []
    at = 0
    while at < len(raw):
        if at + _LENGTH.size > len(raw):
            raise ValueError("BYTES end within a length")
        (length,) = _LENGTH.unpack_from(raw, at)
        at += _LENGTH.size
        if at + length > len(raw):
            raise ValueError("BYTES end within an element")
        texts.append(str(raw[at : at + length], "utf-8"))
        at += length
    if len(texts) != count:
        raise ValueError(f"BYTES hold {len(texts)} elements, the shape has {count}")
    return _objects(texts)


def raw_texts(array: Array) -> bytes:
    """The inverse of `texts_from`, in C order. Elements are texts or bytes."""
    encoded = (e if isinstance(e, bytes) else str(e).encode() for e in array.ravel().tolist())
    return b"".join(_LENGTH.pack(len(element)) + element for element in encoded)


def from_json(data: object, datatype: str, shape: Sequence[int]) -> Array:
    """An array from flat or nested JSON values. Raises a ValueError where they do not fit."""
    if not isinstance(data, list):
        raise ValueError("data is no list")
    if datatype == "BYTES":
        texts = list(_leaves(data))
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("BYTES in JSON are texts")
        return _reshaped(_objects(texts), shape)
    values = np.asarray(data)  # raises a ValueError for lists of different lengths
    dtype = np.dtype(DATATYPES[datatype])
    if (
        dtype == np.uint64 and values.dtype.kind == "f"
    ):  # NumPy's type of small and large integers together
        values = _large_integers(data, values.shape)
    if values.size and values.dtype.kind not in _KINDS[dtype.kind]:
        raise ValueError(f"data holds values that are not {datatype}")
    try:
        with np.errstate(over="raise"):
            converted: Array = values.astype(dtype)
    except FloatingPointError:
        raise ValueError(f"a value does not fit {datatype}") from None
    if dtype.kind in "iu" and not np.array_equal(converted, values):
        raise ValueError(f"a value does not fit {datatype}")
    return _reshaped(converted, shape)


def _large_integers(data: list[Any], shape: Sequence[int]) -> Array:
    leaves = list(_leaves(data))
    if not all(type(value) is int for value in leaves):
        raise ValueError("data holds values that are not UINT64")
    try:
        return np.array(leaves, np.uint64).reshape(shape)
    except OverflowError:
        raise ValueError("a value does not fit UINT64") from None


def to_json(array: Array) -> list[Any]:
    """Flat values in C order. Raises a ValueError where a value has no JSON."""
    flat: list[Any] = array.ravel().tolist()
    if array.dtype.kind in "OSU":
        return [e.decode() if isinstance(e, bytes) else str(e) for e in flat]
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError("JSON has no NaN and no infinity: ask for binary data")
    return flat


def _leaves(data: Iterable[Any]) -> Iterable[Any]:
    for each in data:
        if isinstance(each, list):
            yield from _leaves(each)
        else:
            yield each


def _objects(texts: Sequence[Any]) -> Array:
    array = np.empty(len(texts), object)
    array[:] = texts
    return array


def _reshaped(array: Array, shape: Sequence[int]) -> Array:
    try:
        return np.ascontiguousarray(array).reshape(shape)
    except ValueError:
        raise ValueError(f"data holds {array.size} values, the shape {[*shape]} differs") from None
