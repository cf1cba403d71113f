"""Handles requests of the Open Inference Protocol v2 (KServe, Triton) with a served model.

A client that uses binary tensors sends the same JSON in every request. The server therefore parses the JSON only once,
into a `Call`, and also writes the replies' JSON only once.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from time import time_ns
from typing import Any
from urllib.parse import quote

import numpy as np

from harness import __version__
from harness.core.formats.kserve_tensors import datatype_of_array, raw_texts, to_json
from harness.errors import type_and_text
from harness.serve.answers import (
    JSON,
    Refusal,
    answer_head,
    check_method,
    connection_header,
    json_answer,
    options_answer,
    route_answer,
)
from harness.serve.calls import Call, Template, parsed, read_call
from harness.serve.loop import Later
from harness.serve.options import DEFAULT_NAME
from harness.serve.requests import Head, Request
from harness.serve.served import Served
from harness.serve.statistics import Stamps, Statistics
from harness.types import Array, Batch

_Content = Mapping[str, Any] | Sequence[Mapping[str, Any]] | bytes | None
"""Content of a reply: JSON, text, or nothing."""

VERSION = "1"
EXTENSIONS = ("binary_tensor_data", "model_configuration", "statistics")
INDEX = "/v2/repository/index"
_ABSENT = {
    "model_repository, except for its index": "/v2/repository/",
    "system_shared_memory": "/v2/systemsharedmemory",
    "cuda_shared_memory": "/v2/cudasharedmemory",
    "trace": "/v2/trace",
    "logging": "/v2/logging",
}
"""Maps each unsupported Triton extension to the beginning of its paths."""

MOST_CALLS = 256
"""Maximum number of requests whose JSON is cached. A low number is enough, because a client uses only a few batch
sizes.
"""

MOST_CALL_BYTES = 1 << 14
JOINED_BYTES = 1 << 14
"""Tensors up to this size are copied behind the head, because copying small tensors is faster than sending an
additional buffer.
"""

_BINARY = "application/octet-stream"
_TIMES = b"Server-Timing: %bqueue;dur=%.6f, compute;dur=%.6f, total;dur=%.6f\r\n\r\n"
"""Header with times in ms: waiting in the socket's queue, computing in the backend, and the total from arrival to
sending. The header is the last line of the head. All earlier lines are the same in each reply, so the harness's client
need not parse these lines again.
"""


class OpenInference:
    """Handles the requests for one model; `Loop` calls it."""

    def __init__(
        self, served: Served, name: str = DEFAULT_NAME, statistics: Statistics | None = None
    ) -> None:
        """name: the server's name. statistics: the counts, which several models share if they count as one model; None
        creates separate counts.
        """
        self._served = served
        self.statistics = statistics or Statistics(served.name)
        self._name = name
        self._calls: dict[bytes, Call] = {}
        model = f"/v2/models/{served.name}"
        paths = (model, f"{model}/versions/{VERSION}")
        self._infer_paths = {f"{path}/infer" for path in paths}
        self._routes: dict[str, Callable[[], _Content]] = {
            "/v2": self.about_server,
            "/v2/models": self._models,
            "/v2/health/live": _empty,
            "/v2/health/ready": _empty,
            "/v2/models/stats": self.totals,
            INDEX: self.index,
            "/metrics": self.statistics.page,
        }
        for path in paths:
            self._routes |= {path: self.about_model, f"{path}/ready": _empty}
            self._routes |= {f"{path}/config": self.config, f"{path}/stats": self.totals}
        self.answered = 0
        self.first_failure = ""
        """The first error that the backend raised."""

    def handle(self, request: Request, arrived_ns: int) -> Sequence[bytes | memoryview] | Later:
        """Handles a request. Returns the parts of the reply, or a Later if the parts follow later."""
        taken_ns = time_ns()
        head = request.head
        try:
            method = self._method(head.path)
            if head.method == "OPTIONS":
                return [options_answer(head, method)]
            check_method(head, method)
            if head.path in self._infer_paths:
                return self._infer(request, arrived_ns, taken_ns)
        except Refusal as e:
            return self._refusal(head, e)
        self.answered += 1
        return [route_answer(self._routes[head.path](), head)]

    @property
    def model(self) -> str:
        return self._served.name

    @property
    def refused(self) -> int:
        """Number of requests to which the server replied with an error."""
        return self.statistics.refused

    @property
    def unknown(self) -> int:
        """Number of refused requests for a path that does not exist on the server."""
        return self.statistics.unknown

    def _refusal(self, head: Head, refusal: Refusal) -> Sequence[bytes | memoryview]:
        self.statistics.refuse(refusal.status)
        error = {"error": str(refusal)}
        return [json_answer(error, connection_header(head), refusal.status, refusal.headers)]

    def _method(self, path: str) -> str:
        if path in self._infer_paths or path == INDEX:
            return "POST"
        if path not in self._routes:
            raise Refusal(404, self._no_route(path))
        return "GET"

    def _no_route(self, path: str) -> str:
        name = self._served.name
        for extension, begin in _ABSENT.items():
            if path.startswith(begin):
                return f"this server does not have the extension {extension}"
        if path.startswith("/v2/models/") and not path.startswith(f"/v2/models/{name}"):
            return f"{path} names a model that this server does not have: use {name!r}, version {VERSION}"
        return f"this server has nothing at {path}: use /v2/models/{quote(name, safe='')}/infer"

    def about_server(self) -> Mapping[str, Any]:
        return {"name": self._name, "version": __version__, "extensions": [*EXTENSIONS]}

    def _models(self) -> Mapping[str, Any]:
        """Returns a list of models in the format of the KServe SDK, because the protocol does not define a list."""
        return {"models": [self._served.name]}

    def index(self) -> Sequence[Mapping[str, Any]]:
        """Returns a list of models in the format of Triton's repository index."""
        return [{"name": self.model, "version": VERSION, "state": "READY", "reason": ""}]

    def totals(self) -> Mapping[str, Any]:
        """Returns the statistics in the format of Triton's statistics extension."""
        return self.statistics.of_triton(VERSION)

    def has_model(self, name: str, version: str) -> bool:
        """Returns whether the server serves this model. version: "" for any version."""
        return name == self.model and version in ("", VERSION)

    def check_model(self, name: str, version: str) -> None:
        """Raises Refusal if the server does not serve this model."""
        if not self.has_model(name, version):
            path = f"/v2/models/{name}/versions/{version}" if version else f"/v2/models/{name}"
            raise Refusal(
                404,
                f"{path} names a model that this server does not have: use {self.model!r}, version {VERSION}",
            )

    def about_model(self) -> Mapping[str, Any]:
        served = self._served
        return {
            "name": served.name,
            "versions": [VERSION],
            "platform": served.backend_name,
            "inputs": [tensor._asdict() for tensor in served.inputs],
            "outputs": [tensor._asdict() for tensor in served.outputs],
            "properties": served.properties,
        }

    def config(self) -> Mapping[str, Any]:
        served = self._served
        return {
            "name": served.name,
            "platform": served.backend_name,
            "max_batch_size": served.max_batch,
        }

    def _infer(
        self, request: Request, arrived_ns: int, taken_ns: int
    ) -> Sequence[bytes | memoryview] | Later:
        call, batch = self._asked(request)
        outputs, stamps = self._computed(batch, arrived_ns, taken_ns)
        return self._replied(request.head, call, outputs, stamps)

    def computed_call(
        self, content: object, tensors: memoryview, arrived_ns: int, taken_ns: int
    ) -> tuple[Call, Mapping[str, Array], Stamps]:
        """Runs a request that did not arrive over HTTP.

        content: the request's JSON. tensors: the bytes that follow the JSON. Returns the call, the requested outputs,
        and the times for `count`. Raises Refusal if the request is refused.
        """
        call = read_call(content, self._served)
        batch = Batch(call.samples, call.inputs(tensors))
        outputs, stamps = self._computed(batch, arrived_ns, taken_ns)
        return call, _asked_for(call, outputs), stamps

    def count(self, samples: int, stamps: Stamps, now_ns: int) -> None:
        """Counts a processed request."""
        self.answered += 1
        self.statistics.add(samples, stamps, now_ns)

    def _computed(
        self, batch: Batch, arrived_ns: int, taken_ns: int
    ) -> tuple[Mapping[str, Array], Stamps]:
        begun_ns = time_ns()
        try:
            outputs = self._served.infer(batch)
        except Exception as e:  # because the frameworks' exceptions do not share a base class
            self.statistics.add_failed(time_ns() - arrived_ns)
            raise self._failed(e) from e
        return outputs, Stamps(arrived_ns, taken_ns, begun_ns, time_ns())

    def _asked(self, request: Request) -> tuple[Call, Batch]:
        """Returns a request as a Call, and its inputs as a Batch. Raises Refusal if the request is refused."""
        head, body = request
        size = len(body) if head.json_length is None else head.json_length
        if size > len(body):
            raise Refusal(400, "Inference-Header-Content-Length exceeds the length of the body")
        call = self._call(bytes(body[:size]))
        return call, Batch(call.samples, call.inputs(body[size:]))

    def _failed(self, error: BaseException) -> Refusal:
        text = f"the model cannot answer: {type_and_text(error)}"
        self.first_failure = self.first_failure or text
        return Refusal(500, text)

    def _replied(
        self,
        head: Head,
        call: Call,
        outputs: Mapping[str, Array],
        stamps: Stamps,
        told: bytes = b"",
    ) -> Sequence[bytes | memoryview]:
        """Returns the parts of the reply. The last argument is text that precedes the times in the header."""
        arrived_ns, taken_ns, begun_ns, ended_ns = stamps
        template, tensors = self._answer(call, outputs)
        # The limits below prevent negative times, which would occur if the clock was set back during the request.
        now_ns = time_ns()
        self.count(call.samples, stamps, now_ns)
        waited_ns, total_ns = max(0, taken_ns - arrived_ns), max(0, now_ns - arrived_ns)
        times = _TIMES % (told, waited_ns / 1e6, (ended_ns - begun_ns) / 1e6, total_ns / 1e6)
        first = template.head + connection_header(head) + times + template.json
        if sum(map(len, tensors)) <= JOINED_BYTES:
            return [b"".join((first, *tensors))]
        return [first, *tensors]

    def _call(self, text: bytes) -> Call:
        call = self._calls.get(text)
        if call is None:
            call = read_call(parsed(text), self._served)
            if not call.given and len(text) <= MOST_CALL_BYTES:
                if len(self._calls) >= MOST_CALLS:
                    self._calls.clear()
                self._calls[text] = call
        return call

    def _answer(
        self, call: Call, outputs: Mapping[str, Array]
    ) -> tuple[Template, Sequence[bytes | memoryview]]:
        """Returns the template of the reply, and the bytes of its binary tensors."""
        outputs = _asked_for(call, outputs)
        key = [(name, rows.dtype, rows.shape) for name, rows in outputs.items()]
        if call.template is not None and call.template.key == key:
            return call.template, [_raw(rows) for rows in outputs.values()]
        return self._written(call, outputs, key)

    def _written(
        self, call: Call, outputs: Mapping[str, Array], key: Sequence[object]
    ) -> tuple[Template, Sequence[bytes | memoryview]]:
        tensors: list[bytes | memoryview] = []
        described: list[Mapping[str, Any]] = []
        is_repeatable = True
        for name, rows in outputs.items():
            datatype = datatype_of_array(rows)
            if datatype is None:
                raise Refusal(
                    500, f"output {name!r} is {rows.dtype}: the protocol has no such type"
                )
            about = {"name": name, "datatype": datatype, "shape": [*rows.shape]}
            if call.all_binary if call.outputs is None else call.outputs[name]:
                raw = raw_texts(rows) if datatype == "BYTES" else _raw(rows)
                tensors.append(raw)
                described.append({**about, "parameters": {"binary_data_size": len(raw)}})
                is_repeatable &= datatype != "BYTES"
            else:
                described.append({**about, "data": _json(name, rows)})
                is_repeatable = False
        template = Template(key, *self._head_and_json(call, described, tensors))
        if is_repeatable:
            call.template = template
        return template, tensors

    def _head_and_json(
        self,
        call: Call,
        outputs: Sequence[Mapping[str, Any]],
        tensors: Sequence[bytes | memoryview],
    ) -> tuple[bytes, bytes]:
        about = {"model_name": self._served.name, "model_version": VERSION}
        named = {} if call.request_id is None else {"id": call.request_id}
        text = json.dumps({**about, **named, "outputs": outputs}).encode()
        size = len(text) + sum(map(len, tensors))
        if not tensors:
            return answer_head(200, {"Content-Type": JSON, "Content-Length": size}), text
        headers = {
            "Content-Type": _BINARY,
            # This header comes before Inference-Header-Content-Length, because some clients search the head for
            # `Content-Length`.
            "Content-Length": size,
            "Inference-Header-Content-Length": len(text),
        }
        return answer_head(200, headers), text


def _empty() -> None:
    """Returns no content, because the status is the complete reply."""


def _asked_for(call: Call, outputs: Mapping[str, Array]) -> Mapping[str, Array]:
    if call.outputs is None:
        return outputs
    for name in call.outputs:
        if name not in outputs:
            raise Refusal(400, f"the model has no output {name!r}, only {', '.join(outputs)}")
    return {name: outputs[name] for name in call.outputs}


def _raw(rows: Array) -> bytes | memoryview:
    """Returns the bytes of an array in C order. Does not copy large arrays."""
    if rows.nbytes <= JOINED_BYTES:
        return rows.tobytes()
    return np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data


def _json(name: str, rows: Array) -> list[Any]:
    try:
        return to_json(rows)
    except ValueError as e:
        raise Refusal(500, f"output {name!r}: {e}") from None
