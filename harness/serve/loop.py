"""Serves HTTP/1.1 connections in one thread: reads requests, has each answered in turn, sends the answers."""

import errno
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from harness.core.console import say
from harness.serve.answers import CLOSE, CONTINUE, json_answer
from harness.serve.requests import Head, Malformed, Parser, Request

Handler = Callable[[Request, int], Sequence[bytes | memoryview]]
"""From a request, and the time its last byte arrived in ns of the wall clock, to the parts of an answer.
A memoryview is of bytes, in one dimension."""

READ_BYTES = 1 << 16
LINGER_NS = 2_000_000_000
"""A connection that was closed is read for this long: with unread bytes TCP would drop the answer, too."""

DRAIN_NS = 1_000_000_000
"""At the end answers that have begun may take this long."""

_SO_TIMESTAMPNS = 35
"""include/uapi/asm-generic/socket.h. The kernel stamps what arrives with the wall clock, in ns."""

_STAMP = struct.Struct("=qq")
_ANCILLARY_BYTES = socket.CMSG_SPACE(_STAMP.size)
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_GONE = (OSError, ValueError)


class _Connection:
    __slots__ = ("closes_at_ns", "keeps_open", "parser", "sock", "unsent")

    def __init__(self, sock: socket.socket, known: dict[bytes, Head]) -> None:
        self.sock = sock
        self.parser = Parser(known)
        self.keeps_open = True
        self.unsent = memoryview(b"")
        """What the socket's buffer had no room for; nothing is read meanwhile."""
        self.closes_at_ns: int | None = None
        """Set once the last answer is sent: what comes after it is thrown away until then."""


class Loop:
    """One epoll, level-triggered: what a read leaves makes the next event.

    Requests of a connection are answered in their order; those of several connections in the order in which
    the kernel reports them. The handler runs in this thread: while it works, requests wait in the sockets.
    """

    def __init__(self, listening: socket.socket, handle: Handler) -> None:
        """listening: bound and listening; the loop closes it."""
        listening.setblocking(False)
        self._listening = listening
        self._handle = handle
        self._known: dict[bytes, Head] = {}
        self._connections: dict[int, _Connection] = {}
        self._closing: set[_Connection] = set()
        self._stop_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.accepts = True
        """False while no descriptor is free for a further connection."""
        self.address: tuple[str, int] = listening.getsockname()[:2]
        self._poll = select.epoll()
        self._poll.register(self._stop_fd, select.EPOLLIN)
        self._poll.register(listening.fileno(), select.EPOLLIN)
        self._has_stopped = False

    @property
    def open_connections(self) -> int:
        return len(self._connections)

    def stop(self) -> None:
        """End `run` once the requests that are here have been answered. Safe in signal handlers."""
        os.eventfd_write(self._stop_fd, 1)

    def run(self) -> None:
        """Serve until `stop`; then every socket is closed."""
        try:
            while not self._has_stopped:
                self._turn(1.0 if self._closing else None)
            self._listening.close()
            self._drain()
        finally:
            self._listening.close()
            for connection in list(self._connections.values()):
                self._close(connection)
            self._poll.close()
            os.close(self._stop_fd)

    def _drain(self) -> None:
        """Answers what has arrived, and sends what is unsent."""
        deadline_ns = time.monotonic_ns() + DRAIN_NS
        self._turn(0)
        while time.monotonic_ns() < deadline_ns and any(
            connection.unsent for connection in self._connections.values()
        ):
            self._turn(0.05)

    def _turn(self, timeout_s: float | None) -> None:
        own, stop = self._listening.fileno(), self._stop_fd
        for fd, event in self._poll.poll(timeout_s):
            if fd == own:
                self._accept()
            elif fd == stop:
                self._has_stopped = True
                self._poll.unregister(stop)
            else:
                connection = self._connections[fd]
                try:
                    if event & select.EPOLLOUT:
                        self._send_rest(connection)
                    else:
                        self._read(connection)
                except _GONE:
                    self._close(connection)
        if self._closing:
            self._close_late()

    def _accept(self) -> None:
        try:
            sock, _ = self._listening.accept()
        except OSError as e:
            if e.errno in _OUT_OF_DESCRIPTORS:
                say(f"no further connection can be opened: {e.strerror}")
                self._poll.unregister(self._listening.fileno())  # until one is closed
                self.accepts = False
            return
        sock.setblocking(False)
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._connections[sock.fileno()] = _Connection(sock, self._known)
        self._poll.register(sock.fileno(), select.EPOLLIN)

    def _close(self, connection: _Connection) -> None:
        del self._connections[connection.sock.fileno()]
        self._closing.discard(connection)
        connection.sock.close()
        if not self.accepts and not self._has_stopped:
            self._poll.register(self._listening.fileno(), select.EPOLLIN)
            self.accepts = True

    def _close_late(self) -> None:
        now_ns = time.monotonic_ns()
        for connection in list(self._closing):
            if connection.closes_at_ns is not None and connection.closes_at_ns <= now_ns:
                self._close(connection)

    def _read(self, connection: _Connection) -> None:
        parser = connection.parser
        room = parser.room()
        if room is not None:
            size, ancillary, _, _ = connection.sock.recvmsg_into([room], _ANCILLARY_BYTES)
            parser.fill(size)
        else:
            data, ancillary, _, _ = connection.sock.recvmsg(READ_BYTES, _ANCILLARY_BYTES)
            size = len(data)
            if connection.closes_at_ns is None:
                parser.add(data)
        if not size:
            self._close(connection)
        elif connection.closes_at_ns is None:
            self._answer(connection, _arrived_ns(ancillary))

    def _answer(self, connection: _Connection, arrived_ns: int) -> None:
        """Answers the complete requests, until one answer does not fit into the socket's buffer."""
        parser = connection.parser
        try:
            while not connection.unsent and (request := parser.next()) is not None:
                connection.keeps_open = request.head.keeps_open
                self._send(connection, self._handle(request, arrived_ns))
                if not connection.keeps_open:
                    return
            if parser.wants_continue:
                parser.wants_continue = False
                self._send(connection, [CONTINUE])
        except Malformed as e:
            connection.keeps_open = False
            self._send(connection, [json_answer({"error": str(e)}, CLOSE, e.status)])

    def _send(self, connection: _Connection, parts: Sequence[bytes | memoryview]) -> None:
        try:
            if len(parts) == 1:
                sent, size = connection.sock.send(parts[0]), len(parts[0])
            else:
                size = sum(map(len, parts))
                sent = connection.sock.sendmsg(parts)
        except BlockingIOError:
            sent, size = 0, 1
        if sent < size:
            # A copy: the backend may write its next answer into the same memory.
            connection.unsent = memoryview(b"".join(parts))[sent:]
            self._poll.modify(connection.sock.fileno(), select.EPOLLOUT)
        elif not connection.keeps_open:
            self._finish(connection)

    def _send_rest(self, connection: _Connection) -> None:
        connection.unsent = connection.unsent[connection.sock.send(connection.unsent) :]
        if connection.unsent:
            return
        self._poll.modify(connection.sock.fileno(), select.EPOLLIN)
        if connection.keeps_open:
            self._answer(connection, time.time_ns())  # requests that came with the last one
        else:
            self._finish(connection)

    def _finish(self, connection: _Connection) -> None:
        """Nothing more is sent; the client closes, or `_close_late` does."""
        connection.sock.shutdown(socket.SHUT_WR)
        connection.closes_at_ns = time.monotonic_ns() + LINGER_NS
        self._closing.add(connection)


def _arrived_ns(ancillary: list[tuple[int, int, bytes]]) -> int:
    """The kernel's stamp; the time now where it has given none, as for a Unix socket."""
    for _, kind, data in ancillary:
        if kind == _SO_TIMESTAMPNS:
            seconds, ns = _STAMP.unpack(data)
            return int(seconds * 1_000_000_000 + ns)
    return time.time_ns()
