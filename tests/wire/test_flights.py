import errno
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from statistics import median
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.backends.parts.openai.replies import Reading
from harness.backends.parts.openai.streams import Streamed
from harness.core.clock import wall_ns
from harness.core.config.address import Address
from harness.core.units import NS_PER_S
from harness.errors import ConfigError
from harness.remote import Request
from harness.wire import connections as connections_module
from harness.wire import flights as flights_module
from harness.wire import idle
from harness.wire import opener as opener_module
from harness.wire.connections import Server, connect
from harness.wire.flight import Flight
from harness.wire.flights import Flights
from harness.wire.remote_backend import Link

_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Handler = Callable[[socket.socket, int], None]


def read_request(peer: socket.socket) -> bytes:
    """Reads one request with its body; returns b'' at the end of the connection."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = peer.recv(65_536)
        if not more:
            return b""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    while len(body) < length:
        body += peer.recv(65_536)
    return body


def answer_all(peer: socket.socket, _number: int) -> None:
    while read_request(peer):
        peer.sendall(_OK)


@contextmanager
def served(handler: Handler) -> Iterator[Server]:
    """Yields a server that calls `handler` with each connection and its number, counted from 0."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    listener.settimeout(0.05)
    stopped = threading.Event()

    def serve() -> None:
        number = 0
        while not stopped.is_set():
            try:
                peer, _ = listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            threading.Thread(target=handle, args=(peer, number), daemon=True).start()
            number += 1

    def handle(peer: socket.socket, number: int) -> None:
        peer.settimeout(10)
        try:
            handler(peer, number)
        except OSError:
            pass
        finally:
            peer.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield Server(address=Address("127.0.0.1", listener.getsockname()[1]))
    finally:
        stopped.set()
        thread.join()
        listener.close()


@contextmanager
def opened(
    server: Server, connections: int = 1, timeout_s: float = 5.0, **more: Any
) -> Iterator[Flights]:
    made = Flights(
        [server], connections, lambda i: Request("/", (), (b"x" * i[0],)), timeout_s, **more
    )
    try:
        yield made
    finally:
        made.close()


def flown(flights: Flights, sizes: list[int], limit_s: float = 10.0) -> list[Flight]:
    """Submits a request of each size, and returns the finished flights."""
    for order, size in enumerate(sizes):
        flights.submit(Flight([order], [size], order))
    done: list[Flight] = []
    end_s = time.monotonic() + limit_s
    while len(done) < len(sizes) and time.monotonic() < end_s:
        done += flights.turn(0.1)
    assert len(done) == len(sizes), f"{len(done)} of {len(sizes)} flights ended"
    return done


def flown_in_threads(flights: Flights, sizes: list[int], limit_s: float = 60.0) -> list[Flight]:
    """Works like `flown`, but with one sending and one receiving thread."""
    done: list[Flight] = []

    def receive() -> None:
        while len(done) < len(sizes):
            done.extend(flights.turn(0.1))

    thread = threading.Thread(target=receive, daemon=True)
    thread.start()
    for order, size in enumerate(sizes):
        flights.submit(Flight([order], [size], order))
        if order % 50 == 0:
            time.sleep(0.002)  # the pause lets the receiver overtake the sender
    thread.join(limit_s)
    assert not thread.is_alive(), f"{len(sizes) - len(done)} flights were lost"
    assert sorted(flight.first for flight in done) == [*range(len(sizes))]
    return done


def test_each_request_has_its_reply_and_its_stamps_in_order() -> None:
    with served(answer_all) as server, opened(server, 4) as flights:
        end_s = time.monotonic() + 10
        while not all(f.arrived_ns for f in flown(flights, [1] * 8)):
            # The first time stamps may be missing, so the request is repeated.
            assert time.monotonic() < end_s, "the kernel gives no stamps"
        flights.forget()
        begin_ns = wall_ns()
        done = flown(flights, [1, 100, 20_000, 3_000_000, 5, 6])
        assert sorted(flight.first for flight in done) == [*range(6)]
        for flight in done:
            assert flight.error is None
            assert flight.reply is not None
            assert bytes(flight.reply.body) == b"ok"
            assert begin_ns <= flight.taken_ns <= flight.arrived_ns <= flight.read_ns
            assert flight.sent_ns >= flight.taken_ns
        # Two requests waited, because the requests outnumber the connections by two.
        assert flights.waited == 2


def test_two_threads_lose_no_flight() -> None:
    with served(answer_all) as server, opened(server, 3) as flights:
        assert not any(flight.error for flight in flown_in_threads(flights, [1] * 2_000))


def test_an_idle_connection_that_the_server_closes_is_replaced_unnoticed() -> None:
    def once(peer: socket.socket, number: int) -> None:
        read_request(peer)
        peer.sendall(_OK)
        if number > 0:
            answer_all(peer, number)

    with served(once) as server, opened(server) as flights:
        assert flown(flights, [1])[0].error is None
        for _ in range(5):
            assert not flights.turn(0.1)
        assert flown(flights, [1])[0].error is None
        assert flights.resent == 0


def test_idle_connections_are_replaced_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: all 64 connections were idle for the same time, and were replaced in one burst."""
    connections, tick_s, now_s = 64, 0.05, 1000.0
    monkeypatch.setattr(flights_module, "monotonic", lambda: now_s)
    for module in (flights_module, connections_module):
        monkeypatch.setattr(module, "wall_ns", lambda: int(now_s * 1e9))
    with served(answer_all) as server, opened(server, connections) as flights:
        assert not any(f.error for f in flown(flights, [1] * connections))
        replaced: list[int] = []
        for _ in range(int(2 * idle.IDLE_S / tick_s)):
            now_s += tick_s
            before = flights.reopened
            flights.turn(0)
            replaced.append(flights.reopened - before)
            end_s = time.monotonic() + 10
            # The loop waits for the thread that opens connections.
            while len(flights._free) < connections:
                assert time.monotonic() < end_s
                flights.turn(0.01)
            ages_s = [now_s - connection.used_ns / 1e9 for connection in flights._free]
            assert max(ages_s) < idle.IDLE_S + 2 * tick_s
    assert sum(replaced) >= connections, "none is left that was never replaced"
    assert max(replaced) <= idle.TOGETHER, replaced


def test_pace_of_replacements_is_the_lowest_that_keeps_the_age_limit() -> None:
    def run(ages_s: list[float], seconds: float, tick_s: float) -> list[int]:
        pace, replaced = idle.IdlePace(), []
        for _ in range(int(seconds / tick_s)):
            ages_s = sorted((age + tick_s for age in ages_s), reverse=True)
            due = pace.due(ages_s, tick_s)
            ages_s = ages_s[due:] + [0.0] * due
            assert max(ages_s) <= idle.IDLE_S + 2 * tick_s
            replaced.append(due)
        return replaced

    together = run([0.0] * 64, 40, 0.1)
    assert not any(together[:9])  # connections that were used recently stay
    assert max(together) <= 3
    # Each connection is replaced only once, after more than 3 s.
    assert sum(together[200:]) <= 64 * 20 / 3
    assert run([0.5] * 64, 0.4, 0.1) == [0] * 4
    # All connections are due, because no check came in time.
    assert idle.IdlePace().due([9.0] * 10, 0.1) == 10


def closes_on_second(peer: socket.socket, number: int, came_ns: list[int] | None = None) -> None:
    """Ends the first connection when its second request has arrived (the race of keep-alive)."""
    read_request(peer)
    peer.sendall(_OK)
    read_request(peer)
    if came_ns is not None:
        came_ns.append(wall_ns())
    if number > 0:
        peer.sendall(_OK)
        answer_all(peer, number)


def test_request_lost_by_a_closing_connection_is_resent_and_counted() -> None:
    came_ns: list[int] = []
    closes = partial(closes_on_second, came_ns=came_ns)
    with served(closes) as server, opened(server) as flights:
        flown(flights, [1])
        (flight,) = flown(flights, [1])
        assert flight.error is None
        assert (flight.resent, flights.resent) == (True, 1)
        # The time of the first attempt is part of the flight's time.
        assert flight.taken_ns <= came_ns[0]


def closes_after(replies: int, how: Callable[[socket.socket], None]) -> Handler:
    """Ends each connection after this number of replies, although their headers keep it open."""

    def serve(peer: socket.socket, _number: int) -> None:
        for _ in range(replies):
            if read_request(peer):
                peer.sendall(_OK.replace(b"Content", b"Keep-Alive: timeout=5, max=100\r\nContent"))
        how(peer)

    return serve


def _reset(peer: socket.socket) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


@pytest.mark.parametrize("how", [socket.socket.close, _reset])
@pytest.mark.parametrize("replies", [1, 5])
def test_connections_are_not_used_beyond_their_usual_number_of_replies(
    replies: int, how: Callable[[socket.socket], None]
) -> None:
    with served(closes_after(replies, how)) as server, opened(server, 4) as flights:
        assert not any(f.error for f in flown_in_threads(flights, [1] * 20 * replies))
        assert flights.closes_after == [replies]
        flights.forget()
        assert not any(f.error for f in flown_in_threads(flights, [1] * 100 * replies))
        assert flights.resent == 0


def test_connections_that_end_now_and_then_are_used_on() -> None:
    """A restart ends all connections at once; in addition, every hundredth request ends one connection."""

    def serve(peer: socket.socket, number: int) -> None:
        for _ in range(2 if number < 4 else 20 + 7 * number):
            read_request(peer)
            peer.sendall(_OK)

    with served(serve) as server, opened(server, 4) as flights:
        assert not any(f.error for f in flown_in_threads(flights, [1] * 500))
        assert flights.closes_after == [0]


def test_connections_may_be_opened_while_an_end_is_learned_from() -> None:
    """Bug: the receiving thread ended with "dictionary changed size during iteration"."""
    with served(answer_all) as server, opened(server) as flights:
        (connection,) = flights._open.values()

        class Opening:
            """Opens a new connection while the harness checks the closed connection."""

            replies = 0

            @property
            def number(self) -> int:
                flights._open[-2] = connection
                return 0

            def close(self) -> None: ...

        flights._open[-1] = cast("Any", Opening())
        connection.replies, connection.used_ns = 1, wall_ns()
        flights._last_ends[0] = 1, connection.opened_ns - 1
        flights._learn(connection)
        assert flights.closes_after == [1]


def test_lost_request_fails_without_resending() -> None:
    with served(closes_on_second) as server, opened(server, resend=False) as flights:
        flown(flights, [1])
        (flight,) = flown(flights, [1])
        assert flight.kind == "reset"
        assert flights.resent == 0


def test_a_request_is_never_sent_a_third_time() -> None:
    def always_closes(peer: socket.socket, number: int) -> None:
        read_request(peer)
        if number < 2:
            peer.sendall(_OK)
            read_request(peer)

    with served(always_closes) as server, opened(server, 2) as flights:
        assert not any(f.error for f in flown(flights, [1, 1]))
        done = flown(flights, [1])
        assert done[0].kind == "reset"
        assert flights.resent == 1


def test_a_first_request_is_never_resent() -> None:
    with served(lambda peer, _number: (read_request(peer), None)[1]) as server:
        with opened(server) as flights:
            (flight,) = flown(flights, [1])
        assert flight.kind == "reset"
        assert not flight.resent


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (b"garbage\r\n\r\n", "bad-reply"),
        (_OK[:-1], "bad-reply"),
        (_OK + b"more", "bad-reply"),
        (b"", "reset"),
    ],
)
def test_a_broken_reply_fails_its_flight_alone(reply: bytes, kind: str) -> None:
    def breaks(peer: socket.socket, number: int) -> None:
        if number:
            answer_all(peer, number)
        read_request(peer)
        peer.sendall(reply)

    with served(breaks) as server, opened(server) as flights:
        (flight,) = flown(flights, [1])
        assert flight.kind == kind
        assert flight.error is not None
        assert flown(flights, [1])[0].error is None


@pytest.mark.parametrize("replies", [0, 1])
def test_bytes_without_a_request_drop_their_connection(replies: int) -> None:
    """If the connection stayed open, the bytes would count as the reply to the next request."""
    said, opened_again = threading.Event(), threading.Event()

    def speaks(peer: socket.socket, number: int) -> None:
        if number:
            opened_again.set()
        else:
            for _ in range(replies):
                read_request(peer)
                peer.sendall(_OK)
            time.sleep(0.05)  # the pause lets the client read the first reply
            peer.sendall(_OK.replace(b"ok", b"no"))
            said.set()
        answer_all(peer, number)

    with served(speaks) as server, opened(server) as flights:
        flown(flights, [1] * replies)
        assert said.wait(5)
        end_s = time.monotonic() + 5
        while not opened_again.is_set():
            assert not flights.turn(0.1)
            assert time.monotonic() < end_s
        (flight,) = flown(flights, [1])
        assert flight.error is None
        assert flight.reply is not None
        assert bytes(flight.reply.body) == b"ok"
        assert flights.resent == 0


_CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
_TOKEN = b'data: {"choices": [{"text": "a"}]}\n\n'
_END = b'data: {"choices": [{"text": "", "finish_reason": "stop"}]}\n\n'
_LONG = 32 << 20
"""Request size in bytes, more than any kernel buffers before the server reads."""


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@pytest.mark.parametrize(
    ("early", "late", "kind", "status"),
    [
        (_OK, b"", "bad-reply", 0),
        (_OK[:-1], _OK[-1:], "", 200),
        (_CHUNKS + _chunk(_TOKEN), _chunk(_END) + _chunk(b""), "bad-reply", 0),
        (_CHUNKS, _chunk(_TOKEN + _END) + _chunk(b""), "", 200),
        (b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno", b"", "", 413),
    ],
)
def test_answer_before_the_end_of_its_request_is_refused(
    early: bytes, late: bytes, kind: str, status: int
) -> None:
    """An early reply may consist of a short head, or of a short refusal."""

    def hurries(peer: socket.socket, number: int) -> None:
        if number == 0:
            while b"\r\n\r\n" not in peer.recv(65_536):
                pass
            peer.sendall(early)
            time.sleep(0.2)
            left = _LONG - 65_536
            while left > 0 and (data := peer.recv(1 << 20)):
                left -= len(data)
            time.sleep(0.2)
            peer.sendall(late)
        answer_all(peer, number)

    reader = partial(Streamed, Reading())
    with served(hurries) as server, opened(server, reader=reader) as flights:
        (flight,) = flown(flights, [_LONG])
        assert flight.kind == kind, flight.error
        assert (flight.reply.status if flight.reply else 0) == status
        if kind:
            assert str(flight.error).endswith("before the whole request was sent")
        assert flown(flights, [1])[0].error is None


def test_a_reply_that_does_not_come_times_out() -> None:
    def freezes(peer: socket.socket, number: int) -> None:
        if number:
            answer_all(peer, number)
        read_request(peer)
        until.wait(60)

    until = threading.Event()
    with served(freezes) as server, opened(server, timeout_s=0.3) as flights:
        begin_s = time.monotonic()
        (flight,) = flown(flights, [1])
        assert flight.kind == "timeout"
        assert time.monotonic() - begin_s >= 0.3
        # The new limit is long, because answers are late on a busy machine.
        flights._timeout_ns = 60 * NS_PER_S
        assert flown(flights, [1])[0].error is None
        until.set()


def test_a_server_that_accepts_and_never_answers_is_abandoned() -> None:
    """Bug: when a server hung during a run, every request up to the last query waited for its timeout."""
    until = threading.Event()

    def hangs(peer: socket.socket, _number: int) -> None:
        read_request(peer)
        until.wait(30)

    with served(hangs) as server, opened(server, timeout_s=0.2) as flights:
        done = flown(flights, [1] * 9, limit_s=30)
        kinds = [flight.kind for flight in sorted(done, key=lambda f: f.first)]
        assert kinds == ["timeout"] * 3 + ["server-gone"] * 6
        assert "answered none of 3 requests in " in str(flights.gone)
        until.set()


def test_one_answer_among_late_ones_keeps_the_server() -> None:
    until = threading.Event()

    def answers_once(peer: socket.socket, number: int) -> None:
        read_request(peer)
        if number == 2:
            peer.sendall(_OK)
        until.wait(30)

    with served(answers_once) as server, opened(server, timeout_s=0.5) as flights:
        done = flown(flights, [1] * 4, limit_s=30)
        assert [flight.kind for flight in done] == ["timeout", "timeout", "", "timeout"]
        assert flights.gone is None
        until.set()


def test_a_reply_of_single_bytes_and_one_that_ends_the_connection_arrive() -> None:
    def drips(peer: socket.socket, number: int) -> None:
        if not number:
            read_request(peer)
            for byte in _OK:
                peer.sendall(bytes([byte]))
        read_request(peer)
        peer.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nok")

    with served(drips) as server, opened(server) as flights:
        for _ in range(3):
            (flight,) = flown(flights, [1])
            assert flight.error is None
            assert flight.reply is not None
            assert bytes(flight.reply.body) == b"ok"


def test_every_flight_fails_at_once_after_a_server_is_abandoned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(opener_module, "GIVE_UP_S", 0.5)
    listener = socket.create_server(("127.0.0.1", 0))
    server = Server(address=Address("127.0.0.1", listener.getsockname()[1]))
    with opened(server) as flights:
        peer, _ = listener.accept()
        listener.close()
        peer.close()
        done = flown(flights, [1, 1, 1])
        kinds = {flight.first: flight.kind for flight in done}
        # The first request may have gone to the dying connection.
        assert kinds.pop(0) in (
            "reset",
            "server-gone",
        )
        assert {*kinds.values()} == {"server-gone"}
        assert flights.gone is not None
        waits_s = []
        for _ in range(30):  # the flights follow each other, as a single stream issues its queries
            flights.submit(Flight([0], [1], 0))
            (flight,) = flights.turn(1)
            assert flight.kind == "server-gone"
            waits_s.append(flights.waited_s)
        assert median(waits_s) < flights_module._TICK_S / 2, "not woken"


def test_name_with_two_addresses_connects_to_the_listening_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bug: `localhost` resolves to ::1 first, so a server that listens only on 127.0.0.1 was refused."""
    stream = (socket.SOCK_STREAM, 6, "")
    with served(answer_all) as server:
        port = server.address.port
        found = [
            (socket.AF_INET6, *stream, ("::1", port, 0, 0)),
            (socket.AF_INET, *stream, ("127.0.0.1", port)),
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        with opened(Server(address=Address("localhost", port)), 2) as flights:
            assert [flight.error for flight in flown(flights, [1, 1])] == [None, None]
            assert flights.peers() == [("127.0.0.1", True)]


def silent() -> socket.socket:
    """Returns a socket that listens but never accepts; its queue holds two connections, and a third gets no reply."""
    return socket.create_server(("127.0.0.1", 0), backlog=1)


def test_server_that_never_accepts_a_connect_is_abandoned_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bug: the time counted from the end of an attempt, so the run hung until the server was abandoned."""
    monkeypatch.setattr(opener_module, "GIVE_UP_S", 2.0)
    monkeypatch.setattr(opener_module, "CONNECT_TIMEOUT_S", 2.0)
    with silent() as listener:
        server = Server(address=Address("127.0.0.1", listener.getsockname()[1]))
        with opened(server, 2, timeout_s=0.1) as flights:
            begin_s = time.monotonic()
            done = flown(flights, [1] * 3, limit_s=30)
            assert [flight.kind for flight in done].count("server-gone") == 1
            assert time.monotonic() - begin_s < 2 * 2.0


def test_a_connect_that_a_server_answers_late_is_an_outage() -> None:
    """Bug: only refusals counted as an outage, but a server whose machine drops packets refuses nothing."""
    with silent() as listener, ExitStack() as stack:
        where = listener.getsockname()
        with opened(Server(address=Address(*where))) as flights:
            listener.accept()[0].close()
            for _ in range(2):
                stack.enter_context(socket.create_connection(where))
            flights.turn(1)  # this turn notices the end, while the queue is full
            time.sleep(0.3)
            for _ in range(2):
                listener.accept()[0].close()
            listener.settimeout(10)
            with listener.accept()[0]:
                flight, end_s = Flight([0], [1], 0), time.monotonic() + 10
                flights.submit(flight)
                while not flight.sent_ns:
                    assert time.monotonic() < end_s
                    flights.turn(0.1)
            assert 0.9 < flights.outage_s < 5


@pytest.mark.parametrize(
    ("error", "is_away"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), True),
        (TimeoutError("timed out"), True),
        (OSError(errno.EHOSTUNREACH, "no route"), True),
        (OSError(errno.EADDRNOTAVAIL, "no port"), False),
        (OSError(errno.EMFILE, "no descriptor"), False),
        (ConfigError("the name cannot be resolved"), False),
    ],
)
def test_lack_of_client_resources_is_not_an_outage_of_the_server(
    error: Exception, is_away: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: a client without a free port caused the doubt `server-away`."""
    errors = [error]

    def connecting(*_: object) -> Any:
        if errors:
            raise errors.pop()
        return SimpleNamespace(connect_s=0.0)

    monkeypatch.setattr(opener_module, "connect", connecting)
    taken, away_s = threading.Event(), list[float]()
    opener = opener_module.Opener(
        Server(address=Address("127.0.0.1", 1)),
        0,
        lambda _: taken.set(),
        lambda *_: None,
        away_s.append,
    )
    opener.open()
    assert taken.wait(10)
    opener.stop()
    opener.join(10)
    assert bool(away_s) == is_away


def test_silent_server_does_not_delay_connections_to_its_replica() -> None:
    """Bug: one thread opened the connections to all servers, and waited for the silent server."""
    with silent() as listener, served(closes_on_second) as replica:
        asleep = Server(address=Address("127.0.0.1", listener.getsockname()[1]))
        made = Flights([asleep, replica], 2, lambda _: Request("/"), 0.5)
        try:
            assert {f.kind for f in flown(made, [1] * 4)} == {"", "timeout"}
            begin_s = time.monotonic()
            assert {f.kind for f in flown(made, [1] * 6)} <= {"", "reset"}
            assert time.monotonic() - begin_s < opener_module.CONNECT_TIMEOUT_S
            assert made.gone is None
        finally:
            made.close()


def test_an_error_of_the_encoder_fails_its_flight_alone() -> None:
    with served(answer_all) as server, opened(server) as flights:
        done = flown(flights, ["a", 1])  # type: ignore[list-item]
        kinds = {flight.first: flight.kind for flight in done}
        assert kinds == {0: "encode", 1: ""}


def test_two_threads_lose_no_flight_on_connections_that_keep_closing() -> None:
    def closes(peer: socket.socket, number: int) -> None:
        for _ in range(1 + number % 5):
            if not read_request(peer):
                return
            peer.sendall(_OK)

    with served(closes) as server, opened(server, 4) as flights:
        done = flown_in_threads(flights, [1 if order % 7 else 20_000 for order in range(1_500)])
        assert {flight.kind for flight in done} <= {"", "reset"}
        assert sum(not flight.kind for flight in done) > len(done) / 2


def test_resent_request_gets_the_connection_opened_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bug: a connection that opened immediately was ready before the flight waited for the connection, so the flight
    hung.
    """
    with served(closes_on_second) as server, opened(server) as flights:
        flown(flights, [1])
        monkeypatch.setattr(
            flights._openers[0], "open", lambda: flights._opened(connect(server, 5, 0))
        )
        (flight,) = flown(flights, [1])
        assert (flight.error, flight.resent) == (None, True)


def test_a_blocking_link_repeats_nothing_after_a_time_out() -> None:
    """Bug: on a reused connection, the request was sent again, and the client waited a second time."""
    requests = []

    def stalls(peer: socket.socket, _number: int) -> None:
        while body := read_request(peer):
            requests.append(body)
            if len(requests) > 1:
                time.sleep(1.5)
            peer.sendall(_OK)

    with served(stalls) as server:
        link = Link(server, 0.3)
        assert link.exchange(Request("/", (), (b"x",))).status == 200
        with pytest.raises(TimeoutError, match="no reply within"):
            link.exchange(Request("/", (), (b"x",)))
        link.close()
        assert len(requests) == 2
