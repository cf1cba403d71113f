"""The port of a load host: peers that hold a connection or send garbage do not delay a run, and are dropped."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from harness.cluster.load_hosts import agent, remote_channel
from harness.cluster.load_hosts.agent import Agent
from harness.core.child import Channel
from tests.stand_ins.holding import GARBAGE, connected, dripping, is_dropped

LIMIT_S = 1.0
SLACK_S = 10.0  # the slack allows for a busy machine


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A load host with short time limits."""
    monkeypatch.setattr(agent, "HELLO_LIMIT_S", LIMIT_S)
    monkeypatch.setattr(remote_channel, "MESSAGE_LIMIT_S", LIMIT_S)
    monkeypatch.setattr(agent, "MOST_SILENT", 8)
    listening = socket.create_server(("127.0.0.1", 0), backlog=64)
    number: int = listening.getsockname()[1]
    host = Agent(listening, frozenset())
    thread = threading.Thread(target=host.run)
    thread.start()
    yield number
    host.stop()
    # A connection wakes the waiting `accept` call, which does not notice that its socket has been closed.
    with socket.socket() as waking:
        waking.connect_ex(("127.0.0.1", number))
    thread.join(SLACK_S)
    assert not thread.is_alive()


def answers(port: int) -> bool:
    """Returns whether the host soon refuses a run that reports a different version."""
    with socket.create_connection(("127.0.0.1", port), SLACK_S) as sock:
        channel = Channel(sock)
        channel.send("setup", code={}, setup={})
        message = channel.receive(SLACK_S)
    return message is not None and "that host differs from this one in" in message["text"]


@pytest.mark.parametrize("sent", [b"", b'{"event": "setup"'])
def test_silent_peers_do_not_delay_a_run_and_are_dropped(port: int, sent: bytes) -> None:
    with connected(port, 20, sent) as peers:
        assert answers(port)
        assert all(is_dropped(peer, LIMIT_S + SLACK_S) for peer in peers)


def test_a_peer_that_drips_is_dropped_after_the_limit_of_a_message(port: int) -> None:
    began_s = time.monotonic()
    with dripping(port, b'{"event": "setup", "code": {}' + b" " * 500) as peer:
        assert answers(port)
        assert is_dropped(peer, LIMIT_S + SLACK_S)
    assert time.monotonic() - began_s < LIMIT_S + SLACK_S


@pytest.mark.parametrize("sent", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_is_dropped(port: int, sent: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    with connected(port, 1, sent) as (peer,):
        assert is_dropped(peer, LIMIT_S + SLACK_S)
    assert answers(port)
    assert "Traceback" not in capfd.readouterr().err


def test_a_message_that_is_too_long_is_cut_off() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = Channel(theirs, most_bytes=1000)
        ours.sendall(b"x" * 2000)
        with pytest.raises(ConnectionAbortedError, match=r"^a message is longer than 1,000 bytes$"):
            channel.receive(1.0)


def test_the_receive_limit_covers_the_whole_message() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = Channel(theirs)
        ours.sendall(b'{"event": ')
        threading.Timer(0.2, ours.sendall, [b'"a"']).start()
        began_s = time.monotonic()
        with pytest.raises(TimeoutError):
            channel.receive(0.3)
        assert time.monotonic() - began_s < 5
        ours.sendall(b"}\n")
        assert channel.receive(1.0) == {"event": "a"}
