"""A proxy in front of an HTTP server that changes the form of its replies, as real proxies and frameworks do.

    with odd_proxy(upstream_port, Shape(cut=b"\\r", closes=True)) as url:
        ...

The proxy either only forwards the pieces of a reply, or reads the complete reply and sends the reply in another form.
"""

import gzip
import http.client
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass

_LIMIT_S = 20.0
_STATUS = {429: "Too Many Requests", 503: "Service Unavailable"}


@dataclass(frozen=True)
class Shape:
    """The form in which the proxy sends replies."""

    piece_bytes: int = 65_536
    """Size of the largest chunk of a body."""
    line_end: bytes = b"\n"
    """Bytes that end a line in streams."""
    between: bytes = b""
    """Bytes sent before each event of a stream, such as a comment."""
    begin: bytes = b""
    """Bytes sent before a stream."""
    end: bytes = b"0\r\n\r\n"
    """The last chunk of a stream."""
    size_format: bytes = b"%x"
    """Format in which the size of a chunk is written."""
    http: bytes = b"HTTP/1.1"
    """HTTP/1.0 has no chunks, and ends each reply by closing the connection."""
    informs: bytes = b""
    """Bytes sent before each header, such as 103 Early Hints."""
    headers: bytes = b""
    """Additional lines in each header."""
    head_line: bytes = b"\r\n"
    """Bytes that end a line in headers."""
    compresses: bool = False
    closes: bool = False
    """If true, each connection ends after one reply, without notice."""
    head_byte_s: float = 0.0
    """Time between the bytes of a header."""
    busy_status: int = 0
    """HTTP status that the server sends while it is busy; 0 if it never sends one."""
    busy_every: int = 2
    """One in `busy_every` prompts of the run gets the busy status."""
    free_first: int = 0
    """Number of prompts at the start that never get the busy status."""


class _Proxy:
    def __init__(self, port: int, shape: Shape) -> None:
        self._upstream, self._shape = port, shape
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._prompts = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, client.makefile("rb") as requests, suppress(OSError):
            client.settimeout(_LIMIT_S)
            while (head := self._head(requests)) is not None:
                method, path, length = head
                self._answer(client, method, path, requests.read(length))
                if self._shape.closes or self._shape.http == b"HTTP/1.0":
                    return

    @staticmethod
    def _head(requests: object) -> tuple[str, str, int] | None:
        first = requests.readline()  # type: ignore[attr-defined]
        if not first:
            return None
        method, path, _ = first.decode().split(" ")
        length = 0
        while (line := requests.readline()) not in (b"\r\n", b""):  # type: ignore[attr-defined]
            name, _, value = line.decode().partition(":")
            if name.lower() == "content-length":
                length = int(value)
        return method, path, length

    def _is_busy(self, method: str) -> bool:
        shape = self._shape
        if method != "POST" or not shape.busy_status:
            return False
        with self._lock:
            self._prompts += 1
            return self._prompts > shape.free_first and self._prompts % shape.busy_every == 0

    def _answer(self, client: socket.socket, method: str, path: str, body: bytes) -> None:
        shape = self._shape
        if self._is_busy(method):
            text = b'{"error": {"message": "try again"}}'
            head = b"%b %d %b\r\nRetry-After: 3\r\nContent-Length: %d\r\n\r\n"
            status = shape.busy_status
            line = head % (shape.http, status, _STATUS[status].encode(), len(text))
            client.sendall(line + text)
            return
        with closing(
            http.client.HTTPConnection("127.0.0.1", self._upstream, timeout=_LIMIT_S)
        ) as upstream:
            upstream.request(method, path, body, {"Content-Type": "application/json"})
            reply = upstream.getresponse()
            content = reply.read()
        is_stream = "event-stream" in (reply.getheader("Content-Type") or "")
        if is_stream:
            content = self._stream(content)
        if shape.compresses:
            content = gzip.compress(content)
        self._send_head(client, reply.status, reply.getheader("Content-Type") or "", content)
        self._send_body(client, content)

    def _stream(self, content: bytes) -> bytes:
        shape = self._shape
        events = content.split(b"\n\n")
        joined = b"\n\n".join([*(shape.between + event for event in events[:-1]), events[-1]])
        return shape.begin + joined.replace(b"\n", shape.line_end)

    def _send_head(self, client: socket.socket, status: int, kind: str, content: bytes) -> None:
        shape = self._shape
        framing = b"" if shape.http == b"HTTP/1.0" else b"Transfer-Encoding: chunked\r\n"
        coding = b"Content-Encoding: gzip\r\n" if shape.compresses else b""
        head = b"%b %d S\r\nContent-Type: %b\r\n%b%b%b\r\n" % (
            *(shape.http, status, kind.encode(), framing, coding),
            shape.headers,
        )
        head = shape.informs + head.replace(b"\r\n", shape.head_line)
        if not shape.head_byte_s:
            client.sendall(head)
            return
        for byte in head:
            client.sendall(bytes((byte,)))
            time.sleep(shape.head_byte_s)

    def _send_body(self, client: socket.socket, content: bytes) -> None:
        shape = self._shape
        for at in range(0, len(content), shape.piece_bytes):
            piece = content[at : at + shape.piece_bytes]
            if shape.http == b"HTTP/1.0":
                client.sendall(piece)
            else:
                client.sendall(b"%b\r\n%b\r\n" % (shape.size_format % len(piece), piece))
        if shape.http != b"HTTP/1.0":
            client.sendall(shape.end)


@contextmanager
def odd_proxy(port: int, shape: Shape) -> Iterator[str]:
    """Yields the URL of a proxy in front of the port on this machine."""
    proxy = _Proxy(port, shape)
    try:
        yield proxy.url
    finally:
        proxy.close()
