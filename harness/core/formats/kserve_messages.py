"""Lists the fields of gRPC inference messages and reads their tensors.

Source: github.com/kserve/open-inference-protocol, specification/protocol/open_inference_grpc.proto.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from harness.core.formats.protobuf import fields, packed, signed

MODEL, VERSION, ID, INPUTS, RAW_INPUTS = 1, 2, 3, 5, 7
"""Field numbers in ModelInferRequest."""

OUTPUTS, RAW_OUTPUTS = 5, 6
"""Field numbers in ModelInferResponse; the model's name and version have the same numbers as in the request."""

NAME, DATATYPE, SHAPE, PARAMETERS, CONTENTS = 1, 2, 3, 4, 5
"""Field numbers in a tensor; each of its parameters has a key (1) and a value (2)."""

_TYPED: Mapping[str, int] = {
    "BOOL": 1,
    **dict.fromkeys(("INT8", "INT16", "INT32"), 2),
    "INT64": 3,
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), 4),
    "UINT64": 5,
    "FP32": 6,
    "FP64": 7,
    "BYTES": 8,
}
"""Maps a datatype to its field number in InferTensorContents. FP16 and BF16 are sent only as raw bytes."""

_FLOATS = {"FP32": "<f4", "FP64": "<f8"}


def tensor(message: memoryview) -> dict[str, Any]:
    """Returns a tensor's name, datatype and shape as in JSON, and its typed values under `data`."""
    name = datatype = ""
    shape: list[int] = []
    contents = memoryview(b"")
    for number, value in fields(message):
        # A shape has one field per dimension, or one packed field with all dimensions.
        if number == SHAPE:
            shape += [signed(n) for n in ([value] if isinstance(value, int) else packed(value))]
        elif isinstance(value, int):
            continue
        elif number == NAME:
            name = str(value, "utf-8")
        elif number == DATATYPE:
            datatype = str(value, "utf-8")
        elif number == CONTENTS:
            contents = value
    return {"name": name, "datatype": datatype, "shape": shape, "data": _typed(datatype, contents)}


def _typed(datatype: str, contents: memoryview) -> list[Any]:
    values: list[Any] = []
    for number, value in fields(contents):
        if number != _TYPED.get(datatype):
            raise ValueError(f"a tensor of {datatype} has values of a different type")
        if isinstance(value, int):
            values.append(signed(value) if datatype.startswith("INT") else value)
        elif datatype == "BYTES":
            values.append(str(value, "utf-8", "surrogateescape"))
        elif datatype in _FLOATS:
            values += np.frombuffer(value, _FLOATS[datatype]).tolist()
        elif datatype.startswith("INT"):
            values += map(signed, packed(value))
        else:
            values += packed(value)
    return values
