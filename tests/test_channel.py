"""Messages between the two processes, and what a dead one looks like."""

import socket
from collections.abc import Iterator

import pytest

from harness.channel import Channel


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Channel(ours), Channel(theirs)


def test_messages_arrive_whole_and_in_order(pair: tuple[Channel, Channel]) -> None:
    ours, theirs = pair
    ours.send("one", text="a\nb", size=1 << 17, filler="x" * 70_000)
    ours.send("two")
    assert theirs.receive(1.0) == {
        "event": "one",
        "text": "a\nb",
        "size": 1 << 17,
        "filler": "x" * 70_000,
    }
    assert theirs.receive(1.0) == {"event": "two"}


def test_a_dead_other_end_is_told_by_receive_alone(pair: tuple[Channel, Channel]) -> None:
    ours, theirs = pair
    theirs.close()
    ours.send("plan", plan={})
    assert ours.receive(1.0) is None


def test_nothing_within_the_time_is_a_timeout(pair: tuple[Channel, Channel]) -> None:
    ours, _theirs = pair
    with pytest.raises(TimeoutError):
        ours.receive(0.01)
