"""Stand-ins for three KServe v2 servers, without sockets: they return replies recorded from the real servers.

The recordings are from Triton 2.51.0, MLServer 1.7.1 and the KServe SDK 0.21.0, all serving digits.onnx. The encoding
is implemented again, with `struct`, so that it shares no mistake with the plug-in.
"""

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from harness.remote import Reply, Request

CODES = {
    **dict(zip(["INT8", "INT16", "INT32", "INT64"], "bhiq", strict=True)),
    **dict(zip(["UINT8", "UINT16", "UINT32", "UINT64"], "BHIQ", strict=True)),
    **dict(zip(["FP16", "FP32", "FP64", "BOOL"], "efd?", strict=True)),
}
"""Maps a datatype to its code in `struct`. BYTES and BF16 have no code."""


@dataclass
class Values:
    """A tensor, with its values in C order."""

    datatype: str
    shape: list[int]
    values: list[Any]

    def binary(self) -> bytes:
        if self.datatype == "BYTES":
            return b"".join(struct.pack("<I", len(v)) + v for v in map(_bytes, self.values))
        if self.datatype == "BF16":
            return b"".join(struct.pack("<f", v)[2:] for v in self.values)
        return struct.pack(f"<{len(self.values)}{CODES[self.datatype]}", *self.values)

    def plain(self) -> list[Any]:
        return [v.decode() if isinstance(v, bytes) else v for v in self.values]


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def values_of(datatype: str, shape: list[int], data: bytes) -> Values:
    if datatype != "BYTES":
        return Values(
            datatype, shape, list(struct.unpack(f"<{prod(shape)}{CODES[datatype]}", data))
        )
    values = []
    while data:
        (size,) = struct.unpack_from("<I", data)
        assert len(data) >= 4 + size
        values.append(data[4 : 4 + size])
        data = data[4 + size :]
    assert len(values) == prod(shape)
    return Values(datatype, shape, values)


Model = Callable[[Mapping[str, Values]], Mapping[str, Values]]


def sent(request: Request) -> bytes:
    return b"".join(memoryview(part).tobytes() for part in request.body)


def inputs_of(request: Request) -> tuple[dict[str, Any], dict[str, Values]]:
    """Returns the JSON of a request, and its inputs."""
    body = sent(request)
    headers = dict(request.headers)
    end = int(headers.get("Inference-Header-Content-Length", len(body)))
    content = json.loads(body[:end])
    inputs = {}
    for one in content["inputs"]:
        if "data" in one:
            inputs[one["name"]] = Values(one["datatype"], one["shape"], one["data"])
            assert len(one["data"]) == prod(one["shape"])
            continue
        size = one["parameters"]["binary_data_size"]
        inputs[one["name"]] = values_of(one["datatype"], one["shape"], body[end : end + size])
        end += size
    assert end == len(body)
    return content, inputs


def reply(status: int, body: bytes = b"", *headers: str) -> Reply:
    reason = {200: "OK", 404: "Not Found", 422: "Unprocessable Entity"}.get(status, "Whatever")
    lines = [f"HTTP/1.1 {status} {reason}", *headers, f"Content-Length: {len(body)}"]
    return Reply(status, "\r\n".join([*lines, "", ""]).encode(), memoryview(body))


def as_json(content: object, status: int = 200) -> Reply:
    body = json.dumps(content, separators=(",", ":")).encode()
    return reply(status, body, "Content-Type: application/json")


def binary_reply(content: object, outputs: bytes) -> Reply:
    text = json.dumps(content, separators=(",", ":")).encode()
    headers = f"Inference-Header-Content-Length: {len(text)}"
    return reply(200, text + outputs, "Content-Type: application/octet-stream", headers)


@dataclass
class Dialect:
    """One server with one model; the server can be used as an `Exchange`."""

    model: Model
    metadata: Mapping[str, Any]
    server: Mapping[str, Any]
    config: Mapping[str, Any] | None = None
    index: Any = None
    takes_binary: bool = True
    answers_binary: bool = True
    told_in_reply: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda request: {}
    """Returns the fields of a reply's JSON other than its outputs."""
    paths: dict[str, Reply] = field(default_factory=dict)
    """Replies by path that replace the usual replies."""
    requests: list[Request] = field(default_factory=list)

    def __call__(self, request: Request) -> Reply:
        self.requests.append(request)
        if request.path in self.paths:
            return self.paths[request.path]
        base = f"/v2/models/{self.metadata['name']}"
        answers: dict[tuple[str, str], Callable[[], Reply]] = {
            ("GET", "/v2/health/ready"): lambda: reply(200),
            ("GET", "/v2"): lambda: as_json(self.server),
            ("GET", base): lambda: as_json(self.metadata),
            ("POST", f"{base}/infer"): lambda: self.infer(request),
        }
        if self.config is not None:
            answers["GET", f"{base}/config"] = lambda: as_json(self.config)
        if self.index is not None:
            answers["POST", "/v2/repository/index"] = lambda: as_json(self.index)
        made = answers.get((request.method, request.path))
        return made() if made is not None else as_json({"error": "not found here"}, 404)

    def infer(self, request: Request) -> Reply:
        headers = dict(request.headers)
        is_binary = "Inference-Header-Content-Length" in headers
        assert headers["Content-Type"] == (
            "application/octet-stream" if is_binary else "application/json"
        )
        if is_binary and not self.takes_binary:
            message = "Input should be a valid dictionary or object to extract fields from"
            detail = {
                "type": "model_attributes_type",
                "loc": ["body"],
                "msg": message,
                "input": "x",
            }
            return as_json({"detail": [detail]}, 422)
        content, inputs = inputs_of(request)
        assert content["id"] == "0"
        outputs = self.model(inputs)
        told = {"model_name": self.metadata["name"], **self.told_in_reply(content)}
        wants_binary = content.get("parameters", {}).get("binary_data_output", False)
        abouts: list[dict[str, Any]] = [
            {"name": name, "datatype": one.datatype, "shape": one.shape}
            for name, one in outputs.items()
        ]
        if self.answers_binary and wants_binary:
            parts = [one.binary() for one in outputs.values()]
            for about, part in zip(abouts, parts, strict=True):
                about["parameters"] = {"binary_data_size": len(part)}
            return binary_reply({**told, "outputs": abouts}, b"".join(parts))
        for about, one in zip(abouts, outputs.values(), strict=True):
            about["data"] = one.plain()
        return as_json({**told, "outputs": abouts})


def triton(model: Model, metadata: Mapping[str, Any], max_batch_size: int = 64) -> Dialect:
    return Dialect(
        model,
        {"versions": ["1"], "platform": "python", **metadata},
        {"name": "triton", "version": "2.51.0", "extensions": ["binary_tensor_data"]},
        config={"name": metadata["name"], "backend": "python", "max_batch_size": max_batch_size},
        index=[{"name": metadata["name"], "version": "1", "state": "READY"}],
        told_in_reply=lambda request: {"id": request["id"], "model_version": "1"},
    )


def mlserver(model: Model, metadata: Mapping[str, Any]) -> Dialect:
    return Dialect(
        model,
        {"versions": [], "platform": "", **metadata, "parameters": {}},
        {"name": "mlserver", "version": "1.7.1", "extensions": []},
        index=[{"name": metadata["name"], "state": "READY", "reason": ""}],
        takes_binary=False,
        told_in_reply=lambda request: {"id": request["id"], "parameters": {}},
    )


def kserve_sdk(model: Model, metadata: Mapping[str, Any]) -> Dialect:
    """Stands in for the KServe SDK, whose metadata list tensors only if the model's author declares them."""
    return Dialect(
        model,
        {"name": metadata["name"], "versions": None, "platform": "", "inputs": [], "outputs": []},
        {"name": "kserve", "version": "0.21.0", "extensions": ["model_repository_extension"]},
        answers_binary=False,
        told_in_reply=lambda request: {
            "id": request["id"],
            "model_version": None,
            "parameters": None,
        },
    )
