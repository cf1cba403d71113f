"""The supervisor hears the last message of a measured process, also after the process has ended."""

import subprocess
from types import SimpleNamespace
from typing import cast

from harness.core.child import Channel
from harness.run.supervisor.measured_process import MeasuredProcess


class _SendsAsItEnds:
    """No message while the supervisor waits; one when the supervisor notices that the process ended."""

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
    assert process._receive(10.0) == {"event": "ended"}
