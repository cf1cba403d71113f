"""Replies to every HTTP request or gRPC call with the same bytes, from a separate process.

This server measures the client's floor and ceiling, which therefore contain only the time of the client and the kernel.
"""

import gc
import os
import re
import resource
import select
import socket
import subprocess
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Protocol, Self

from harness.core import child
from harness.errors import RunDied

_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)[ \t]*\r\n", re.IGNORECASE)
_READ_BYTES = 1 << 16
_SCRATCH_BYTES = 1 << 20
_MOST_HEAD_BYTES = 1 << 16
_MOST_LENGTHS = 1024
"""The body lengths for at most this many heads are stored, because a measured client sends few different heads.
"""

_UNKNOWN = -(1 << 62)
"""Stands for the length of an unknown head; a sum that contains this number is negative, and is never mistaken for a
length.
"""

_START_LIMIT_S = 30.0


class NullServer:
    """A server that runs until the `with` block ends, or until the thread that entered the block ends.

    with NullServer(reply) as server:
        ...  # server.url

    The server reads requests with a Content-Length or without a body, and closes the connection after any other
    request.
    """

    def __init__(self, reply: bytes, *, unix: Path | None = None, grpc: bool = False) -> None:
        """reply: status line, headers and body; for gRPC, the message. unix: a new path for a Unix socket to listen on."""
        self._reply = reply
        self._unix = unix
        self._grpc = grpc
        self._stack = ExitStack()
        self.url = ""
        """`http://127.0.0.1:PORT`, `grpc://127.0.0.1:PORT` or `http+unix://PATH`; set on entry to the block, like
        `pid`.
        """
        self.pid = 0

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            process, channel = self._start(stack)
            stack.callback(process.wait)
            stack.callback(process.kill)
            stack.enter_context(closing(channel))
            message = channel.receive(_START_LIMIT_S)
            if message is None or message["event"] != "ready":
                why = "" if message is None else f": {message['text']}"
                raise RunDied(f"the null server did not start{why}")
            self.pid = process.pid
            self._stack = stack.pop_all()
        return self

    def _start(self, stack: ExitStack) -> tuple["subprocess.Popen[bytes]", child.Channel]:
        """Starts the child, and closes the listening socket in this process, so that clients do not wait if the child
        dies.
        """
        with self._listen(stack) as listening, os.fdopen(os.memfd_create("reply"), "wb") as file:
            file.write(self._reply)
            file.flush()
            module = "harness.wire.null.grpc" if self._grpc else __name__
            return child.connect(module, (listening.fileno(), file.fileno()), new_session=True)

    def _listen(self, stack: ExitStack) -> socket.socket:
        if self._unix is None:
            listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
            scheme = "grpc" if self._grpc else "http"
            self.url = f"{scheme}://127.0.0.1:{listening.getsockname()[1]}"
            return listening
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(self._unix))
        stack.callback(self._unix.unlink)
        listening.listen(1024)
        self.url = f"http+unix://{self._unix}"
        return listening

    def __exit__(self, *_error: object) -> None:
        self._stack.close()


class Loop(Protocol):
    """Accepts connections and replies on them until its process ends."""

    def __init__(self, listening: socket.socket, reply: bytes) -> None: ...

    def run(self) -> None: ...


def main() -> None:
    child.serve(partial(serve, _Loop))


def serve(make: type[Loop], channel: child.Channel, listening: int, reply: int) -> None:
    """Runs the whole server process. listening, reply: file descriptors."""
    with open(reply, "rb") as file:
        file.seek(0)
        loop = make(socket.socket(fileno=listening), file.read())
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    gc.collect()
    # The garbage collector is not needed, because the loop creates no reference cycles.
    gc.disable()
    channel.send("ready")
    loop.run()


class _Connection:
    __slots__ = ("begun", "missing", "sock", "unsent")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.begun = b""
        """The beginning of an incomplete head."""
        self.missing = 0
        """Number of body bytes that have not arrived yet."""
        self.unsent = memoryview(b"")
        """Bytes that did not fit into the socket's buffer; nothing is read until these bytes are sent."""


class _Loop:
    """Handles all connections on one thread with one level-triggered epoll, so unread bytes cause another event."""

    def __init__(self, listening: socket.socket, reply: bytes) -> None:
        listening.setblocking(False)
        self._listening = listening
        self._reply = reply
        self._poll = select.epoll()
        self._poll.register(listening.fileno(), select.EPOLLIN)
        self._connections: dict[int, _Connection] = {}
        self._lengths: dict[bytes, int] = {}
        """Maps a head, including its end, to the length of its body."""
        self._scratch = bytearray(_SCRATCH_BYTES)

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
                        self._send_rest(connection)
                    elif connection.missing:
                        self._read_body(connection)
                    else:
                        self._read(connection)
                except (
                    OSError,
                    ValueError,
                ):  # the client has disconnected, or its request cannot be read
                    del connections[fd]
                    connection.sock.close()

    def _accept(self) -> None:
        try:
            sock, _ = self._listening.accept()
        except OSError:  # the client has closed its connection
            return
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections[sock.fileno()] = _Connection(sock)
        self._poll.register(sock.fileno(), select.EPOLLIN)

    def _read(self, connection: _Connection) -> None:
        data = connection.sock.recv(_READ_BYTES)
        if not data:
            raise ConnectionResetError
        end = data.find(_END) + len(_END)
        if not connection.begun and end + self._lengths.get(data[:end], _UNKNOWN) == len(data):
            self._send(connection, self._reply)
        else:
            self._read_parts(connection, connection.begun + data)

    def _read_parts(self, connection: _Connection, data: bytes) -> None:
        """Reads the beginning of a request, or several requests, from `data`."""
        requests = at = 0
        while (end := data.find(_END, at)) >= 0:
            end += len(_END)
            after = end + self._length(data[at:end])
            if after > len(data):
                connection.missing, at = after - len(data), len(data)
                break
            requests, at = requests + 1, after
        connection.begun = data[at:]
        if len(connection.begun) > _MOST_HEAD_BYTES:
            raise ValueError("the request head is too long")
        if requests:
            self._send(connection, self._reply * requests)

    def _length(self, head: bytes) -> int:
        length = self._lengths.get(head)
        if length is None:
            if b"transfer-encoding:" in head.lower():
                raise ValueError("the body has no Content-Length")
            match = _LENGTH.search(head)
            length = int(match[1]) if match else 0
            if len(self._lengths) >= _MOST_LENGTHS:
                self._lengths.clear()
            self._lengths[head] = length
        return length

    def _read_body(self, connection: _Connection) -> None:
        size = connection.sock.recv_into(self._scratch, min(connection.missing, len(self._scratch)))
        if not size:
            raise ConnectionResetError
        connection.missing -= size
        if not connection.missing:
            self._send(connection, self._reply)

    def _send(self, connection: _Connection, data: bytes) -> None:
        try:
            sent = connection.sock.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            connection.unsent = memoryview(data)[sent:]
            self._poll.modify(connection.sock.fileno(), select.EPOLLOUT)

    def _send_rest(self, connection: _Connection) -> None:
        connection.unsent = connection.unsent[connection.sock.send(connection.unsent) :]
        if not connection.unsent:
            self._poll.modify(connection.sock.fileno(), select.EPOLLIN)
