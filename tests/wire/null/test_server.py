"""The null server sends the same bytes for every request, whatever its form, and leaves no process behind."""

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.wire.null.server import NullServer

ROOT = Path(__file__).parents[2]
REPLY = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nzeros"
GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
POST = (
    b"POST /v2/models/m/infer HTTP/1.1\r\nHost: h\r\ncontent-length: 300\r\n\r\n" + b"\r\n\r\n" * 75
)


@pytest.fixture(scope="module")
def server() -> Iterator[NullServer]:
    with NullServer(REPLY) as server:
        yield server


def connected(server: NullServer) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), 10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def received(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := sock.recv(1 << 20)):
        data += more
    return data


@given(
    requests=st.lists(st.sampled_from([GET, POST]), min_size=1, max_size=6),
    cuts=st.sets(st.integers(1, 700), max_size=4),
)
@settings(max_examples=40)
def test_each_request_gets_one_reply_wherever_the_bytes_are_split(
    server: NullServer, requests: list[bytes], cuts: set[int]
) -> None:
    whole = b"".join(requests)
    places = [0, *sorted(cut for cut in cuts if cut < len(whole)), len(whole)]
    with connected(server) as sock:
        for begin, end in itertools.pairwise(places):
            sock.sendall(whole[begin:end])
        expected = REPLY * len(requests)
        assert received(sock, len(expected)) == expected
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(1) == b""


def test_a_body_larger_than_any_buffer_gets_one_reply(server: NullServer) -> None:
    body = bytes(5_000_000)
    with connected(server) as sock:
        for _ in range(2):
            sock.sendall(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            assert received(sock, len(REPLY)) == REPLY


def test_a_reply_larger_than_any_buffer_comes_whole() -> None:
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 8000000\r\n\r\n" + os.urandom(8_000_000)
    with NullServer(reply) as server, connected(server) as sock:
        sock.sendall(GET * 2)
        assert received(sock, 2 * len(reply)) == reply * 2
        sock.sendall(GET)
        assert received(sock, len(reply)) == reply


@pytest.mark.parametrize(
    "request_",
    [
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"x" * 200_000,
        b"POST / HTTP/1.1\r\nContent-Length: " + b"9" * 5_000 + b"\r\n\r\n",
    ],
)
def test_unreadable_request_ends_only_its_connection(server: NullServer, request_: bytes) -> None:
    with connected(server) as bad, connected(server) as good:
        bad.sendall(request_)
        with contextlib.suppress(ConnectionResetError):
            assert bad.recv(100) == b""
        good.sendall(GET)
        assert received(good, len(REPLY)) == REPLY


def test_a_client_that_vanishes_ends_nothing(server: NullServer) -> None:
    for _ in range(20):
        sock = connected(server)
        # With this option, `close` sends RST.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        sock.sendall(GET * 50)
        sock.close()
    with connected(server) as sock:
        sock.sendall(GET)
        assert received(sock, len(REPLY)) == REPLY


def test_port_and_process_end_with_the_block() -> None:
    with NullServer(REPLY) as server:
        connected(server).close()
    with pytest.raises(ConnectionRefusedError):
        connected(server)
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)


def test_null_server_listens_at_a_unix_socket_on_request(tmp_path: Path) -> None:
    path = tmp_path / "null"
    with NullServer(REPLY, unix=path) as server, socket.socket(socket.AF_UNIX) as sock:
        assert server.url == f"http+unix://{path}"
        sock.connect(str(path))
        sock.sendall(POST)
        assert received(sock, len(REPLY)) == REPLY
    assert not path.exists()


def test_null_server_ends_with_a_killed_parent() -> None:
    code = (
        "import time; from harness.wire.null.server import NullServer\n"
        "with NullServer(b'x') as server:\n    print(server.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while is_running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    """Returns whether the process is running; a zombie process counts as ended."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
