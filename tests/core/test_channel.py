"""Messages between the two processes, and what a dead one looks like."""

import socket
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from harness.core.child import Channel
from harness.run.supervisor.measured_process import MeasuredProcess


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


class _SpeaksAsItEnds:
    """No message while the supervisor waits; one by the time it has found the process dead."""

    def __init__(self) -> None:
        self._answers: list[dict[str, object] | None] = [None, {"event": "ended"}]

    def receive(self, _limit_s: float) -> dict[str, object]:
        answer = self._answers.pop(0)
        if answer is None:
            raise TimeoutError
        return answer


def test_what_a_process_said_last_is_heard_although_it_has_ended() -> None:
    process = MeasuredProcess.__new__(MeasuredProcess)
    process._channel = cast(Channel, _SpeaksAsItEnds())
    process._process = cast("subprocess.Popen[bytes]", SimpleNamespace(poll=lambda: 0))
    assert process._receive(10.0) == {"event": "ended"}
