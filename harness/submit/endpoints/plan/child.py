"""Runs the harness in separate processes, and passes stop signals on to them."""

from collections.abc import Callable, Sequence
from pathlib import Path

from harness.core.child import start, wait
from harness.errors import ConfigError
from harness.submit.endpoints.plan.own import COMMAND


def run_harness(words: Sequence[str], log: Path, look: Callable[[float], None]) -> int:
    """Runs `python -m harness` with these arguments, and returns its exit status. look: called with the elapsed
    seconds.
    """
    with log.open("wb") as file:
        process = start(COMMAND, [*words, "--quiet"], log=file)
    return wait(process, look)


def refuse_unmeasured(what: str, status: int, log: Path) -> None:
    """Raises a ConfigError with the last line of the log if the harness refused the command."""
    if status != ConfigError.exit_status:
        return
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "no message")
    raise ConfigError(f"{what} was not measured: {last.removeprefix('harness: ')} ({log})")
