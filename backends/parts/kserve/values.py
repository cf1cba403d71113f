"""Reads the values of outputs from bytes or JSON: everything a server may get wrong is checked."""

import reprlib
import struct
from collections.abc import Sequence
from math import nan, prod
from typing import Any

import numpy as np

from harness.backends.parts.kserve.datatypes import ON_THE_WIRE, TEXT, Tensor
from harness.errors import one_line
from harness.remote import BadAnswer
from harness.types import Array

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
"""Datatype -> the code of Python's struct. NumPy has the same codes for the same sizes."""


def from_bytes(output: Tensor, shape: tuple[int, ...], values: memoryview) -> Array:
    """The values of a binary tensor, copied. Raises BadAnswer where they are not the output's."""
    datatype = output.datatype
    if datatype == TEXT:
        return _texts(output.name, shape, bytes(values))
    numbers = np.ndarray(shape, ON_THE_WIRE[datatype], values)
    if datatype == "BF16":  # the upper half of a float32
        return (numbers.astype(np.uint32) << 16).view(np.float32)
    if datatype == "BOOL" and numbers.view(np.uint8).max(initial=0) > 1:
        raise BadAnswer(f"output {output.name!r} has values that are neither true nor false")
    return numbers.copy()


def _texts(name: str, shape: tuple[int, ...], values: bytes) -> Array:
    texts = []
    at = 0
    while at + 4 <= len(values):
        end = at + 4 + int.from_bytes(values[at : at + 4], "little")
        texts.append(values[at + 4 : end].decode("utf-8", "surrogateescape"))
        at = end
    if at != len(values) or len(texts) != prod(shape):
        raise BadAnswer(
            f"output {name!r} of shape {list(shape)} has {len(values)} bytes that are not "
            f"{prod(shape)} texts behind their lengths"
        )
    return _objects(texts, shape)


def _objects(values: Sequence[object], shape: tuple[int, ...]) -> Array:
    rows = np.empty(len(values), object)
    rows[:] = values
    return rows.reshape(shape)


def from_list(output: Tensor, shape: tuple[int, ...], data: object) -> Array:
    """The values of JSON, in one flat list or nested as the shape."""
    if not isinstance(data, list):
        raise BadAnswer(f"output {output.name!r} has the data {shown(data)}, and no list")
    flat = _flat(data, shape)
    if flat is None or len(flat) != prod(shape):
        raise BadAnswer(f"output {output.name!r} has not the data of shape {list(shape)}")
    if output.datatype == TEXT:
        if not all(type(value) is str for value in flat):
            raise BadAnswer(f"output {output.name!r} is BYTES and has data that are no texts")
        return _objects(flat, shape)
    return _numbers(output, flat).reshape(shape)


def _flat(data: list[Any], shape: tuple[int, ...]) -> list[Any] | None:
    """The values of lists nested as the shape, or of one list; None where they are nested otherwise."""
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


def _numbers(output: Tensor, values: list[Any]) -> Array:
    """The values as the output's type. Python's servers write NaN as it is or, with orjson, as null."""
    datatype = output.datatype
    types = set(map(type, values))
    wrong = BadAnswer(f"output {output.name!r} has data that are not all {datatype}")
    if datatype == "BOOL":
        if not types <= {bool, int} or any(value not in (0, 1) for value in values):
            raise wrong
        return np.array(values, bool)
    code = _CODES[datatype]
    if not types <= ({int, float, type(None)} if code in "efd" else {int}):
        raise wrong
    if type(None) in types:
        values = [nan if value is None else value for value in values]
    try:
        packed = struct.pack(f"<{len(values)}{code}", *values)  # unlike NumPy, it checks each range
    except (struct.error, OverflowError) as e:
        raise wrong from e
    return np.frombuffer(bytearray(packed), f"<{code}")


def shown(value: object) -> str:
    """A value of the reply, however large or deep it is."""
    return one_line(reprlib.repr(value))
