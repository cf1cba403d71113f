"""The port of `browse`: clients that hold connections do not delay other clients, and are dropped."""

import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import uvicorn

from harness.browse import protocol
from harness.browse.app import make_app
from tests.stand_ins.holding import GARBAGE, connected, dripping, is_dropped

LIMIT_S = 2.0
SLACK_S = 15.0  # the slack allows for a busy machine
MOST = 20


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Serves the pages of an empty folder with short time limits."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(protocol, "REQUEST_LIMIT_S", LIMIT_S)
    monkeypatch.setattr(protocol, "ANSWER_LIMIT_S", LIMIT_S)
    monkeypatch.setattr(protocol, "MOST_CONNECTIONS", MOST)
    listening = socket.create_server(("127.0.0.1", 0), backlog=256)
    number: int = listening.getsockname()[1]
    (tmp_path / "results").mkdir()
    config = uvicorn.Config(
        make_app(tmp_path / "results"),
        log_level="critical",
        lifespan="off",
        ws="none",
        http=protocol.bounded(),
        limit_concurrency=MOST + 1,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    yield number
    server.should_exit = True
    thread.join(SLACK_S)


def status(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=SLACK_S) as answer:
        number: int = answer.status
    return number


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"])
def test_unfinished_requests_do_not_block_pages_and_are_dropped(port: int, sent: bytes) -> None:
    with connected(port, 50, sent) as clients:
        assert status(port) == 200
        assert all(is_dropped(client, LIMIT_S + SLACK_S) for client in clients)


def test_a_client_that_drips_its_second_request_is_dropped(port: int) -> None:
    head = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    with connected(port, 1, head + b"\r\n") as (client,):
        assert client.recv(12) == b"HTTP/1.1 200"
        client.sendall(head)
        assert is_dropped(client, LIMIT_S + SLACK_S)
    with dripping(port, head + b"X: " + b"y" * 500) as client:
        assert is_dropped(client, LIMIT_S + SLACK_S)


def asks_on(client: socket.socket, limit_s: float) -> None:
    """Sends requests without reading the responses."""
    page = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        with suppress(TimeoutError):
            client.sendall(page * 100)


def test_a_client_that_takes_no_answer_is_dropped(port: int) -> None:
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", port))
        client.settimeout(LIMIT_S)
        with pytest.raises(ConnectionError):
            asks_on(client, LIMIT_S + SLACK_S)
    assert status(port) == 200


@pytest.mark.parametrize("sent", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_is_dropped(port: int, sent: bytes) -> None:
    with connected(port, 1, sent) as (client,):
        assert is_dropped(client, LIMIT_S + SLACK_S)
    assert status(port) == 200
