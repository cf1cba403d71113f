"""Tests the loop with real sockets: order, long answers, closing, misbehaving clients, and the end of the loop."""

import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

import pytest

from harness.serve import loop as loop_module
from harness.serve.answers import connection_header, json_answer
from harness.serve.loop import Handler, Later, Loop, Part, Work
from harness.serve.requests import Request

TIMEOUT_S = 20
GET = b"GET /%s HTTP/1.1\r\nHost: h\r\n\r\n"


def echo(request: Request, arrived_ns: int) -> Sequence[bytes | memoryview]:
    """Replies with as many bytes as the numeric path says."""
    assert 0 <= time.time_ns() - arrived_ns < TIMEOUT_S * 1_000_000_000
    head, body = request
    size = int(head.path[1:]) if head.path[1:].isdigit() else 0
    answer = json_answer({"path": head.path, "body": len(body)}, connection_header(head))
    if not size:
        return [answer]
    return [b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size, memoryview(bytes(size))]


@contextmanager
def served(handle: Handler = echo, work: Work = lambda: None) -> Iterator[Loop]:
    loop = Loop(socket.create_server(("127.0.0.1", 0)), handle, work)
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        yield loop
    finally:
        with suppress(OSError):  # the loop may already have ended, and then refuses the stop
            loop.stop()
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()


def connected(loop: Loop) -> socket.socket:
    return socket.create_connection(loop.address, TIMEOUT_S)


def all_of(sock: socket.socket) -> bytes:
    data = b""
    while part := sock.recv(1 << 20):
        data += part
    return data


def answer_of(sock: socket.socket) -> tuple[bytes, bytes]:
    """Reads exactly the (head, body) of the next answer."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = sock.recv(1)
        assert part, data
        data += part
    size = int(data.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
    body = b""
    while len(body) < size:
        part = sock.recv(size - len(body))
        assert part, data
        body += part
    return data, body


def test_requests_that_come_together_are_answered_in_their_order() -> None:
    with served() as loop, connected(loop) as sock:
        sock.sendall(b"".join(GET % path for path in (b"a", b"b", b"300000", b"c")))
        bodies = [answer_of(sock)[1] for _ in range(4)]
    assert [b'"/a"' in bodies[0], b'"/b"' in bodies[1], b'"/c"' in bodies[3]] == [True] * 3
    assert bodies[2] == bytes(300_000)


def test_long_answer_reaches_a_slow_reader_while_others_are_served() -> None:
    size = 30_000_000
    with served() as loop, connected(loop) as slow, connected(loop) as other:
        slow.sendall(GET % b"%d" % size + GET % b"after")
        other.sendall(GET % b"other")
        assert b'"/other"' in answer_of(other)[1]
        assert answer_of(slow)[1] == bytes(size)
        assert b'"/after"' in answer_of(slow)[1]


def test_a_body_may_come_in_many_parts_and_chunks() -> None:
    with served() as loop, connected(loop) as sock:
        sock.sendall(b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 400000\r\n\r\n")
        for _ in range(4):
            sock.sendall(bytes(100_000))
        assert b'"body": 400000' in answer_of(sock)[1]
        sock.sendall(b"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(4):
            sock.sendall(b"186A0\r\n%b\r\n" % bytes(100_000))
        sock.sendall(b"0\r\n\r\n")
        assert b'"body": 400000' in answer_of(sock)[1]


def test_a_client_that_expects_100_continue_gets_it_first() -> None:
    with served() as loop, connected(loop) as sock:
        sock.sendall(
            b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
        )
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(b"abc")
        assert b'"body": 3' in answer_of(sock)[1]


@pytest.mark.parametrize(
    ("request_", "header"),
    [
        (b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", b"Connection: close\r\n"),
        (b"GET / HTTP/1.0\r\n\r\n", b"Connection: close\r\n"),
        (b"GET /\x01 HTTP/1.1\r\nHost: h\r\n\r\n" + bytes(500_000), b"HTTP/1.1 400 Bad Request"),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999\r\n\r\n" + bytes(500_000), b"HTTP/1.1 413"),
    ],
)  # fmt: skip
def test_a_connection_that_ends_gets_its_last_answer_whole(request_: bytes, header: bytes) -> None:
    """The server closes even while the client still sends; unread bytes would turn the end into a reset."""
    with served() as loop, connected(loop) as sock:
        sock.sendall(request_)
        answer = all_of(sock)
    assert header in answer
    assert answer.count(b"HTTP/1.1") == 1


def test_http_1_0_may_keep_its_connection() -> None:
    with served() as loop, connected(loop) as sock:
        for _ in range(2):
            sock.sendall(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            assert b"Connection: keep-alive\r\n" in answer_of(sock)[0]


def test_a_client_that_closes_its_half_gets_its_answer() -> None:
    with served() as loop, connected(loop) as sock:
        sock.sendall(GET % b"a")
        sock.shutdown(socket.SHUT_WR)
        assert b'"/a"' in all_of(sock)


def test_a_client_that_never_closes_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "LINGER_NS", 0)
    with served() as loop, connected(loop) as sock:
        sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert all_of(sock)
        until(lambda: is_reset(sock))


def test_slow_senders_are_refused_and_silent_peers_delay_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Heads and bodies arrive byte by byte, together with 250 half requests and silent connections."""
    monkeypatch.setattr(loop_module, "WAIT_NS", 1_000_000_000)
    post = b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 900\r\n\r\n"
    with served() as loop, connected(loop) as head, connected(loop) as body, ExitStack() as stack:
        silent = [stack.enter_context(connected(loop)) for _ in range(20)]
        halves = [stack.enter_context(connected(loop)) for _ in range(250)]
        other = stack.enter_context(connected(loop))
        for sock in halves:
            sock.sendall(post[:30])
        body.sendall(post)
        for byte in bytes(post) * 20:
            other.sendall(GET % b"other")
            assert b'"/other"' in answer_of(other)[1]
            if is_reset(head, bytes([byte])) and is_reset(body):
                break
            time.sleep(0.05)
        else:
            pytest.fail("the peers that drip were never refused")
        for sock in (body, *halves):
            assert b"HTTP/1.1 408 Request Timeout" in all_of(sock)
        for sock in silent:
            sock.sendall(GET % b"late")
            assert b'"/late"' in answer_of(sock)[1]


def test_a_client_that_does_not_take_its_answer_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "WAIT_NS", 100_000_000)
    size = 30_000_000
    with served() as loop, connected(loop) as slow:
        slow.sendall(GET % b"%d" % size)
        until(lambda: loop.open_connections == 1)
        until(lambda: loop.open_connections == 0)
        with suppress(ConnectionResetError):
            assert len(all_of(slow)) < size


def test_a_request_may_take_as_long_as_its_bytes_come_steadily(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop_module, "WAIT_NS", 200_000_000)
    with served() as loop, connected(loop) as sock:
        sock.sendall(b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 2000000\r\n\r\n")
        for _ in range(20):
            sock.sendall(bytes(100_000))
            time.sleep(0.05)
        assert b'"body": 2000000' in answer_of(sock)[1]


def test_the_answer_to_head_equals_the_answer_to_get_without_its_body() -> None:
    with served() as loop, connected(loop) as sock:
        sock.sendall(b"HEAD /a HTTP/1.1\r\nHost: h\r\n\r\n" + GET % b"a")
        sock.shutdown(socket.SHUT_WR)
        first, second, body = all_of(sock).split(b"\r\n\r\n")
    assert first == second
    assert b"Content-Length: %d" % len(body) in first


def is_reset(sock: socket.socket, data: bytes = b"x") -> bool:
    try:
        sock.sendall(data)
    except OSError:
        return True
    return False


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_clients_that_vanish_leave_nothing_behind() -> None:
    with served() as loop:
        for tail in (
            b"",
            GET % b"9000000",
            b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n",
        ):
            for _ in range(5):
                sock = connected(loop)
                sock.sendall(GET % b"a" + tail)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                sock.close()
        with connected(loop) as sock:
            sock.sendall(GET % b"a")
            assert b'"/a"' in answer_of(sock)[1]
            until(lambda: loop.open_connections == 1)


def test_many_connections_are_served_at_once() -> None:
    with served() as loop:
        socks = [connected(loop) for _ in range(200)]
        for number, sock in enumerate(socks):
            sock.sendall(GET % b"n%d" % number)
        for number, sock in enumerate(socks):
            assert b'"/n%d"' % number in answer_of(sock)[1]
            sock.close()


def test_received_requests_are_answered_at_the_end_and_the_port_closes() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def slow(request: Request, arrived_ns: int) -> Sequence[bytes | memoryview]:
        begun.set()
        assert may_end.wait(TIMEOUT_S)
        return echo(request, arrived_ns)

    with served(slow) as loop, connected(loop) as one, connected(loop) as other:
        address = loop.address
        one.sendall(GET % b"one")
        assert begun.wait(TIMEOUT_S)
        other.sendall(GET % b"20000000")
        loop.stop()
        may_end.set()
        assert b'"/one"' in answer_of(one)[1]
        assert answer_of(other)[1] == bytes(20_000_000)
        assert all_of(one) == all_of(other) == b""
        until(lambda: loop.open_connections == 0)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, TIMEOUT_S)


def test_new_clients_wait_if_descriptors_run_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import resource

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with served() as loop, connected(loop) as first:
        first.sendall(GET % b"a")
        assert answer_of(first)
        with socket.socket() as second:
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (second.fileno() + 1, limits[1]))
                second.connect(loop.address)
                second.sendall(GET % b"second")
                until(lambda: not loop.accepts)
                first.sendall(GET % b"still")
                assert b'"/still"' in answer_of(first)[1]
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            first.close()
            second.settimeout(TIMEOUT_S)
            assert b'"/second"' in answer_of(second)[1]
    assert "no more connections can be opened: Too many open files" in capsys.readouterr().err


def test_a_silent_connection_makes_room_for_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    monkeypatch.setattr(loop_module, "SILENT_NS", 0)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with served() as loop, connected(loop) as silent:
        until(lambda: loop.open_connections == 1)
        # The second socket has a higher descriptor than the silent connection.
        with socket.socket() as second:
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (second.fileno() + 1, limits[1]))
                second.connect(loop.address)
                second.sendall(GET % b"second")
                second.settimeout(TIMEOUT_S)
                assert b'"/second"' in answer_of(second)[1]
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert all_of(silent) == b""


class _Putting:
    """A handler that postpones every answer, and later sends the head and one byte of an answer, then the rest."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.later: list[Later] = []
        self._parts: deque[Part] = deque()

    def handle(self, request: Request, _arrived_ns: int) -> Later:
        name, later = request.head.path[1:], Later()
        body = bytes(int(name)) if name.isdigit() else name.encode()
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
        self._parts.append(Part(later, head + body[:1], is_last=False))
        self._parts.append(Part(later, body[1:], is_last=True))
        self.later.append(later)
        return later

    def work(self) -> Sequence[Part] | None:
        if not self._parts:
            return None
        return [self._parts.popleft()] if self.go.is_set() else []


@contextmanager
def putting() -> Iterator[tuple[Loop, _Putting]]:
    handler = _Putting()
    with served(handler.handle, handler.work) as loop:
        yield loop, handler


def test_deferred_answers_keep_the_order_of_their_connection() -> None:
    with putting() as (loop, handler), connected(loop) as sock, connected(loop) as other:
        sock.sendall(GET % b"ab" + GET % b"3000000" + GET % b"cd")
        other.sendall(GET % b"ef")
        handler.go.set()
        bodies = [answer_of(sock)[1] for _ in range(3)]
        assert [bodies[0], len(bodies[1]), bodies[2]] == [b"ab", 3_000_000, b"cd"]
        assert answer_of(other)[1] == b"ef"


def test_request_before_the_last_answer_waits_without_a_busy_loop() -> None:
    with putting() as (loop, handler), connected(loop) as sock:
        sock.sendall(GET % b"ab")
        until(lambda: len(handler.later) == 1)
        (connection,) = loop._connections.values()
        sock.sendall(GET % b"cd")
        until(lambda: connection.watched == select.EPOLLRDHUP)
        assert len(handler.later) == 1
        handler.go.set()
        assert [answer_of(sock)[1] for _ in range(2)] == [b"ab", b"cd"]
        until(lambda: bool(connection.watched & select.EPOLLIN))


def test_answer_to_a_client_that_left_is_no_longer_awaited() -> None:
    with putting() as (loop, handler):
        with connected(loop) as sock, connected(loop) as other:
            sock.sendall(GET % b"ab")
            other.sendall(GET % b"cd")
            until(lambda: len(handler.later) == 2)
            sock.close()
            until(lambda: not all(later.is_awaited for later in handler.later))
            handler.go.set()
            assert answer_of(other)[1] == b"cd"
        until(lambda: not loop.open_connections)


def test_end_waits_for_deferred_answers() -> None:
    with putting() as (loop, handler), connected(loop) as sock:
        sock.sendall(GET % b"ab")
        until(lambda: len(handler.later) == 1)
        loop.stop()
        handler.go.set()
        assert all_of(sock).endswith(b"ab")
