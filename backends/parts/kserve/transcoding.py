"""Translates requests with HTTP paths and JSON to gRPC calls, and the replies back to JSON, so that server.py handles
both transports in the same way.
Source: github.com/kserve/open-inference-protocol, specification/protocol/open_inference_grpc.proto, and
github.com/triton-inference-server/common, protobuf/grpc_service.proto and model_config.proto.
"""

import json
from collections.abc import Callable, Mapping
from urllib.parse import unquote

from harness.backends.parts.kserve.infer_messages import SERVICE, refusal_text
from harness.core.formats.kserve_messages import tensor
from harness.core.formats.protobuf import field, fields, messages
from harness.errors import one_line
from harness.remote import Exchange, Reply, Request

_STATUS = {3: 400, 5: 404, 8: 429, 12: 501, 14: 503}
"""Maps a gRPC code (invalid argument, not found, exhausted, unimplemented, unavailable) to an HTTP status."""

_ERROR = 500
_MODEL = "/v2/models/"


def transcoded(exchange: Exchange) -> Exchange:
    """Returns an exchange that answers the paths below /v2, except `infer`, over gRPC. exchange: makes the calls."""

    def ask(request: Request) -> Reply:
        if request.path not in _OF_THE_SERVER and not request.path.startswith(_MODEL):
            return _json(404, {"error": f"gRPC has no {request.path}"})
        method, message, read = _call(request.path)
        reply = exchange(Request(f"{SERVICE}/{method}", body=[message]))
        if reply.status:
            return _json(_STATUS.get(reply.status, _ERROR), {"error": refusal_text(reply)})
        try:
            return _json(200, read(reply.body))
        except ValueError as e:
            return _json(_ERROR, {"error": f"the reply to {method} cannot be read: {one_line(e)}"})

    return ask


def _call(path: str) -> tuple[str, bytes, Callable[[memoryview], object]]:
    """Returns the gRPC method for a path, the message to send, and the function that turns the reply into JSON."""
    if path in _OF_THE_SERVER:
        method, read = _OF_THE_SERVER[path]
        return method, b"", read
    name, *rest = path.split("/")[3:]  # /v2/models/NAME[/versions/VERSION][/config]
    message = field(1, unquote(name).encode())
    if rest[:1] == ["versions"]:
        message += field(2, unquote(rest[1]).encode())
        rest = rest[2:]
    method, read = _OF_A_MODEL["/".join(rest)]
    return method, message, read


def _json(status: int, content: object) -> Reply:
    return Reply(status, b"", memoryview(json.dumps(content).encode()))


def _all(message: memoryview, number: int) -> list[str]:
    return [str(text, "utf-8") for text in messages(message, number)]


def _text(message: memoryview, number: int) -> str:
    return "".join(_all(message, number)[-1:])


def _number(message: memoryview, number: int) -> int:
    """Returns the integer in a field; 0 if the message omits the field."""
    return next((v for n, v in fields(message) if n == number and isinstance(v, int)), 0)


def _ready(message: memoryview) -> object:
    if not _number(message, 1):
        raise ValueError("it is not ready")
    return {}


def _server(message: memoryview) -> object:
    return {
        "name": _text(message, 1),
        "version": _text(message, 2),
        "extensions": _all(message, 3),
    }


def _model(message: memoryview) -> object:
    pairs = messages(message, 6)
    return {
        "name": _text(message, 1),
        "platform": _text(message, 3),
        "inputs": [tensor(each) for each in messages(message, 4)],
        "outputs": [tensor(each) for each in messages(message, 5)],
        "properties": {_text(pair, 1): _text(pair, 2) for pair in pairs},
    }


def _config(message: memoryview) -> object:
    found = next(messages(message, 1), memoryview(b""))
    return {"max_batch_size": _number(found, 4), "backend": _text(found, 17)}


def _index(message: memoryview) -> object:
    keys = {"name": 1, "version": 2, "state": 3, "reason": 4}
    listed = [
        {key: _text(model, number) for key, number in keys.items()}
        for model in messages(message, 1)
    ]
    return [  # MLServer writes `State.READY` instead of `READY`, so the prefix is removed
        {**model, "state": model["state"].rpartition(".")[2]} for model in listed
    ]


def _statistics(message: memoryview) -> object:
    parts = {"success": 1, "queue": 3, "compute_infer": 5}
    return {
        "model_stats": [
            {"inference_stats": {part: _duration(stats, n) for part, n in parts.items()}}
            for model in messages(message, 1)
            for stats in messages(model, 6)
        ]
    }


def _duration(stats: memoryview, number: int) -> Mapping[str, int]:
    found = next(messages(stats, number), memoryview(b""))
    return {"count": _number(found, 1), "ns": _number(found, 2)}


_Read = Callable[[memoryview], object]

_OF_THE_SERVER: Mapping[str, tuple[str, _Read]] = {
    "/v2/health/ready": ("ServerReady", _ready),
    "/v2": ("ServerMetadata", _server),
    "/v2/repository/index": ("RepositoryIndex", _index),
}
_OF_A_MODEL: Mapping[str, tuple[str, _Read]] = {
    "": ("ModelMetadata", _model),
    "config": ("ModelConfig", _config),
    "stats": ("ModelStatistics", _statistics),
}
