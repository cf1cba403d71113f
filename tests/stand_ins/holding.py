"""Clients that hold a port: they send nothing, half a request, single bytes or garbage, or do not read the reply."""

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

DRIP_S = 0.2
GARBAGE: Sequence[bytes] = (
    b"\0" * 64,
    b"\n\n\n",
    b"[1]\n",
    b'{"event": 1}\n',
    b'{"event": "setup"}\n',
    b"[" * 100_000 + b"\n",
    b"\xff\xfe\xfd\n",
    bytes(range(256)) * 4,
    # The first bytes of a TLS handshake.
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(27),
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999\r\n\r\nx",
    b"GET /\0 HTTP/1.1\r\nHost: \0\r\n\r\n",
    b"GET /" + b"a" * (1 << 20) + b" HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000,
)


@contextmanager
def connected(port: int, count: int = 1, sent: bytes = b"") -> Iterator[list[socket.socket]]:
    """Opens `count` connections, and sends the bytes `sent` on each connection."""
    with ExitStack() as stack:
        made = []
        for _ in range(count):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", port), 10))
            with suppress(ConnectionError):
                sock.sendall(sent)
            made.append(sock)
        yield made


@contextmanager
def dripping(port: int, text: bytes) -> Iterator[socket.socket]:
    """Yields a client that sends one byte every DRIP_S until the connection ends."""
    with connected(port) as (sock,):
        over = threading.Event()

        def drip() -> None:
            with suppress(OSError):
                for byte in text:
                    if over.wait(DRIP_S):
                        return
                    sock.sendall(bytes([byte]))

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        try:
            yield sock
        finally:
            over.set()
            thread.join()


def is_dropped(sock: socket.socket, limit_s: float) -> bool:
    """Returns whether the other side closes the connection within this time."""
    deadline_s = time.monotonic() + limit_s
    with suppress(ConnectionError):
        while (left_s := deadline_s - time.monotonic()) > 0:
            sock.settimeout(left_s)
            try:
                if not sock.recv(1 << 16):
                    return True
            except TimeoutError:
                return False
        return False
    return True
