"""Sends many requests at once over keep-alive connections, and records the time stamps of each request.

The issuing thread calls `submit`, which sends the request at once if a connection is free. The same thread or another
thread calls `turn`, which receives replies and returns finished flights. Instead of a lock, the two threads share
deques, whose operations are atomic under the GIL. Each thread first adds its item (a flight or a free connection) and
then looks for the other thread's item, so at least one thread sees both items.
"""

import select
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from operator import attrgetter
from os import EFD_NONBLOCK, close, eventfd, eventfd_read, eventfd_write
from time import monotonic

from harness.core.clock import wall_ns
from harness.core.units import NS_PER_S
from harness.remote import Buffer, Reply, Request, StreamReader
from harness.wire.balance import Free, balanced
from harness.wire.connections import Connection, Server, connect, unreachable
from harness.wire.flight import Flight
from harness.wire.http1 import BadReply, ReplyParser
from harness.wire.idle import TOGETHER, IdlePace
from harness.wire.opener import CONNECT_TIMEOUT_S, Opener
from harness.wire.requests import SHORT_BYTES, Requests

PACED_CONNECTS = 128
"""After opening this many connections, the client pauses, because a server's queue of new connections may hold only
128.
"""
PACE_S = 0.05

_OK = 200
_TICK_S = 0.1

_AT_ONCE_NS = 100_000_000
"""If a server closes a connection sooner than this after a reply, the client assumes that the reply caused the closure,
not idleness.
"""

SILENT_TIMEOUTS = 3
"""The client gives up on the servers if nothing arrives for SILENT_TIMEOUTS times the request timeout, and at least
SILENT_TIMEOUTS requests have timed out.
"""

_CLOSED = "the server closed the connection"


def _in_turn(connections: int | Sequence[int], servers: int) -> Iterator[int]:
    """Yields the server for each connection to open: first one connection per server, then a second one per server, and
    so on.
    """
    counts = [connections] * servers if isinstance(connections, int) else connections
    for turn in range(max(counts)):
        yield from (number for number, count in enumerate(counts) if turn < count)


def _is_answer(flight: Flight, reply: Reply | None) -> bool:
    """Returns whether tokens or a complete answer arrived. A refusal does not count, because it may arrive early, for
    example if the body is too large.
    """
    return bool(flight.chunks) or (reply is not None and reply.status == _OK)


class Flights:
    """Requests in flight to one server or to several replicas. One thread calls `submit`, and one thread calls `turn`.

    encode: creates the request for dataset indices; either thread may call it. The constructor raises ConfigError if a
    server cannot be reached.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        connections: int | Sequence[int],
        encode: Callable[[Sequence[int]], Request],
        timeout_s: float,
        *,
        resend: bool = True,
        reader: Callable[[], StreamReader] | None = None,
        free: Free[Connection] | None = None,
    ) -> None:
        """connections: number of connections to each server, as one number for all servers or one per server.

        reader: creates a reader for each reply, if replies are streams. free: chooses among free connections; by
        default, the most recently used connection to the server with the fewest requests in flight.
        """
        self._servers = servers
        self._requests = Requests(servers, encode)
        self._ready = self._requests.ready
        self._timeout_ns = int(timeout_s * NS_PER_S)
        self._resend = resend
        self._reader = reader
        self._waiting: deque[Flight] = deque()
        self._free: Free[Connection] = balanced(connections, len(servers)) if free is None else free
        # maps a file descriptor to its connection, for every open connection
        self._open: dict[int, Connection] = {}
        # flights that failed before they were sent; the next turn returns them
        self._failed: deque[Flight] = deque()
        self._again: deque[Flight] = deque()
        # new connections, reserved for flights that are sent again
        self._new: deque[Connection] = deque()
        self._broken: deque[tuple[Connection, Flight, OSError]] = deque()
        self._epoll = select.epoll()
        self._wake = eventfd(0, EFD_NONBLOCK)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._tick_s = _TICK_S
        self._looked_s = monotonic()
        self._next_look_s = self._looked_s + _TICK_S
        self._idle = IdlePace()
        self.waited = 0
        """Number of flights for which no connection was free."""
        self.waited_s = 0.0
        """Time that the last turn spent waiting for events."""
        self.resent = self.reopened = 0
        self.gone: Exception | None = None
        """The reason why the client gave up on the servers, or None while the servers are in use."""
        self.refused: dict[int, Exception] = {}
        """Maps a server to its error if the server at some time refused every connection for GIVE_UP_S."""
        self.outage_s = 0.0
        """Longest time for which a server accepted no connection, if the server later accepted a connection again."""
        self.closes_after = [0] * len(servers)
        """Number of replies after which each server closes a connection without notice, or 0 if unknown."""
        # For each server: number of replies on the last connection that the server closed, and the time of closing.
        self._last_ends = [(0, 0)] * len(servers)
        self.begun: list[Flight] | None = None
        """Flights whose first token has arrived since the caller last cleared the list; None if first tokens are not
        collected.
        """
        self._refusing: set[int] = set()  # servers that have refused all connections for GIVE_UP_S
        self._replied_ns = 0  # time of the last reply
        # start of each request that has timed out since the last reply
        self._silent_ns: list[int] = []
        self._openers = [
            Opener(server, number, self._opened, self._refused, self._returned)
            for number, server in enumerate(servers)
        ]
        try:
            for n, number in enumerate(_in_turn(connections, len(servers))):
                if n and n % PACED_CONNECTS == 0:
                    threading.Event().wait(PACE_S)
                self._open_first(number)
        except BaseException:
            self.close()
            raise
        first = {c.number: c for c in reversed(self._open.values())}
        self._peers = [(first[n].peer(), first[n].is_local) for n in range(len(servers))]

    def _open_first(self, number: int) -> None:
        server = self._servers[number]
        try:
            connection = connect(server, CONNECT_TIMEOUT_S, number)
        except OSError as e:
            unreachable(server.address, e)
        self._opened(connection)

    # Methods of the issuing thread.

    def prepare(self, indices: Sequence[int]) -> None:
        """Prepares one request for each of these samples. No other method may run at the same time."""
        self._requests.prepare(indices)

    def submit(self, flight: Flight) -> None:
        """Sends the flight's request, either at once or when a connection becomes free."""
        self._waiting.append(flight)
        if self._free:
            self._dispatch()
        if flight.taken_ns == 0:
            self.waited += 1
            if self.gone is not None:
                eventfd_write(self._wake, 1)

    # Methods of both threads.

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
                # The connection is offered again, because the issuing thread may have added a flight after the first
                # look.
                free.append(connection)
                continue
            self._launch(connection, flight)

    def _launch(self, connection: Connection, flight: Flight) -> None:
        flight.taken_ns = flight.taken_ns or wall_ns()
        flight.server = connection.number
        indices = flight.indices
        parts: Sequence[Buffer] = ()
        data = self._ready[connection.number].get(indices[0]) if len(indices) == 1 else None
        if data is None:
            try:
                parts, length = self._requests.parts(indices, connection.number)
            except Exception as e:  # noqa: BLE001 - of the plug-in or the dataset: a failed flight
                self._free.append(connection)
                self._fail(flight, "encode", e)
                return
            if length <= SHORT_BYTES:
                data = b"".join(parts)
        elif len(data) > SHORT_BYTES:
            parts, data = (data,), None
        connection.flight = flight
        try:
            if data is None:
                connection.post(parts)
                self._epoll.modify(connection.fd, select.EPOLLIN | select.EPOLLOUT)
            elif connection.send(data):
                flight.sent_ns = wall_ns()
            else:
                self._epoll.modify(connection.fd, select.EPOLLIN | select.EPOLLOUT)
        except OSError as e:
            self._report(connection, flight, e)
        # The other thread may have dropped the connection before the flight was visible on it.
        if connection.is_dropped:
            self._report(connection, flight, ConnectionResetError(_CLOSED))

    def _report(self, connection: Connection, flight: Flight, error: OSError) -> None:
        self._broken.append((connection, flight, error))
        eventfd_write(self._wake, 1)

    def _fail(self, flight: Flight, kind: str, error: Exception) -> None:
        flight.kind, flight.error = kind, error
        self._failed.append(flight)
        eventfd_write(self._wake, 1)

    # Methods of the receiving thread.

    def turn(self, timeout_s: float) -> list[Flight]:
        """Receives replies, waiting at most timeout_s, and sends waiting requests on connections that have become free."""
        done: list[Flight] = []
        before_s = monotonic()
        events = self._epoll.poll(min(self._tick_s, timeout_s))
        after_s = monotonic()
        self.waited_s = after_s - before_s
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
            # If the flights differ, the lost connection was already handled.
            if connection.flight is flight:
                self._broke(connection, error, done)
        if self.gone is not None or after_s >= self._next_look_s:
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
        flight, parser = connection.flight, connection.parser
        if event & select.EPOLLOUT:
            self._flush(connection, flight, done)
            if event == select.EPOLLOUT:
                return
        try:
            data, stamp_ns = connection.receive()
            read_ns = wall_ns()
            reply = parser.feed(data) if data else None
        except BlockingIOError:
            return
        except (OSError, BadReply) as e:
            self._broke(connection, e, done)
            return
        # The issuing thread may have sent a request, and the server may have replied, after `flight` was read above.
        flight = flight or connection.flight
        if not data:
            self._ended(connection, done)
            return
        if parser.pieces and flight is not None:
            self._feed(parser, flight, stamp_ns or read_ns)
        if flight is None or (connection.unsent and _is_answer(flight, reply)):
            what = "without a request" if flight is None else "before the whole request was sent"
            self._broke(connection, BadReply(f"bytes of a reply arrived {what}"), done)
            return
        if reply is None:
            return
        self._finish(connection, flight, reply, stamp_ns, read_ns)
        self._replied_ns = read_ns
        done.append(flight)
        last = self.closes_after[connection.number]
        if parser.closes or connection.unsent or connection.replies == last:
            self._discard(connection)
        else:
            self._free.append(connection)

    def _feed(self, parser: ReplyParser, flight: Flight, stamp_ns: int) -> None:
        """Passes the bytes that have just arrived to the flight's reader."""
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
            if self.begun is not None and not flight.chunks:
                flight.first_token = reader.first_token
                self.begun.append(flight)
            flight.chunks.append((stamp_ns, tokens))
        starts = getattr(reader, "answer_starts", 0)
        if starts != flight.answer_starts:
            flight.answer_starts, flight.answer_ns = starts, stamp_ns if starts else 0

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
        # The reply may arrive before the issuing thread has stamped the request as sent.
        if not flight.sent_ns:
            flight.sent_ns = stamp_ns or read_ns

    def _ended(self, connection: Connection, done: list[Flight]) -> None:
        """Handles a connection that the server closed: either the end of a reply without a length, or a loss."""
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
        # The connection is dropped first, because the sending thread checks `is_dropped` after it has set the
        # connection's flight.
        dropped = self._drop(connection)
        if dropped and isinstance(error, OSError) and not connection.parser.began:
            self._learn(connection)
        flight, connection.flight = connection.flight, None
        if flight is not None:
            self._lost(connection, flight, error, dropped, done)
        # The new connection is requested last, so that a flight to be sent again is already waiting for the connection.
        if dropped:
            self._replace(connection)

    def _learn(self, connection: Connection) -> None:
        """Learns after how many replies the server closes a connection without notice.

        If a server closes a connection right after a reply, and later closes a newer connection after the same number
        of replies, the client assumes that the server closes every connection after this number. No connection to this
        server is then used for more replies.
        """
        now_ns, number, replies = wall_ns(), connection.number, connection.replies
        if not replies or now_ns - connection.used_ns > _AT_ONCE_NS:
            return
        before, seen_ns = self._last_ends[number]
        if before != replies:
            self._last_ends[number] = replies, now_ns
        elif connection.opened_ns > seen_ns and not any(
            other.number == number and other.replies > replies
            # iterates over a copy, because the opening threads add connections
            for other in list(self._open.values())
        ):
            self.closes_after[number] = replies

    def _lost(
        self,
        connection: Connection,
        flight: Flight,
        error: Exception,
        dropped: bool,
        done: list[Flight],
    ) -> None:
        """Sends the flight again if its connection was closed while idle; otherwise, fails the flight. dropped: whether
        the connection was open.
        """
        # A server may close an idle connection just when a request is sent on it, so the request is sent once more.
        stale = isinstance(error, OSError) and connection.replies and not connection.parser.began
        if stale and self._resend and not flight.resent:
            flight.resent, flight.sent_ns = True, 0
            self.resent += 1
            if dropped:
                # The flight is sent again on a new connection, because the server may have closed the other open
                # connections too.
                self._again.append(flight)
            else:
                # A new connection was requested earlier, but the new connection may already carry another flight.
                self._waiting.appendleft(flight)
            return
        flight.kind = "bad-reply" if isinstance(error, BadReply) else "reset"
        flight.error = error
        flight.read_ns = wall_ns()
        done.append(flight)

    def _discard(self, connection: Connection) -> None:
        """Closes a connection, and requests a new one."""
        if self._drop(connection):
            self._replace(connection)

    def _drop(self, connection: Connection) -> bool:
        """Closes a connection, and returns whether it was open."""
        with suppress(ValueError):
            self._free.remove(connection)
        if self._open.get(connection.fd) is not connection:
            return False
        del self._open[connection.fd]
        connection.is_dropped = True
        with suppress(OSError):
            self._epoll.unregister(connection.fd)
        connection.close()
        return True

    def _replace(self, connection: Connection) -> None:
        if self.gone is None:
            self._openers[connection.number].open()

    def _look(self, done: list[Flight]) -> None:
        """Handles timeouts, idle connections and servers that are gone; called periodically."""
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
                if flight.chunks:
                    self._replied_ns = max(self._replied_ns, flight.chunks[-1][0])
                self._silent_ns.append(flight.taken_ns)
        if self._silent_ns and self.gone is None:
            self._give_up_silent(now_ns)
        self._replace_idle(now_ns)
        if self.gone is not None:
            for waiting in (self._again, self._waiting):
                self._give_up(waiting, self.gone, now_ns, done)

    def _give_up_silent(self, now_ns: int) -> None:
        """Gives up on the servers if several requests in a row timed out and nothing arrived for SILENT_TIMEOUTS times
        the timeout.
        """
        self._silent_ns = [begin_ns for begin_ns in self._silent_ns if begin_ns > self._replied_ns]
        count = len(self._silent_ns)
        if count < SILENT_TIMEOUTS:
            return
        silent_ns = now_ns - min(self._silent_ns)
        if silent_ns >= SILENT_TIMEOUTS * self._timeout_ns:
            self.gone = TimeoutError(
                f"it accepts connections, but answered none of {count:,} requests in {silent_ns / NS_PER_S:.0f} s"
            )

    def _replace_idle(self, now_ns: int) -> None:
        now_s = monotonic()
        oldest_first = sorted(self._free, key=attrgetter("used_ns"))
        idle_s = [(now_ns - connection.used_ns) / NS_PER_S for connection in oldest_first]
        due = self._idle.due(idle_s, now_s - self._looked_s)
        for connection in oldest_first[:due]:
            try:
                self._free.remove(connection)
            except ValueError:
                continue  # the issuing thread took the connection first
            self._discard(connection)
            self.reopened += 1
        per_s = self._idle.per_s
        self._tick_s = min(_TICK_S, TOGETHER / per_s) if per_s else _TICK_S
        self._looked_s, self._next_look_s = now_s, now_s + self._tick_s

    @staticmethod
    def _give_up(waiting: deque[Flight], error: Exception, now_ns: int, done: list[Flight]) -> None:
        while waiting:
            flight = waiting.popleft()
            flight.taken_ns = flight.taken_ns or now_ns
            flight.kind, flight.error, flight.read_ns = "server-gone", error, now_ns
            done.append(flight)

    # Methods of the opening threads.

    def _opened(self, connection: Connection) -> None:
        if self._reader is not None:
            connection.parser.pieces = []
        self._refusing.discard(connection.number)
        self._open[connection.fd] = connection
        self._epoll.register(connection.fd, select.EPOLLIN)
        (self._new if self._again else self._free).append(connection)
        eventfd_write(self._wake, 1)  # wakes the receiving thread to send waiting flights

    def _refused(self, number: int, error: Exception) -> None:
        self._refusing.add(number)
        self.refused[number] = error
        if len(self._refusing) == len(self._servers) and not self._open:
            self.gone = error
            eventfd_write(self._wake, 1)

    def _returned(self, seconds: float) -> None:
        self.outage_s = max(self.outage_s, seconds)

    def wake(self) -> None:
        """Ends the wait of a `turn` that runs in another thread."""
        eventfd_write(self._wake, 1)

    def forget(self) -> None:
        """Resets the counts to 0 before the run."""
        self.waited = self.resent = self.reopened = 0
        self.outage_s = 0.0
        self.refused.clear()

    def peers(self) -> list[tuple[str, bool]]:
        """Returns each server's address, and whether the server is on this machine, according to its first connection."""
        return self._peers

    def close(self) -> None:
        """Closes all connections. No thread may be in `submit` or `turn`."""
        for opener in self._openers:
            opener.stop()
        for opener in self._openers:
            if opener.is_alive():
                opener.join(CONNECT_TIMEOUT_S + 1)
        for connection in list(self._open.values()):
            connection.close()
        self._open.clear()
        self._free.clear()
        self._epoll.close()
        close(self._wake)
