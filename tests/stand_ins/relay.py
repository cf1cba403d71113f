"""A relay between the two ends of TCP connections; the relay delays or holds data, or cuts the connections."""

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_CHUNK_BYTES = 65_536


class Relay:
    """Forwards connections to `port` on this machine. delay_s: delay of each chunk, in each direction."""

    def __init__(self, port: int, delay_s: float = 0.0) -> None:
        self._to = ("127.0.0.1", port)
        self.delay_s = delay_s
        self._open = threading.Event()
        self._open.set()
        self._ends: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._listening.accept()
                there = socket.create_connection(self._to)
            except OSError:
                return
            for end in (here, there):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._ends.append(end)
            for pair in ((here, there), (there, here)):
                threading.Thread(target=self._forward, args=pair, daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while chunk := source.recv(_CHUNK_BYTES):
                if self.delay_s:
                    time.sleep(self.delay_s)
                self._open.wait()
                target.sendall(chunk)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def freeze(self) -> None:
        """Stops all data; both ends stay connected, as if a machine had lost its network."""
        self._open.clear()

    def cut(self) -> None:
        """Resets all connections."""
        for end in self._ends:
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RDWR)
                end.close()

    def close(self) -> None:
        self._open.set()
        self._listening.close()
        self.cut()


@contextmanager
def relay(port: int, delay_s: float = 0.0) -> Iterator[Relay]:
    made = Relay(port, delay_s)
    try:
        yield made
    finally:
        made.close()
