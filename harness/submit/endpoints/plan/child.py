"""Starts runs of the harness in separate processes, and forwards a stop to them."""

import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from harness.core.child import start
from harness.core.signals import Stopped
from harness.submit.endpoints.plan.own import COMMAND

LOOK_EVERY_S = 0.5
STOP_LIMIT_S = 60.0


def run_harness(words: Sequence[str], log: Path, look: Callable[[float], None]) -> int:
    """Runs `python -m harness` with the words, and returns its exit status. look: called with the seconds so far."""
    with log.open("wb") as file:
        process = start(COMMAND, [*words, "--quiet"], log=file)
    began_s = time.monotonic()
    try:
        while True:
            look(time.monotonic() - began_s)
            with suppress(subprocess.TimeoutExpired):
                return process.wait(LOOK_EVERY_S)
    except Stopped:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise
