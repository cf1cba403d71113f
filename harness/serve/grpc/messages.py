"""Converts messages of the Open Inference Protocol between their gRPC form and their HTTP form.

Source: github.com/kserve/open-inference-protocol, specification/protocol/open_inference_grpc.proto. The configuration,
statistics and index messages come from github.com/triton-inference-server/common, protobuf.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from harness.core.formats.kserve_messages import (
    CONTENTS,
    DATATYPE,
    ID,
    INPUTS,
    MODEL,
    NAME,
    OUTPUTS,
    PARAMETERS,
    RAW_INPUTS,
    RAW_OUTPUTS,
    SHAPE,
    VERSION,
    tensor,
)
from harness.core.formats.kserve_tensors import datatype_of_array, raw_texts
from harness.core.formats.protobuf import field, fields, messages, number_field, signed, varint
from harness.serve.answers import Refusal
from harness.types import Array

_REQUESTED = 6
"""Field number of a requested output in ModelInferRequest."""

_REQUEST_PARAMETERS, _REQUESTED_PARAMETERS = 4, 2

_FLAG, _NUMBER, _TEXT = 1, 2, 3
"""Field numbers of a parameter's value."""

_UINT64 = (1 << 64) - 1

Layout = Mapping[str, "tuple[int, Layout | None]"]
"""Maps a JSON key to its field number in the message and to the layout of its value. A layout of None means that the
value is not an object. For a list of objects, the layout applies to each object.
"""

_READY: Layout = {"ready": (1, None)}
_TENSOR: Layout = {"name": (1, None), "datatype": (2, None), "shape": (3, None)}
_SPENT: Layout = {"count": (1, None), "ns": (2, None)}
_PARTS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
_STATISTICS: Layout = {
    "name": (1, None),
    "version": (2, None),
    "last_inference": (3, None),
    "inference_count": (4, None),
    "execution_count": (5, None),
    "inference_stats": (6, {name: (number, _SPENT) for number, name in enumerate(_PARTS, 1)}),
    "batch_stats": (
        7,
        {
            "batch_size": (1, None),
            "compute_input": (2, _SPENT),
            "compute_infer": (3, _SPENT),
            "compute_output": (4, _SPENT),
        },
    ),
}
LAYOUTS: Mapping[str, Layout] = {
    "ServerLive": {"live": (1, None)},
    "ServerReady": _READY,
    "ModelReady": _READY,
    "ServerMetadata": {"name": (1, None), "version": (2, None), "extensions": (3, None)},
    "ModelMetadata": {
        "name": (1, None),
        "versions": (2, None),
        "platform": (3, None),
        "inputs": (4, _TENSOR),
        "outputs": (5, _TENSOR),
    },
    "ModelConfig": {
        "config": (1, {"name": (1, None), "platform": (2, None), "max_batch_size": (4, None)})
    },
    "ModelStatistics": {"model_stats": (1, _STATISTICS)},
    "RepositoryIndex": {
        "models": (1, {"name": (1, None), "version": (2, None), "state": (3, None)})
    },
}
"""Maps a method to the layout of its reply."""


def message_of(content: Mapping[str, Any], layout: Layout) -> bytes:
    """Converts a JSON object to a message. Omits values that are 0, empty or missing in the layout."""
    found = b""
    for key, (number, inner) in layout.items():
        value = content.get(key)
        for each in value if isinstance(value, list | tuple) else [value]:
            if isinstance(each, Mapping):
                found += field(number, message_of(each, inner or {}))
            elif isinstance(each, str):
                found += field(number, each.encode())
            elif each:
                found += number_field(number, each & _UINT64)
    return found


def named(message: memoryview) -> tuple[str, str]:
    """Returns the model and the version in a request, which are the first two strings of the message. Raises ValueError
    if the message is invalid.
    """
    texts = {n: str(v, "utf-8") for n, v in fields(message) if n <= 2 and not isinstance(v, int)}
    return texts.get(1, ""), texts.get(2, "")


def infer_request(message: memoryview) -> tuple[Mapping[str, Any], Sequence[memoryview]]:
    """Returns a request's plain JSON and its raw contents. Raises ValueError if the message is not a ModelInferRequest."""
    raws = [*messages(message, RAW_INPUTS)]
    inputs = [_input(each) for each in messages(message, INPUTS)]
    if raws and (len(raws) != len(inputs) or any("data" in each for each in inputs)):
        raise ValueError(
            f"{len(inputs)} inputs and {len(raws)} raw contents: each input needs exactly one raw content and no other "
            "values"
        )
    for each, raw in zip(inputs, raws, strict=False):
        each["parameters"] = {**each["parameters"], "binary_data_size": len(raw)}
    request: dict[str, Any] = {
        "inputs": inputs,
        "outputs": [_requested(each) for each in messages(message, _REQUESTED)],
        "parameters": _parameters(message, _REQUEST_PARAMETERS),
    }
    for text in messages(message, ID):
        request["id"] = str(text, "utf-8")
    return request, raws


def _input(message: memoryview) -> dict[str, Any]:
    found = tensor(message)
    if not any(True for _ in messages(message, CONTENTS)):
        del found["data"]
    return {**found, "parameters": _parameters(message, PARAMETERS)}


def _requested(message: memoryview) -> Mapping[str, Any]:
    name = "".join(str(text, "utf-8") for text in messages(message, NAME))
    return {"name": name, "parameters": _parameters(message, _REQUESTED_PARAMETERS)}


def _parameters(message: memoryview, number: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for entry in messages(message, number):
        key = "".join(str(text, "utf-8") for text in messages(entry, 1))
        for value in messages(entry, 2):
            for kind, content in fields(value):
                if kind == _TEXT and not isinstance(content, int):
                    found[key] = str(content, "utf-8")
                elif isinstance(content, int):
                    found[key] = bool(content) if kind == _FLAG else signed(content)
    return found


def infer_reply(
    model: str, version: str, request_id: str | None, outputs: Mapping[str, Array]
) -> bytes:
    """Returns a ModelInferResponse with raw contents. Raises Refusal for a type that the protocol lacks."""
    found = field(MODEL, model.encode()) + field(VERSION, version.encode())
    if request_id is not None:
        found += field(ID, request_id.encode())
    raws = []
    for name, rows in outputs.items():
        datatype = datatype_of_array(rows)
        if datatype is None:
            raise Refusal(500, f"output {name!r} is {rows.dtype}: the protocol has no such type")
        found += field(
            OUTPUTS,
            field(NAME, name.encode())
            + field(DATATYPE, datatype.encode())
            + field(SHAPE, b"".join(map(varint, rows.shape))),
        )
        raws.append(raw_texts(rows) if datatype == "BYTES" else rows.tobytes())
    return b"".join((found, *(field(RAW_OUTPUTS, raw) for raw in raws)))
