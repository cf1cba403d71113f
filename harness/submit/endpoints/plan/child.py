"""Starts runs of the harness in separate processes, and forwards a stop to them."""

from collections.abc import Callable, Sequence
from pathlib import Path

from harness.core.child import start, wait
from harness.submit.endpoints.plan.own import COMMAND


def run_harness(words: Sequence[str], log: Path, look: Callable[[float], None]) -> int:
    """Runs `python -m harness` with the words, and returns its exit status. look: called with the seconds so far."""
    with log.open("wb") as file:
        process = start(COMMAND, [*words, "--quiet"], log=file)
    return wait(process, look)
