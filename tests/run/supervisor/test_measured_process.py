"""The supervisor receives the last message of a measured process even if the process has already ended."""

import socket
import subprocess
from types import SimpleNamespace
from typing import cast

import pytest

from harness.core.child import Channel
from harness.errors import PluginUnavailable
from harness.run.supervisor.measured_process import MeasuredProcess


class _SendsAsItEnds:
    """Sends nothing while the supervisor waits, and a message when the supervisor notices the end of the process."""

    def __init__(self) -> None:
        self._answers: list[dict[str, object] | None] = [None, {"event": "ended"}]

    def receive(self, _limit_s: float) -> dict[str, object]:
        answer = self._answers.pop(0)
        if answer is None:
            raise TimeoutError
        return answer


def test_a_message_sent_just_before_the_exit_is_received() -> None:
    process = MeasuredProcess.__new__(MeasuredProcess)
    process._channel = cast(Channel, _SendsAsItEnds())
    process._process = cast("subprocess.Popen[bytes]", SimpleNamespace(poll=lambda: 0))
    assert process.message(10.0) == {"event": "ended"}


@pytest.mark.parametrize(
    "line",
    [b"nonsense", b"\xff", b"[" * 100_000, b"[]", b"{}", b'{"event": []}', b'{"event": "alive"}'],
)
def test_foreign_message_is_reported_in_one_line(line: bytes) -> None:
    """Bug: the supervisor raised a JSONDecodeError or a KeyError."""
    ours, theirs = socket.socketpair()
    process = MeasuredProcess.__new__(MeasuredProcess)
    process._channel = Channel(ours)
    process._while_waiting = lambda: None
    with ours, theirs:
        theirs.sendall(line + b"\n")
        with pytest.raises(PluginUnavailable, match="that the harness does not send") as raised:
            process.expect(["loaded"], 10.0, lambda _done, _total: None)
    assert "\n" not in str(raised.value)
