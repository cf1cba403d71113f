"""JSON lines over a socket pair between the supervisor and the measured process.

Used before the first query and after the last one; while the run goes on only the journal talks.
"""

import json
import socket
from contextlib import suppress
from typing import Any


class Channel:
    """One end. The other end's death shows as None from `receive`, and nowhere else."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._received = b""

    def send(self, event: str, **values: Any) -> None:
        with suppress(ConnectionError):
            self._socket.sendall(json.dumps({"event": event, **values}).encode() + b"\n")

    def receive(self, timeout_s: float | None = None) -> dict[str, Any] | None:
        """The next message; None when the other end has closed. TimeoutError after timeout_s."""
        self._socket.settimeout(timeout_s)
        while b"\n" not in self._received:
            try:
                chunk = self._socket.recv(1 << 16)
            except ConnectionError:
                return None
            except BlockingIOError:
                raise TimeoutError from None
            if not chunk:
                return None
            self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()
