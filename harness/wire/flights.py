"""Drives many requests at once over keep-alive connections, and stamps where each one's time went.

The thread that issues calls `submit`, which sends at once where a connection is free. Another thread, or the
same one, calls `turn`, which receives and returns finished flights. The two share deques, whose operations
are one step under the GIL, and no lock: each puts its own part down first and looks for the other's then, so
one of them sees both.
"""

import select
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from os import EFD_NONBLOCK, close, eventfd, eventfd_read, eventfd_write
from time import monotonic

from harness.core.clock import wall_ns
from harness.core.units import NS_PER_S
from harness.remote import Reply, Request, StreamReader
from harness.wire.connections import Connection, Server, connect, size_bytes, unreachable
from harness.wire.http1 import BadReply, Heads, ReplyParser
from harness.wire.opener import CONNECT_TIMEOUT_S, Opener

SENT_BY_ISSUER_BYTES = 16_384
"""A larger request is sent by the receiving thread: 600 kB would keep the next query waiting 160 us."""

PACED_CONNECTS = 128
"""Connections opened before a pause: a server's queue of new ones has 128 places or more."""
PACE_S = 0.05

IDLE_S = 4.0
"""A connection that was idle for longer is replaced before it is used: servers close them after 5 s."""

_TICK_S = 0.1
_CLOSED = "the server closed the connection"


class Flight:
    """One request from submission to reply. Stamps are of the wall clock in ns; 0: not reached."""

    __slots__ = (
        "arrived_ns",
        "chunks",
        "error",
        "first",
        "ids",
        "indices",
        "kind",
        "read_ns",
        "reader",
        "reply",
        "resent",
        "sent_ns",
        "taken_ns",
        "tokens",
    )

    def __init__(self, ids: Sequence[int], indices: Sequence[int], first: int) -> None:
        self.ids = ids
        self.indices = indices
        self.first = first
        self.taken_ns = self.sent_ns = self.arrived_ns = self.read_ns = 0
        self.reply: Reply | None = None
        self.error: Exception | None = None
        self.kind = ""
        """Kind of the error: reset, timeout, server-gone, bad-reply, encode."""
        self.resent = False
        self.reader: StreamReader | None = None
        """Has read the reply, where replies are streams and it began."""
        self.chunks: list[tuple[int, int]] = []
        """(stamp, what the reader counts so far) of each arrival that brought tokens."""
        self.tokens = 0
        """Tokens of the answer, once it is read; 0 where the server does not tell."""


class Flights:
    """Requests in flight to one server or several replicas. One thread calls `submit`, one calls `turn`.

    encode: the request of dataset indices; called on either thread. connections: to each server. Making it
    raises a ConfigError where one of the servers cannot be reached.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        connections: int,
        encode: Callable[[Sequence[int]], Request],
        timeout_s: float,
        *,
        resend: bool = True,
        reader: Callable[[], StreamReader] | None = None,
    ) -> None:
        """reader: makes a reader of each reply, where replies are streams."""
        self._servers = servers
        self._heads = [Heads(s.address.authority, s.address.prefix, s.headers) for s in servers]
        self._encode = encode
        self._timeout_ns = int(timeout_s * NS_PER_S)
        self._resend = resend
        self._reader = reader
        self._waiting: deque[Flight] = deque()
        self._free: list[Connection] = []
        self._open: dict[int, Connection] = {}  # descriptor -> every open connection
        self._failed: deque[Flight] = deque()  # without a connection, for the next turn
        self._again: deque[Flight] = deque()
        self._new: deque[Connection] = deque()  # for what is sent again
        self._broken: deque[tuple[Connection, Flight, OSError]] = deque()
        self._epoll = select.epoll()
        self._wake = eventfd(0, EFD_NONBLOCK)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._next_look_s = monotonic() + _TICK_S
        self.waited = 0
        """Flights for which no connection was free."""
        self.waited_ns = 0
        """Time that the last turn waited for events."""
        self.resent = 0
        self.reopened = 0
        self.gone: Exception | None = None
        """Why the servers are given up."""
        self._opener = Opener(servers, self._opened, self._refused)
        try:
            for n in range(connections * len(servers)):
                if n and n % PACED_CONNECTS == 0:
                    threading.Event().wait(PACE_S)
                number = n % len(servers)
                self._open_first(number)
        except BaseException:
            self.close()
            raise
        self._peers = [(c.peer(), c.is_local) for c in self._free[: len(servers)]]
        self._opener.start()

    def _open_first(self, number: int) -> None:
        server = self._servers[number]
        try:
            connection = connect(server, CONNECT_TIMEOUT_S, number)
        except OSError as e:
            unreachable(server.address, e)
        self._opened(connection)

    # The issuing thread.

    def submit(self, flight: Flight) -> None:
        """Sends the flight's request, at once or when a connection is free."""
        self._waiting.append(flight)
        self._dispatch()
        if flight.taken_ns == 0:
            self.waited += 1
            if self.gone is not None:
                eventfd_write(self._wake, 1)

    # Both threads.

    def _dispatch(self) -> None:
        waiting, free = self._waiting, self._free
        while waiting and free:
            try:
                connection = free.pop()
            except IndexError:
                return
            try:
                flight = waiting.popleft()
            except IndexError:
                free.append(connection)  # and look again: one may have come since
                continue
            self._launch(connection, flight)

    def _launch(self, connection: Connection, flight: Flight) -> None:
        flight.taken_ns = flight.taken_ns or wall_ns()
        try:
            request = self._encode(flight.indices)
            body = request.body
            length = size_bytes(body[0]) if len(body) == 1 else sum(map(size_bytes, body))
            head = self._heads[connection.number].head(request, length)
        except Exception as e:  # noqa: BLE001 - of the plug-in or the dataset: a failed flight
            self._free.append(connection)
            self._fail(flight, "encode", e)
            return
        connection.flight = flight
        try:
            if length > SENT_BY_ISSUER_BYTES:
                connection.post((head, *body))
                self._epoll.modify(connection.fd, select.EPOLLIN | select.EPOLLOUT)
            elif connection.send(b"".join((head, *body))):
                flight.sent_ns = wall_ns()
            else:
                self._epoll.modify(connection.fd, select.EPOLLIN | select.EPOLLOUT)
        except OSError as e:
            self._report(connection, flight, e)
        # The other thread may have discarded the connection before it could see the flight.
        if self._open.get(connection.fd) is not connection:
            self._report(connection, flight, ConnectionResetError(_CLOSED))

    def _report(self, connection: Connection, flight: Flight, error: OSError) -> None:
        self._broken.append((connection, flight, error))
        eventfd_write(self._wake, 1)

    def _fail(self, flight: Flight, kind: str, error: Exception) -> None:
        flight.kind, flight.error = kind, error
        self._failed.append(flight)
        eventfd_write(self._wake, 1)

    # The receiving thread.

    def turn(self, timeout_s: float) -> list[Flight]:
        """Receives what has arrived, waiting at most so long; sends to connections that became free."""
        done: list[Flight] = []
        before_ns = wall_ns()
        events = self._epoll.poll(min(timeout_s, _TICK_S))
        self.waited_ns = wall_ns() - before_ns
        by_fd, receive = self._open, self._receive
        for fd, event in events:
            connection = by_fd.get(fd)
            if connection is not None:
                receive(connection, event, done)
            elif fd == self._wake:
                eventfd_read(fd)
        if self._new:
            self._send_again()
        if self._waiting:
            self._dispatch()
        while self._failed:
            done.append(self._failed.popleft())
        while self._broken:
            connection, flight, error = self._broken.popleft()
            if connection.flight is flight:  # it was not seen to break meanwhile
                self._broke(connection, error, done)
        if self.gone is not None or monotonic() >= self._next_look_s:
            self._look(done)
        return done

    def _send_again(self) -> None:
        while self._new:
            connection = self._new.popleft()
            if self._again:
                self._launch(connection, self._again.popleft())
            else:
                self._free.append(connection)

    def _receive(self, connection: Connection, event: int, done: list[Flight]) -> None:
        flight = connection.flight
        if event & select.EPOLLOUT:
            self._flush(connection, flight, done)
            if event == select.EPOLLOUT:
                return
        try:
            data, stamp_ns = connection.receive()
            read_ns = wall_ns()
            reply = connection.parser.feed(data) if data else None
        except BlockingIOError:
            return
        except (OSError, BadReply) as e:
            self._broke(connection, e, done)
            return
        if connection.parser.pieces and flight is not None:
            self._feed(connection.parser, flight, stamp_ns or read_ns)
        if reply is None:
            if not data:
                self._ended(connection, done)
            return
        if flight is None:
            self._broke(connection, BadReply("bytes arrived without a request"), done)
            return
        self._finish(connection, flight, reply, stamp_ns, read_ns)
        done.append(flight)
        if connection.parser.closes or connection.unsent:
            self._discard(connection)
        else:
            self._free.append(connection)

    def _feed(self, parser: ReplyParser, flight: Flight, stamp_ns: int) -> None:
        """Has the flight's reader read what has just arrived of its reply."""
        assert self._reader is not None
        assert parser.pieces is not None
        reader = flight.reader
        if reader is None:
            reader = flight.reader = self._reader()
        piece = b"".join(parser.pieces)
        parser.pieces.clear()
        before = flight.chunks[-1][1] if flight.chunks else 0
        tokens = reader.feed(piece)
        if tokens > before:
            flight.chunks.append((stamp_ns, tokens))

    def _flush(self, connection: Connection, flight: Flight | None, done: list[Flight]) -> None:
        try:
            if connection.flush():
                if flight is not None:
                    flight.sent_ns = wall_ns()
                self._epoll.modify(connection.fd, select.EPOLLIN)
        except OSError as e:
            self._broke(connection, e, done)

    @staticmethod
    def _finish(
        connection: Connection, flight: Flight, reply: Reply, stamp_ns: int, read_ns: int
    ) -> None:
        connection.flight = None
        connection.replies += 1
        connection.used_ns = read_ns
        flight.reply = reply
        flight.read_ns = read_ns
        flight.arrived_ns = stamp_ns
        # The issuing thread may not have come to its stamp yet: the reply was there before.
        if not flight.sent_ns:
            flight.sent_ns = stamp_ns or read_ns

    def _ended(self, connection: Connection, done: list[Flight]) -> None:
        """The server closed the connection: the end of a reply without a length, or a loss."""
        try:
            reply = connection.parser.close()
        except BadReply as e:
            self._broke(connection, e, done)
            return
        flight = connection.flight
        if reply is None:
            self._broke(connection, ConnectionResetError(_CLOSED), done)
            return
        now_ns = wall_ns()
        if flight is not None:
            self._finish(connection, flight, reply, 0, now_ns)
            done.append(flight)
        self._discard(connection)

    def _broke(self, connection: Connection, error: Exception, done: list[Flight]) -> None:
        # Dropped first: the sending thread looks at that after it has set its flight.
        dropped = self._drop(connection)
        flight, connection.flight = connection.flight, None
        if flight is not None:
            self._lost(connection, flight, error, dropped, done)
        if dropped:  # last: what is sent again waits for this new connection by now
            self._replace(connection)

    def _lost(
        self,
        connection: Connection,
        flight: Flight,
        error: Exception,
        dropped: bool,
        done: list[Flight],
    ) -> None:
        """Sends the flight again where the loss is nobody's fault, else fails it. dropped: just now."""
        # A server may close an idle connection just when a request is sent on it: sent once more.
        stale = isinstance(error, OSError) and connection.replies and not connection.parser.began
        if stale and self._resend and not flight.resent:
            flight.resent, flight.sent_ns = True, 0
            self.resent += 1
            if dropped:  # on a new connection: others may have been closed as well
                self._again.append(flight)
            else:  # the new connection was asked for before, and may serve others already
                self._waiting.appendleft(flight)
            return
        flight.kind = "bad-reply" if isinstance(error, BadReply) else "reset"
        flight.error = error
        flight.read_ns = wall_ns()
        done.append(flight)

    def _discard(self, connection: Connection) -> None:
        """Closes a connection, and has another one opened in its place."""
        if self._drop(connection):
            self._replace(connection)

    def _drop(self, connection: Connection) -> bool:
        """Closes a connection; returns whether it was open."""
        with suppress(ValueError):
            self._free.remove(connection)
        if self._open.get(connection.fd) is not connection:
            return False
        del self._open[connection.fd]
        with suppress(OSError):
            self._epoll.unregister(connection.fd)
        connection.close()
        return True

    def _replace(self, connection: Connection) -> None:
        if self.gone is None:
            self._opener.open(connection.number)

    def _look(self, done: list[Flight]) -> None:
        """What is looked at now and then: time-outs, idle connections, servers that are gone."""
        self._next_look_s = monotonic() + _TICK_S
        now_ns = wall_ns()
        late_ns = now_ns - self._timeout_ns
        for connection in list(self._open.values()):
            flight = connection.flight
            if flight is not None and flight.taken_ns < late_ns:
                self._discard(connection)
                connection.flight = None
                flight.kind = "timeout"
                seconds = self._timeout_ns / NS_PER_S
                flight.error = TimeoutError(f"no reply within {seconds:g} s (--request-timeout)")
                flight.read_ns = now_ns
                done.append(flight)
        idle_ns = now_ns - int(IDLE_S * NS_PER_S)
        for connection in self._free[:]:
            if connection.used_ns < idle_ns:
                try:
                    self._free.remove(connection)
                except ValueError:
                    continue  # it was just taken
                self._discard(connection)
                self.reopened += 1
        if self.gone is not None:
            for waiting in (self._again, self._waiting):
                self._give_up(waiting, self.gone, now_ns, done)

    @staticmethod
    def _give_up(waiting: deque[Flight], error: Exception, now_ns: int, done: list[Flight]) -> None:
        while waiting:
            flight = waiting.popleft()
            flight.taken_ns = flight.taken_ns or now_ns
            flight.kind, flight.error, flight.read_ns = "server-gone", error, now_ns
            done.append(flight)

    # The opening thread.

    def _opened(self, connection: Connection) -> None:
        if self._reader is not None:
            connection.parser.pieces = []
        self._open[connection.fd] = connection
        self._epoll.register(connection.fd, select.EPOLLIN)
        (self._new if self._again else self._free).append(connection)
        eventfd_write(self._wake, 1)  # for what waits

    def _refused(self, error: Exception) -> None:
        if not self._open:
            self.gone = error
            eventfd_write(self._wake, 1)

    def wake(self) -> None:
        """Ends the wait of a `turn` in another thread."""
        eventfd_write(self._wake, 1)

    def forget(self) -> None:
        """Sets the counts to 0, before the run."""
        self.waited = self.resent = self.reopened = 0

    def peers(self) -> list[tuple[str, bool]]:
        """Address of each server, and whether it is on this machine, as seen when they were opened."""
        return self._peers

    def close(self) -> None:
        """Closes every connection. No thread may be in `submit` or `turn`."""
        self._opener.stop()
        for connection in list(self._open.values()):
            connection.close()
        self._open.clear()
        self._free.clear()
        self._epoll.close()
        close(self._wake)
