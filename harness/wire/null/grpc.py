"""The null server's loop for HTTP/2 (RFC 9113), which replies to every gRPC call with the same message.

The server never decodes a call's headers, because the reply does not depend on the headers. The server therefore does
not need HPACK.
"""

import select
import socket
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from struct import Struct

from harness.core import child
from harness.wire.null.server import serve

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 4, 6, 7, 8
_ACK = _END_STREAM = 1
_END_HEADERS = 4
_INITIAL_WINDOW, _MAX_FRAME = 4, 5
_FRAME_HEAD_BYTES = 9
_MOST_WINDOW = 2**31 - 1
_FIRST_WINDOW = 65_535
_MOST_DATA = 16_384
"""Size of a frame in bytes that every client accepts."""

_SETTING = Struct(">HI")
_READ_BYTES = 1 << 20

# Literal headers that are not added to a table. `:status: 200` and the name `content-type` are in the static table.
_FIRST = b"\x88\x0f\x10\x10application/grpc"
_LAST = b"\x00\x0bgrpc-status\x010"


def _frame(kind: int, flags: int, stream: bytes, content: bytes) -> bytes:
    return len(content).to_bytes(3, "big") + bytes((kind, flags)) + stream + content


_NO_STREAM = bytes(4)
_GREETING = _frame(
    _SETTINGS,
    0,
    _NO_STREAM,
    _SETTING.pack(_INITIAL_WINDOW, _MOST_WINDOW) + _SETTING.pack(_MAX_FRAME, 2**24 - 1),
) + _frame(_WINDOW_UPDATE, 0, _NO_STREAM, (_MOST_WINDOW - _FIRST_WINDOW).to_bytes(4, "big"))


class _Connection:
    __slots__ = ("data", "due", "greeted", "received", "sock", "stream_window", "unsent", "window")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.data = b""
        self.greeted = False
        self.received = 0
        """Number of DATA bytes received since the client's window was last enlarged."""
        self.window = _FIRST_WINDOW
        """Number of DATA bytes that the client accepts on all streams together."""
        self.stream_window = _FIRST_WINDOW
        self.due: list[bytes] = []
        """Streams whose reply waits until the window is large enough."""
        self.unsent = memoryview(b"")


class GrpcLoop:
    """Handles all connections on one thread with one level-triggered epoll. A reply that exceeds a stream's window ends
    the connection.
    """

    def __init__(self, listening: socket.socket, reply: bytes) -> None:
        listening.setblocking(False)
        self._listening = listening
        content = b"\x00" + len(reply).to_bytes(4, "big") + reply  # not compressed
        self._size = len(content)
        parts = [content[i : i + _MOST_DATA] for i in range(0, len(content), _MOST_DATA)]
        frames = [
            _frame(_HEADERS, _END_HEADERS, _NO_STREAM, _FIRST),
            *(_frame(_DATA, 0, _NO_STREAM, part) for part in parts),
            _frame(_HEADERS, _END_HEADERS | _END_STREAM, _NO_STREAM, _LAST),
        ]
        self._pieces: list[bytes] = []
        """The parts of a reply, between which the stream's number is inserted."""
        before = b""
        for frame in frames:
            self._pieces.append(before + frame[:5])
            before = frame[_FRAME_HEAD_BYTES:]
        self._end = before
        self._poll = select.epoll()
        self._poll.register(listening.fileno(), select.EPOLLIN)
        self._connections: dict[int, _Connection] = {}

    def run(self) -> None:
        own, connections = self._listening.fileno(), self._connections
        while True:
            for fd, event in self._poll.poll():
                if fd == own:
                    self._accept()
                    continue
                connection = connections[fd]
                try:
                    if event & select.EPOLLOUT:
                        self._send(connection, b"")
                    if event & ~select.EPOLLOUT:
                        self._read(connection)
                # the client has disconnected, or does not speak HTTP/2
                except (OSError, ValueError):
                    del connections[fd]
                    connection.sock.close()

    def _accept(self) -> None:
        try:
            sock, _ = self._listening.accept()
        except OSError:  # the client has closed its connection
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections[sock.fileno()] = _Connection(sock)
        self._poll.register(sock.fileno(), select.EPOLLIN)

    def _read(self, connection: _Connection) -> None:
        arrived = connection.sock.recv(_READ_BYTES)
        if not arrived:
            raise ConnectionResetError
        data = connection.data + arrived
        at, out = 0, []
        if not connection.greeted:
            if not data.startswith(_PREFACE[: len(data)]):
                raise ValueError("no HTTP/2")
            if len(data) < len(_PREFACE):
                connection.data = data
                return
            connection.greeted, at = True, len(_PREFACE)
            out.append(_GREETING)
        while len(data) - at >= _FRAME_HEAD_BYTES:
            end = at + _FRAME_HEAD_BYTES + int.from_bytes(data[at : at + 3], "big")
            if end > len(data):
                break
            content = data[at + _FRAME_HEAD_BYTES : end]
            out += self._frame(
                connection, data[at + 3], data[at + 4], data[at + 5 : at + 9], content
            )
            at = end
        connection.data = data[at:]
        out += self._answers(connection)
        if out:
            self._send(connection, b"".join(out))

    def _frame(
        self, connection: _Connection, kind: int, flags: int, stream: bytes, content: bytes
    ) -> Iterator[bytes]:
        """Handles a frame, and yields the frames that must be sent at once."""
        if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
            connection.due.append(stream)
        if kind == _DATA:
            connection.received += len(content)
            if connection.received > _MOST_WINDOW // 2:
                more = connection.received.to_bytes(4, "big")
                yield _frame(_WINDOW_UPDATE, 0, _NO_STREAM, more)
                connection.received = 0
        elif kind == _SETTINGS and not flags & _ACK:
            settings = dict(_SETTING.iter_unpack(content))
            connection.stream_window = settings.get(_INITIAL_WINDOW, connection.stream_window)
            yield _frame(_SETTINGS, _ACK, _NO_STREAM, b"")
        elif kind == _PING and not flags & _ACK:
            yield _frame(_PING, _ACK, _NO_STREAM, content)
        elif kind == _WINDOW_UPDATE and stream == _NO_STREAM:
            connection.window += int.from_bytes(content, "big")
        elif kind == _GOAWAY:
            raise ConnectionResetError

    def _answers(self, connection: _Connection) -> Iterator[bytes]:
        """Yields the replies that are due, as far as the client's window allows."""
        due = connection.due
        if due and self._size > connection.stream_window:
            raise ValueError("the answer is larger than the window of a stream")
        ready = min(len(due), connection.window // self._size)
        connection.window -= ready * self._size
        for stream in due[:ready]:
            yield stream.join([*self._pieces, self._end])
        del due[:ready]

    def _send(self, connection: _Connection, data: bytes) -> None:
        waited = bool(connection.unsent)
        unsent = memoryview(bytes(connection.unsent) + data if waited else data)
        with suppress(BlockingIOError):
            unsent = unsent[connection.sock.send(unsent) :]
        connection.unsent = unsent
        if bool(unsent) != waited:
            events = select.EPOLLIN | (select.EPOLLOUT if unsent else 0)
            self._poll.modify(connection.sock.fileno(), events)


def main() -> None:
    child.serve(partial(serve, GrpcLoop))
