"""Reads and writes tensors in the Open Inference Protocol v2: datatypes, raw bytes, JSON values.

Source: github.com/kserve/open-inference-protocol, specification/protocol/inference_rest.md, and
github.com/triton-inference-server/server, docs/protocol/extension_binary_data.md.
"""

import reprlib
import struct
from collections.abc import Sequence
from math import nan, prod
from typing import Any

import numpy as np

from harness.errors import one_line
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
"""Maps a datatype to TensorSpec's name for the number type. BF16 is missing because NumPy does not support it."""

_BY_DTYPE = {dtype: name for name, dtype in DATATYPES.items()}
_LENGTH = struct.Struct("<I")
_CODES = {
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "FP16": "e",
    "FP32": "f",
    "FP64": "d",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "BF16": "f",
}
"""Maps a datatype to its code in Python's struct module. NumPy uses the same codes for the same sizes."""


def datatype_of(dtype: str) -> str | None:
    """Returns the datatype for a NumPy number type or for `string`; None if the protocol defines no such datatype."""
    return _BY_DTYPE.get(dtype)


def datatype_of_array(array: Array) -> str | None:
    # Only little-endian arrays fit the protocol; every supported machine is little-endian.
    if not array.dtype.isnative:
        return None
    return "BYTES" if array.dtype.kind in "OSU" else _BY_DTYPE.get(array.dtype.name)


def texts_from(raw: bytes | memoryview, count: int) -> Array:
    """Decodes BYTES, in which a 4-byte little-endian length precedes each string, to an array of `str` objects with
    shape (count,).

    Bytes that are not valid UTF-8 become surrogate escapes, as in Python's file names. Raises a ValueError if the
    bytes do not encode exactly `count` strings.
    """
    texts: list[str] = []
    at = 0
    while at + _LENGTH.size <= len(raw):
        (length,) = _LENGTH.unpack_from(raw, at)
        at += _LENGTH.size
        texts.append(str(raw[at : at + length], "utf-8", "surrogateescape"))
        at += length
    if at != len(raw) or len(texts) != count:
        raise ValueError(f"{len(raw)} bytes do not contain exactly {count} length-prefixed strings")
    return _objects(texts)


def raw_texts(array: Array) -> bytes:
    """Encodes an array so that `texts_from` returns its elements in C order. The elements may be strings or bytes."""
    encoded = (
        e if isinstance(e, bytes) else str(e).encode("utf-8", "surrogateescape")
        for e in array.ravel().tolist()
    )
    return b"".join(_LENGTH.pack(len(element)) + element for element in encoded)


def from_json(
    data: object, datatype: str, shape: Sequence[int], *, null_is_nan: bool = True
) -> Array:
    """Returns the values in a JSON list, which may be flat or nested according to the shape.

    Raises a ValueError if the values do not match the shape or datatype. BOOL values may be written as 0 and 1. NaN may
    be written as NaN or, if null_is_nan, as null, as servers that use orjson do.
    """
    if not isinstance(data, list):
        raise ValueError(f"data is not a list, but {one_line(reprlib.repr(data))}")
    flat = _flat(data, shape)
    if flat is None or len(flat) != prod(shape):
        raise ValueError(f"data does not fit the shape {[*shape]}")
    if datatype == "BYTES":
        if not all(type(value) is str for value in flat):
            raise ValueError("BYTES in JSON must be strings")
        return _objects(flat).reshape(shape)
    return _numbers(datatype, flat, null_is_nan).reshape(shape)


def _flat(data: list[Any], shape: Sequence[int]) -> list[Any] | None:
    """Returns the values in a flat list, or in lists nested according to the shape; None for any other nesting."""
    if not data or not isinstance(data[0], list):
        return data
    if len(data) != shape[0]:
        return None
    level = data
    for size in shape[1:]:
        if any(not isinstance(row, list) or len(row) != size for row in level):
            return None
        level = [value for row in level for value in row]
    return level


def _numbers(datatype: str, values: list[Any], null_is_nan: bool) -> Array:
    types = set(map(type, values))
    wrong = ValueError(f"data contains values that are not {datatype}")
    if datatype == "BOOL":
        if not types <= {bool, int} or any(value not in (0, 1) for value in values):
            raise wrong
        return np.array(values, bool)
    code = _CODES[datatype]
    nulls = {type(None)} if null_is_nan else set()
    if not types <= ({int, float, *nulls} if code in "efd" else {int}):
        raise wrong
    if type(None) in types:
        values = [nan if value is None else value for value in values]
    try:
        # struct.pack checks the range of each value.
        packed = struct.pack(f"<{len(values)}{code}", *values)
    except (struct.error, OverflowError):
        raise ValueError(f"a value does not fit {datatype}") from None
    return np.frombuffer(bytearray(packed), f"<{code}")


def to_json(array: Array) -> list[Any]:
    """Returns the values as a flat list in C order. Raises a ValueError if JSON cannot represent a value."""
    flat: list[Any] = array.ravel().tolist()
    if array.dtype.kind in "OSU":
        return [e.decode() if isinstance(e, bytes) else str(e) for e in flat]
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError("JSON cannot represent NaN or infinity: request binary data")
    return flat


def _objects(texts: Sequence[Any]) -> Array:
    array = np.empty(len(texts), object)
    array[:] = texts
    return array
