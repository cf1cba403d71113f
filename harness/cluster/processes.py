"""Starts local processes that are nodes or start nodes, waits until all of them are ready, and always ends them."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness.core.child import Channel, connect
from harness.core.signals import signal_name
from harness.errors import BY_EXIT_STATUS, HarnessError, PluginUnavailable

READY_LIMIT_S = 600.0
"""Time that a node may take to load the model and data and to measure its rate."""

_LAST_LINES = 5


@dataclass(slots=True)
class _Process:
    name: str
    popen: "subprocess.Popen[bytes]"
    channel: Channel
    log: Path


class NodeProcesses:
    """Processes that run a module's `main` and send the message `listening` once they accept connections. The object is
    a context manager.

    The processes end with this process, even if this process is killed. At the end of the block, the processes are
    killed together with all processes that they have started.
    """

    def __init__(self, module: str, end_limit_s: float = 0.0) -> None:
        """end_limit_s: time that the processes may take to end after their channel is closed. Processes that take
        longer are killed.
        """
        self._module = module
        self._end_limit_s = end_limit_s
        self._processes: list[_Process] = []
        self._logs = TemporaryDirectory(prefix="harness-nodes-")

    def __enter__(self) -> "NodeProcesses":
        return self

    def __exit__(self, *exc: object) -> None:
        if self._end_limit_s:
            self._let_end()
        for process in self._processes:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.popen.pid, signal.SIGKILL)
        for process in self._processes:
            process.popen.wait()
            process.channel.close()
        self._logs.cleanup()

    def _let_end(self) -> None:
        deadline_s = time.monotonic() + self._end_limit_s
        for process in self._processes:
            process.channel.close()
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.popen.wait(max(0.0, deadline_s - time.monotonic()))

    @property
    def pids(self) -> Sequence[int]:
        return [process.popen.pid for process in self._processes]

    def start(self, name: str, setup: Mapping[str, Any]) -> None:
        """setup: the first message to the process."""
        log = Path(self._logs.name) / f"{name}.log"
        with log.open("wb") as output:
            popen, channel = connect(self._module, log=output, new_session=True)
        self._processes.append(_Process(name, popen, channel, log))
        channel.send("setup", name=name, **setup)

    def addresses(self, limit_s: float = READY_LIMIT_S) -> Sequence[str]:
        """Waits until all processes are ready. Returns the HOST:PORT of each process, in the order of their start.

        A process that listens for several nodes returns all their addresses.

        Raises the error that a process sends, or PluginUnavailable if a process dies or takes too long.
        """
        deadline_s = time.monotonic() + limit_s
        return [one for each in self._processes for one in self._addresses(each, deadline_s)]

    def _addresses(self, process: _Process, deadline_s: float) -> Sequence[str]:
        try:
            message = process.channel.receive(max(0.001, deadline_s - time.monotonic()))
        except TimeoutError:
            raise PluginUnavailable(
                f"{process.name} was not ready in time: {_end(process.log)}"
            ) from None
        if message is None:
            status = process.popen.wait()
            how = (
                f"was killed by {signal_name(-status)}"
                if status < 0
                else f"ended with status {status}"
            )
            raise PluginUnavailable(
                f"{process.name} {how} before it was ready: {_end(process.log)}"
            )
        if message["event"] == "error":
            error: type[HarnessError] | None = BY_EXIT_STATUS.get(message["status"])
            if error is None:
                raise RuntimeError(f"{process.name} failed:\n{message['trace']}")
            raise error(f"{process.name}: {message['text']}")
        several: Sequence[str] | None = message.get("addresses")
        return several or [f"{message['host']}:{message['port']}"]


def _end(log: Path) -> str:
    """Returns the last lines of a process's output."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return " / ".join(lines[-_LAST_LINES:]) or "it printed nothing"
