"""Serves HTTP/1.1 connections on one thread: reads requests, calls the handler for each request, and sends the replies."""

import errno
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from harness.core.console import say
from harness.serve.answers import CLOSE, CONTINUE, json_answer
from harness.serve.bodies import Malformed
from harness.serve.patience import SILENT_NS, TICK_NS, WAIT_NS, Patience
from harness.serve.requests import END, Head, Parser, Request

Parts = Sequence[bytes | memoryview]
"""The parts of a reply. Each memoryview must be one-dimensional and contain bytes."""


class Later:
    """A reply that the handler does not return itself; `Work` returns the reply's parts later."""

    __slots__ = ("closes", "is_awaited")

    def __init__(self) -> None:
        self.closes = False
        """Whether closing the connection marks the end of the reply."""
        self.is_awaited = True
        """Whether the client is still connected. Only the loop sets this value."""


Handler = Callable[[Request, int], "Parts | Later"]
"""Returns the parts of the reply to a request. The second argument is the wall-clock time in ns at which the last byte
of the request arrived.
"""


class Part(NamedTuple):
    """The next bytes of a reply."""

    later: Later
    content: bytes
    is_last: bool


Work = Callable[[], "Sequence[Part] | None"]
"""Does a small part of the work on incomplete replies. Returns the parts to send, or None if no work is left."""

Problem = Callable[[int, str], Mapping[str, Any]]
"""Returns the JSON of an error reply, given the status and the error text."""

READ_BYTES = 1 << 16
LINGER_NS = 2_000_000_000
"""A connection is still read for this time after its last reply, because TCP might discard the reply if bytes remained
unread.
"""

DRAIN_NS = 1_000_000_000
"""Incomplete replies may take this much longer after a stop; replies that take longer are dropped."""

_SO_TIMESTAMPNS = 35
"""Socket option that makes the kernel stamp received data with the wall-clock time.

Source: include/uapi/asm-generic/socket.h.
"""

_STAMP = struct.Struct("=qq")
_ANCILLARY_BYTES = socket.CMSG_SPACE(_STAMP.size)
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_GONE = (OSError, ValueError)
_HAS_GONE = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_READING = select.EPOLLIN | select.EPOLLRDHUP


class _Connection:
    __slots__ = (
        *("is_ending", "keeps_open", "later", "parser", "sock", "taken_ns", "unsent"),
        "watched",
    )

    def __init__(self, sock: socket.socket, known: dict[bytes, Head]) -> None:
        self.sock = sock
        self.parser = Parser(known)
        self.keeps_open = True
        self.unsent = memoryview(b"")
        """Bytes that did not fit into the socket's buffer. No request is read until these bytes are sent."""
        self.later: Later | None = None
        """The reply that is being sent, or None between replies. No request is read until the reply is complete."""
        self.is_ending = False
        """Whether the last reply has been sent; received bytes are then discarded until the connection is closed.
        """
        self.taken_ns = 0
        """Time, on the clock of `Patience`, when the peer last completed a request or finished receiving a long reply.
        """
        self.watched = _READING
        """Events that epoll reports for this connection."""

    @property
    def is_silent(self) -> bool:
        """Whether no request or reply is in progress on the connection."""
        return not (self.later or self.unsent or self.is_ending or self.parser.has_begun)


class Loop:
    """The server's loop, which uses one level-triggered epoll, so that unread bytes cause another event.

    If a peer does not complete a message within its time limit (`patience`), the loop refuses the request or closes the
    connection. A connection without a request may stay open until a new connection needs its descriptor.

    The loop handles the requests on one connection in order. The loop handles the requests on different connections in
    the order in which the kernel reports them. The handler runs on this thread, while further requests wait in the
    sockets. `work` also runs on this thread, once after each check of the sockets while work is left.
    """

    def __init__(
        self,
        listening: socket.socket,
        handle: Handler,
        work: Work = lambda: None,
        problem: Problem = lambda _status, text: {"error": text},
    ) -> None:
        """listening: a bound and listening socket, which the loop closes.

        work: completes replies for which the handler returned a Later. problem: creates the JSON for an error.
        """
        listening.setblocking(False)
        self._listening = listening
        self._handle = handle
        self._known: dict[bytes, Head] = {}
        self._connections: dict[int, _Connection] = {}
        self._patience: Patience[_Connection] = Patience()
        self._stop_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._work = work
        self._problem = problem
        self._later: dict[Later, _Connection] = {}
        self.accepts = True
        """Whether the loop accepts new connections; False while no descriptor is free."""
        self.address: tuple[str, int] = listening.getsockname()[:2]
        self._poll = select.epoll()
        self._poll.register(self._stop_fd, select.EPOLLIN)
        self._poll.register(self._wake_fd, select.EPOLLIN)
        self._poll.register(listening.fileno(), select.EPOLLIN)
        self._has_stopped = False
        self._has_work = False

    @property
    def open_connections(self) -> int:
        return len(self._connections)

    def stop(self) -> None:
        """Makes `run` end when replies to all received requests have been sent. Safe to call in signal handlers."""
        os.eventfd_write(self._stop_fd, 1)

    def wake(self) -> None:
        """Makes the loop call `work` soon. Safe to call on other threads."""
        os.eventfd_write(self._wake_fd, 1)

    def run(self) -> None:
        """Serves until `stop` is called, and then closes every socket."""
        try:
            while not self._has_stopped:
                is_timed = self._patience or not self.accepts
                self._turn(0 if self._has_work else TICK_NS / 1e9 if is_timed else None)
                self._do_work()
            self._listening.close()
            self._drain()
        finally:
            self._listening.close()
            for connection in list(self._connections.values()):
                self._close(connection)
            self._poll.close()
            os.close(self._stop_fd)
            os.close(self._wake_fd)

    def _drain(self) -> None:
        """Handles the requests received so far, completes incomplete replies, and sends unsent bytes."""
        deadline_ns = time.monotonic_ns() + DRAIN_NS
        self._turn(0)
        while time.monotonic_ns() < deadline_ns and any(
            connection.unsent or connection.later for connection in self._connections.values()
        ):
            self._do_work()
            self._turn(0 if self._has_work else 0.05)

    def _turn(self, timeout_s: float | None) -> None:
        own, stop, wake = self._listening.fileno(), self._stop_fd, self._wake_fd
        for fd, event in self._events(timeout_s):
            if fd == own:
                self._accept()
            elif fd == wake:
                os.eventfd_read(wake)
            elif fd == stop:
                self._has_stopped = True
                self._poll.unregister(stop)
            elif (connection := self._connections.get(fd)) is not None:
                try:
                    self._serve(connection, event)
                except _GONE:
                    self._close(connection)
        if self._patience.is_time_to_look():
            self._end_late()
            self._free_descriptors()

    def _events(self, timeout_s: float | None) -> Sequence[tuple[int, int]]:
        self._patience.begin_wait()
        events = self._poll.poll(timeout_s)
        self._patience.end_wait()
        return events

    def _serve(self, connection: _Connection, event: int) -> None:
        if connection.later is not None and event & _HAS_GONE:
            self._close(connection)
        elif event & select.EPOLLOUT:
            self._send_rest(connection)
        elif connection.later is not None:
            # Until the reply is sent, only the end of the connection is reported, because few clients send another
            # request before the reply.
            self._watch(connection, select.EPOLLRDHUP)
        else:
            self._read(connection)

    def _accept(self) -> None:
        try:
            sock, _ = self._listening.accept()
        except OSError as e:
            if e.errno in _OUT_OF_DESCRIPTORS:
                say(f"no more connections can be opened: {e.strerror}")
                # The loop accepts connections again when a connection is closed.
                self._poll.unregister(self._listening.fileno())
                self.accepts = False
            return
        sock.setblocking(False)
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._connections[sock.fileno()] = connection = _Connection(sock, self._known)
        connection.taken_ns = self._patience.now_ns
        self._poll.register(sock.fileno(), _READING)

    def _close(self, connection: _Connection) -> None:
        del self._connections[connection.sock.fileno()]
        self._patience.settle(connection)
        if connection.later is not None:
            connection.later.is_awaited = False
            del self._later[connection.later]
        connection.sock.close()
        if not self.accepts and not self._has_stopped:
            self._poll.register(self._listening.fileno(), select.EPOLLIN)
            self.accepts = True

    def _end_late(self) -> None:
        for connection in self._patience.late():
            if connection.is_ending or connection.unsent:
                self._close(connection)
                continue
            try:
                self._refuse(connection, 408, "the request did not arrive in time")
            except _GONE:
                self._close(connection)

    def _free_descriptors(self) -> None:
        """Closes idle connections if new connections wait for a descriptor."""
        if self.accepts:
            return
        long_ago_ns = self._patience.now_ns - SILENT_NS
        for connection in list(self._connections.values()):
            if connection.is_silent and connection.taken_ns <= long_ago_ns:
                self._close(connection)

    def _settle(self, connection: _Connection) -> None:
        """Records that the peer has sent a complete request or received its whole reply."""
        self._patience.settle(connection)
        connection.taken_ns = self._patience.now_ns

    def _read(self, connection: _Connection) -> None:
        parser = connection.parser
        room = parser.room()
        if room is not None:
            size, ancillary, _, _ = connection.sock.recvmsg_into([room], _ANCILLARY_BYTES)
            parser.fill(size)
        else:
            data, ancillary, _, _ = connection.sock.recvmsg(READ_BYTES, _ANCILLARY_BYTES)
            size = len(data)
            if not connection.is_ending:
                parser.add(data)
        if not size:
            self._close(connection)
        elif not connection.is_ending:
            self._patience.add_bytes(connection, size)
            self._answer(connection, _arrived_ns(ancillary))

    def _answer(self, connection: _Connection, arrived_ns: int) -> None:
        """Handles the complete requests, but stops when a reply does not fit into the socket's buffer."""
        parser = connection.parser
        try:
            while not connection.unsent and (request := parser.next()) is not None:
                self._settle(connection)
                connection.keeps_open = request.head.keeps_open
                answer = self._handle(request, arrived_ns)
                if isinstance(answer, Later):
                    connection.keeps_open &= not answer.closes
                    connection.later = answer
                    self._later[answer] = connection
                    return
                self._send(
                    connection, _without_body(answer) if request.head.wants_no_body else answer
                )
                if not connection.keeps_open:
                    return
            if parser.wants_continue:
                parser.wants_continue = False
                self._send(connection, [CONTINUE])
        except Malformed as e:
            self._refuse(connection, e.status, str(e))
            return
        if parser.has_begun and not self._patience.is_awaited(connection):
            self._patience.wait_for(connection, WAIT_NS)

    def _refuse(self, connection: _Connection, status: int, text: str) -> None:
        """Sends an error as the last reply on a connection."""
        connection.keeps_open = False
        self._send(connection, [json_answer(self._problem(status, text), CLOSE, status)])

    def _do_work(self) -> None:
        """Calls `work` once, and sends the returned parts to the clients that are still connected."""
        parts = self._work()
        self._has_work = parts is not None
        for later, content, is_last in parts or ():
            connection = self._later.get(later)
            if connection is None:
                continue
            try:
                self._send_part(connection, content, is_last)
            except _GONE:
                self._close(connection)

    def _send_part(self, connection: _Connection, content: bytes, is_last: bool) -> None:
        if is_last:
            assert connection.later is not None
            del self._later[connection.later]
            connection.later = None
            if not connection.unsent:
                self._watch(connection, _READING)
        if connection.unsent:
            connection.unsent = memoryview(bytes(connection.unsent) + content)
            return
        self._send(connection, [content])
        if is_last and connection.keeps_open and not connection.unsent:
            # This call handles further requests that arrived together with the last one.
            self._answer(connection, time.time_ns())

    def _send(self, connection: _Connection, parts: Parts) -> None:
        try:
            if len(parts) == 1:
                sent, size = connection.sock.send(parts[0]), len(parts[0])
            else:
                size = sum(map(len, parts))
                sent = connection.sock.sendmsg(parts)
        except BlockingIOError:
            sent, size = 0, 1
        if sent < size:
            # The rest is copied, because the backend may write its next answer into the same memory.
            connection.unsent = memoryview(b"".join(parts))[sent:]
            self._watch(connection, select.EPOLLOUT | self._while_incomplete(connection))
            self._patience.wait_for(connection, WAIT_NS)
        elif not connection.keeps_open and connection.later is None:
            self._finish(connection)

    def _watch(self, connection: _Connection, events: int) -> None:
        if connection.watched != events:
            self._poll.modify(connection.sock.fileno(), events)
            connection.watched = events

    @staticmethod
    def _while_incomplete(connection: _Connection) -> int:
        """Returns the events to watch while a reply is incomplete: only the end of the connection."""
        return 0 if connection.later is None else select.EPOLLRDHUP

    def _send_rest(self, connection: _Connection) -> None:
        sent = connection.sock.send(connection.unsent)
        connection.unsent = connection.unsent[sent:]
        self._patience.add_bytes(connection, sent)
        if connection.unsent:
            return
        self._settle(connection)
        self._watch(connection, self._while_incomplete(connection) or _READING)
        if connection.later is not None:
            return
        if connection.keeps_open:
            # This call handles further requests that arrived together with the last one.
            self._answer(connection, time.time_ns())
        else:
            self._finish(connection)

    def _finish(self, connection: _Connection) -> None:
        """Stops sending. Then either the client or `_end_late` closes the connection."""
        connection.sock.shutdown(socket.SHUT_WR)
        connection.is_ending = True
        self._patience.wait_for(connection, LINGER_NS)


def _without_body(answer: Parts) -> Parts:
    head, end, _ = bytes(answer[0]).partition(END)
    return [head + end]


def _arrived_ns(ancillary: list[tuple[int, int, bytes]]) -> int:
    """Returns the kernel's time stamp, or the current time if the socket provides no stamps, as with a Unix socket."""
    for _, kind, data in ancillary:
        if kind == _SO_TIMESTAMPNS:
            seconds, ns = _STAMP.unpack(data)
            return int(seconds * 1_000_000_000 + ns)
    return time.time_ns()
