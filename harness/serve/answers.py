"""Builds HTTP responses: status lines, headers, and errors in the format of the Open Inference Protocol."""

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from harness.serve.requests import Head

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
JSON = "application/json"
METRICS = "text/plain; version=0.0.4; charset=utf-8"
"""Content-Type header for Prometheus' text format."""

CLOSE = b"Connection: close\r\n"
_KEEP_ALIVE = b"Connection: keep-alive\r\n"


class Refusal(Exception):
    """Raised to respond to a request with an error while the connection stays open."""

    def __init__(
        self,
        status: int,
        text: str,
        headers: Mapping[str, str] | None = None,
        param: str | None = None,
    ) -> None:
        """param: name of the faulty field in the request."""
        super().__init__(text)
        self.status = status
        self.headers = headers or {}
        self.param = param


def check_method(head: Head, method: str) -> None:
    """Raises Refusal if the request's method differs from `method`."""
    if head.method != method:
        raise Refusal(405, f"{head.path} requires {method}", {"Allow": _allowed(method)})


def options_answer(head: Head, method: str) -> bytes:
    """Returns the response to an OPTIONS request. method: the method that the path supports."""
    return json_answer(None, connection_header(head), headers={"Allow": _allowed(method)})


def _allowed(method: str) -> str:
    return "GET, HEAD, OPTIONS" if method == "GET" else f"{method}, OPTIONS"


def connection_header(head: Head) -> bytes:
    if not head.keeps_open:
        return CLOSE
    return _KEEP_ALIVE if head.is_old else b""


def route_answer(
    content: Mapping[str, Any] | Sequence[Mapping[str, Any]] | bytes | None, head: Head
) -> bytes:
    """Returns a complete response to a GET request. content: JSON, a metrics page, or None for an empty body."""
    if not isinstance(content, bytes):
        return json_answer(content, connection_header(head))
    about = answer_head(200, {"Content-Type": METRICS, "Content-Length": len(content)})
    return about + connection_header(head) + b"\r\n" + content


def answer_head(status: int, headers: Mapping[str, object]) -> bytes:
    """Returns the status line and the headers, without the empty line that follows them."""
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "".join(f"{line}\r\n" for line in lines).encode("latin-1")


def json_answer(
    content: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
    connection: bytes,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """Returns a complete response. content: JSON, or None for an empty body. connection: a header line that
    `connection_header` returned, or CLOSE.
    """
    body = b"" if content is None else json.dumps(content).encode()
    about = {"Content-Type": JSON} if content is not None else {}
    head = answer_head(status, {**about, "Content-Length": len(body), **(headers or {})})
    return head + connection + b"\r\n" + body
