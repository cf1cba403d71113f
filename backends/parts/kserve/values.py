"""Reads the values of outputs from bytes or JSON. Every fault of the server raises BadAnswer."""

import reprlib
from math import prod

import numpy as np

from harness.backends.parts.kserve.datatypes import ON_THE_WIRE, TEXT, Tensor
from harness.core.formats.kserve_tensors import from_json, texts_from
from harness.errors import one_line
from harness.remote import BadAnswer
from harness.types import Array


def from_bytes(output: Tensor, shape: tuple[int, ...], values: memoryview) -> Array:
    """Returns a copy of a binary tensor's values. Raises BadAnswer if the values do not fit the output."""
    datatype = output.datatype
    if datatype == TEXT:
        try:
            return texts_from(values, prod(shape)).reshape(shape)
        except ValueError as e:
            raise BadAnswer(f"output {output.name!r} of shape {list(shape)}: {e}") from e
    numbers = np.ndarray(shape, ON_THE_WIRE[datatype], values)
    if datatype == "BF16":  # the bits are the upper half of a float32
        return (numbers.astype(np.uint32) << 16).view(np.float32)
    if datatype == "BOOL" and numbers.view(np.uint8).max(initial=0) > 1:
        raise BadAnswer(f"output {output.name!r} has values that are neither true nor false")
    return numbers.copy()


def from_list(output: Tensor, shape: tuple[int, ...], data: object) -> Array:
    """Returns the values in JSON. Raises BadAnswer if the values do not fit the output."""
    try:
        return from_json(data, output.datatype, shape)
    except ValueError as e:
        raise BadAnswer(f"output {output.name!r}: {e}") from e


def shown(value: object) -> str:
    """Returns a short string for a value of the reply, however large or deep the value is."""
    return one_line(reprlib.repr(value))
