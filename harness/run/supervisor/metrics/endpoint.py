"""Serves a run's metrics to Prometheus during the run.

The supervisor computes the metrics from the journal, so the measured process is not disturbed. A scrape reads only the
journal's new rows. Frequent scrapes must not take a core from the run. A page younger than PAGE_LASTS_S is therefore
served again, and pages are sent one at a time. Each client has a thread, so that a silent client does not delay others.
Without --metrics, only clients on this machine are served. SNAPSHOTS_PATH serves the run's course to `browse`.
"""

import http.client
import io
import socket
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any, Self

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from harness.core.config.parse import Endpoint
from harness.core.config.run_config import RunConfig
from harness.core.console import say
from harness.errors import ConfigError, one_line
from harness.results.run_folder import ENDPOINT
from harness.run.supervisor.metrics.course import PERIOD_S, SNAPSHOTS_PATH, Course
from harness.run.supervisor.metrics.exporter import Exporter
from harness.run.supervisor.metrics.otlp_push import OtlpPush, is_collector

DEFAULT = Endpoint("127.0.0.1", 9464)
PAGE_LASTS_S = 0.2
CLIENT_LIMIT_S = 2.0
"""A client has this long to send a request, and as long again to receive the page."""

MOST_CLIENTS = 32
"""At most this many clients are connected at the same time. If one more client connects, the oldest connection is
closed.
"""

PAUSE_S = 0.02
"""Pause between two pages, so that all clients together get at most 50 pages per second."""

ACCEPT_PAUSE_S = 0.002
"""Pause between two connections."""


class _Server(ThreadingHTTPServer):
    request_queue_size = 128

    def __init__(self, endpoint: Endpoint, exporter: Exporter) -> None:
        self.address_family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
        self.timeout = PAGE_LASTS_S  # interval at which the thread checks whether it must end
        self._exporter = exporter
        self.course = Course(exporter.snapshot)
        self._page: tuple[float, bytes] | None = None
        self._turn = threading.Lock()
        self._clients: dict[socket.socket, None] = {}  # oldest client first
        super().__init__(endpoint, _Handler)

    def server_bind(self) -> None:
        """Binds without HTTPServer's look-up of the host name, which may take seconds."""
        TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        if len(self._clients) >= MOST_CLIENTS:
            for oldest in [*self._clients][:1]:
                self._clients.pop(oldest, None)
                with suppress(OSError):  # the client's thread notices that the connection is closed
                    oldest.shutdown(socket.SHUT_RDWR)
        self._clients[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._clients.pop(request, None)
        super().shutdown_request(request)

    def page(self) -> bytes:
        with self._turn:
            if self._page is None or time.monotonic() - self._page[0] > PAGE_LASTS_S:
                page = self._exporter.page()
                self._page = (time.monotonic(), page)
            time.sleep(PAUSE_S)
            return self._page[1]

    def snapshots(self, after_s: float) -> bytes:
        with self._turn:
            answer = self.course.answer(after_s)
            time.sleep(PAUSE_S)
            return answer

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores clients that closed the connection or never sent a request."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Request(socket.SocketIO):
    """Reads a client's request, which must arrive completely before a deadline."""

    def __init__(self, connection: socket.socket, deadline_s: float) -> None:
        """deadline_s: time on the monotonic clock."""
        super().__init__(connection, "r")
        self._connection, self._deadline_s = connection, deadline_s

    def readinto(self, buffer: Any) -> int | None:
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the request is not complete")
        self._connection.settimeout(left_s)
        return super().readinto(buffer)


class _Handler(BaseHTTPRequestHandler):
    timeout = CLIENT_LIMIT_S
    server: _Server

    def setup(self) -> None:
        super().setup()
        request = _Request(self.connection, time.monotonic() + CLIENT_LIMIT_S)
        self.rfile = io.BufferedReader(request)

    def do_GET(self) -> None:
        self.wfile.write(self._send_headers())

    def do_HEAD(self) -> None:
        """Sends the headers of GET without the page, for probes that only check whether the server is up."""
        self._send_headers()

    def _send_headers(self) -> bytes:
        """Sends the headers. Returns the page, which is empty if the path has no page."""
        self.connection.settimeout(CLIENT_LIMIT_S)
        path, _, query = self.path.partition("?")
        if path in ("/", "/metrics"):
            page, content_type = self.server.page(), CONTENT_TYPE_PLAIN_0_0_4
        elif path == SNAPSHOTS_PATH:
            page, content_type = self.server.snapshots(_after_s(query)), "application/json"
        else:
            self.send_error(404, "the metrics are at /metrics")
            return b""
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        return page

    def log_message(self, *_: object) -> None:
        """Logs nothing, because one scrape per second is normal."""


def _after_s(query: str) -> float:
    """Returns the time in the query `after=TIME`; without such a time, a time before every snapshot."""
    with suppress(ValueError):
        return float(query.removeprefix("after="))
    return 0.0


class MetricsEndpoint:
    """Serves an exporter within a `with` block, unless --no-metrics is set or no port is free.

    Raises ConfigError if the port of --metrics is taken. If the default port is taken, uses any free port. `notice` is
    the message for the beginning of the run, or "" without a message. `moved` is the message about a different port.
    `moved` is shown after the model is loaded, when the run can no longer fail to start.
    """

    def __init__(self, config: RunConfig, *, quiet: bool) -> None:
        self.exporter = Exporter()
        self.notice = self.moved = ""
        self._quiet = quiet
        self._linger_s = config.metrics_linger_ns / 1e9
        self._gateway = config.metrics_push
        self._otlp: OtlpPush | None = None
        if self._gateway is not None and is_collector(self._gateway):
            self._otlp = OtlpPush(self._gateway, self.exporter.genai)
        self._server = None if config.no_metrics else self._bind(config.metrics)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="metrics", daemon=True)

    def _bind(self, configured: Endpoint | None) -> _Server | None:
        endpoint = configured or DEFAULT
        try:
            server = _Server(endpoint, self.exporter)
        except OSError as e:
            why = str(e.strerror or e)
            if configured is not None:
                raise ConfigError(
                    f"--metrics {endpoint} cannot be used ({why}): choose a different address, or use --no-metrics"
                ) from None
            return self._elsewhere(endpoint, why)
        if configured is not None:
            actual = configured._replace(port=server.server_address[1])
            self.notice = f"metrics at http://{actual}/metrics"
        return server

    def _elsewhere(self, endpoint: Endpoint, why: str) -> _Server | None:
        """Returns a server at the same address on any free port; None if no port is free."""
        try:
            server = _Server(endpoint._replace(port=0), self.exporter)
        except OSError:
            self.moved = f"the metrics cannot be served at {endpoint} ({why}): choose a different address with --metrics HOST:PORT"
            return None
        at = endpoint._replace(port=server.server_address[1])
        self.moved = f"metrics at http://{at}/metrics, because port {endpoint.port} is taken"
        return server

    def note_in(self, folder: Path) -> None:
        """Writes the endpoint's address into a run's folder, for `browse`. Ignores errors."""
        if self._server is not None:
            host, port = self._server.server_address[:2]
            address = Endpoint(str(host), port)
            with suppress(OSError):
                (folder / ENDPOINT).write_text(f"{address}\n", encoding="utf-8")

    def __enter__(self) -> Self:
        if self._server is not None:
            self._thread.start()
        if self._otlp is not None:
            self._otlp.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._server is not None:
            self._closing.set()
            self._thread.join(CLIENT_LIMIT_S)
            self._server.server_close()
        if self._otlp is not None:
            self._otlp.stop()
        if self.exporter.has_result:
            self.push()

    def _serve(self) -> None:
        while self._server is not None and not self._closing.is_set():
            self._server.handle_request()
            self._server.course.update(PERIOD_S)
            self._closing.wait(ACCEPT_PAUSE_S)

    def push(self) -> None:
        """Pushes the metrics to the address of --metrics-push. A failure loses nothing, because metrics.prom contains
        the same metrics.
        """
        if self._gateway is None:
            return
        if self._otlp is not None:
            self._otlp.push()
            return
        try:
            self.exporter.push(self._gateway)
        except (OSError, http.client.HTTPException) as e:
            why = one_line(e) or type(e).__name__
            say(
                f"--metrics-push {self._gateway} did not accept the metrics ({why}): "
                "check that a Pushgateway listens there"
            )

    def linger(self) -> None:
        """Serves the metrics for the time of --metrics-linger, so that the last scrape includes the verdict."""
        if self._server is not None and self._linger_s:
            if not self._quiet:
                say(f"metrics stay available for {self._linger_s:g} s; press Ctrl-C to stop")
            time.sleep(self._linger_s)
