"""An in-memory collector for OpenTelemetry traces, which accepts whatever the protocol's own package can read."""

import base64
import gzip
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import HTTPServer
from typing import Any

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.stand_ins.servers.quiet import QuietHandler, in_thread

_IDS = ("traceId", "spanId", "parentSpanId")


def spans_of(text: str | bytes) -> list[Any]:
    """Returns the spans that one message contains. OTLP writes ids in hexadecimal, whereas protobuf's JSON expects
    base64.
    """
    message = json.loads(text)
    for resource in message["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for name in _IDS:
                    if name in span:
                        span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
    request = json_format.ParseDict(message, ExportTraceServiceRequest())
    return [s for r in request.resource_spans for scope in r.scope_spans for s in scope.spans]


class Collector(HTTPServer):
    """received: spans. status, answer: the collector's reply. context: for https."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.scheme = "http"
        if context is not None:
            self.scheme = "https"
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.received: list[Any] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.status, self.answer = 200, b"{}"

    @property
    def address(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_port}"


class _Handler(QuietHandler):
    protocol_version = "HTTP/1.1"
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.headers["Content-Type"] == "application/json"
        if self.headers["Content-Encoding"] == "gzip":
            body = gzip.decompress(body)
        self.server.paths.append(self.path)
        self.server.headers.append(dict(self.headers))
        self.server.received += spans_of(body)
        self.reply(self.server.answer, self.server.status)


@contextmanager
def collecting(context: ssl.SSLContext | None = None) -> Iterator[Collector]:
    collector = Collector(context)
    with in_thread(collector):
        yield collector
