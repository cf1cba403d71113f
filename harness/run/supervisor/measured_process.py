"""Spawns one measured process, exchanges messages with it, and watches it until it ends."""

import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, Self

from harness.core.child import connect
from harness.core.clock import ClockWatch
from harness.core.signals import signal_name
from harness.errors import (
    BY_EXIT_STATUS,
    HarnessError,
    PluginUnavailable,
    RunDied,
    RunHung,
    one_line,
)
from harness.loadgen.plan import LoadPlan
from harness.machine.clock_offset import ClockOffset
from harness.results.evidence.stages import Completions
from harness.run import messages
from harness.run.journal import Journal, JournalReader, RowKind
from harness.run.supervisor.completions import read_completions
from harness.run.supervisor.watchdog import Now, Watchdog

LOOK_EVERY_S = 0.25
START_LIMIT_S = 600.0
"""Loading and warm-up may take this long, unless --hang-timeout sets a different limit."""

END_LIMIT_S = 120.0
"""LoadGen may take this long to write its logs after the last completion."""

EXIT_LIMIT_S = 10.0


class Measured(Protocol):
    """The measured process of a LoadGen run, or several processes that share the load. `Supervised` documents the
    members.
    """

    clock: ClockWatch

    @property
    def pids(self) -> Sequence[int]: ...
    @property
    def was_killed(self) -> bool: ...
    def expect(
        self, events: Sequence[str], limit_s: float, show_loading: Callable[[int, int], None]
    ) -> dict[str, Any]: ...
    def start(
        self,
        plan: LoadPlan,
        workers: int,
        rows: RowKind,
    ) -> JournalReader: ...
    def await_prepared(self, limit_s: float, show_loading: Callable[[int, int], None]) -> None: ...
    def go(self) -> None: ...
    def watch(
        self,
        watchdog: Watchdog,
        hang_s: float,
        load_limit_s: float,
        show: Callable[[Now], None],
        show_loading: Callable[[int, int], None],
    ) -> dict[str, Any]: ...
    def kill(self) -> None: ...
    def completions(self, plan: LoadPlan, shortest_ns: int | None = None) -> Completions: ...


class Supervised(ABC):
    """A measured process on any machine, and the messages to and from it. Use it as a context manager."""

    _journal: Journal

    clocks: Sequence[ClockOffset] = ()
    """How far the clock of the process's machine was ahead of this machine's clock: one measurement before the run,
    then one per interval. Empty if the process runs on this machine.
    """
    slowest_ping_ns = 0
    """The longest round trip to the process's machine before the run."""

    def __init__(self, output: Path, while_waiting: Callable[[], None]) -> None:
        """output: file for the output of plug-ins. while_waiting: `expect` calls it about once per second."""
        self.clock = ClockWatch()
        self._output = output
        self._while_waiting = while_waiting

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, *exc: object) -> None: ...

    @property
    @abstractmethod
    def pids(self) -> Sequence[int]:
        """Process ids of the measured processes on this machine."""

    @property
    @abstractmethod
    def was_killed(self) -> bool:
        """Whether SIGKILL ended the process. The kernel sends SIGKILL when memory is exhausted."""

    @abstractmethod
    def kill(self) -> None: ...

    @abstractmethod
    def start(
        self,
        plan: LoadPlan,
        workers: int,
        rows: RowKind,
    ) -> Journal: ...

    @abstractmethod
    def begin(self, start_ns: int) -> None:
        """Replies to the message `ready`. start_ns: start of the schedule, on the wall clock of the process's machine."""

    @abstractmethod
    def go(self) -> None:
        """Replies to the message `prepared`."""

    @abstractmethod
    def message(
        self, limit_s: float, while_waiting: Callable[[], None] = lambda: None
    ) -> dict[str, Any] | None:
        """Returns the next message; None if the process has died, even if a child process is still alive."""

    @abstractmethod
    def wait_for_exit(self) -> None: ...

    @abstractmethod
    def death(self) -> str:
        """Returns the end of a sentence that describes how the process died."""

    def expect(
        self, events: Sequence[str], limit_s: float, show_loading: Callable[[int, int], None]
    ) -> dict[str, Any]:
        """Returns the next message, which must be one of `events`.

        Raises BadMessage, the error that the process sends, or PluginUnavailable if the process died or sent nothing in
        time. limit_s: the longest time without any message, including messages about the progress of loading.
        """
        try:
            message = self._receive(limit_s, "loading", *events, while_waiting=self._while_waiting)
            while message is not None and message["event"] == "loading":
                show_loading(message["done"], message["total"])
                message = self._receive(
                    limit_s, "loading", *events, while_waiting=self._while_waiting
                )
        except TimeoutError:
            raise PluginUnavailable(
                f"the measured process sent no {events[0]!r} for {limit_s:.0f} s: loading or the warm-up "
                "is stuck, or takes longer; --hang-timeout sets how long to wait"
            ) from None
        if message is None:
            raise PluginUnavailable(
                f"the measured process {self.death()} before its first query: {self._see_output()}"
            )
        return self._checked(message)

    def await_prepared(self, limit_s: float, show_loading: Callable[[int, int], None]) -> None:
        """Waits until the process is ready. The process starts the run after `go`. The arguments are the same as in
        `expect`.
        """
        while self.expect(["prepared", "alive"], limit_s, show_loading)["event"] == "alive":
            pass

    def completions(self, plan: LoadPlan, shortest_ns: int | None = None) -> Completions:
        """Reads the completions from the journal that `start` returned. See `read_completions`."""
        return read_completions(self._journal, plan, shortest_ns)

    def watch(
        self,
        watchdog: Watchdog,
        hang_s: float,
        load_limit_s: float,
        show: Callable[[Now], None],
        show_loading: Callable[[int, int], None],
    ) -> dict[str, Any]:
        """Watches until LoadGen has ended. Returns the `ended` message, or raises RunDied.

        show: called 4 times per second. load_limit_s: the longest time without progress while the dataset loads
        samples.
        """
        while True:
            now = watchdog.look()
            show(now)
            raise_if_stuck(now, hang_s, load_limit_s)
            message = self.listen(watchdog, show_loading)
            if message is not None:
                show(watchdog.look())
                return self.ended(message)

    def listen(
        self,
        watchdog: Watchdog,
        show_loading: Callable[[int, int], None],
        wait_s: float = LOOK_EVERY_S,
        event: str = "ended",
    ) -> dict[str, Any] | None:
        """Returns the message `event` or `error`. Returns None if no message arrives within wait_s, or if the message
        only reports progress.

        Raises RunDied.
        """
        self.clock.sample()
        try:
            message = self._receive(wait_s, "loading", "alive", event)
        except TimeoutError:
            return None
        except messages.BadMessage as e:
            raise RunDied(str(e)) from None
        self.clock.sample()
        if _goes_on(message, watchdog, show_loading):
            return None
        if message is None:
            raise RunDied(f"the measured process {self.death()} in the run: {self._see_output()}")
        return message

    def ended(self, message: dict[str, Any]) -> dict[str, Any]:
        """Waits until the process has exited, and returns the message `ended`. If `message` is an error, raises the
        error.
        """
        ended = self._checked(message)
        self.wait_for_exit()
        return ended

    def _receive(
        self, limit_s: float, *events: str, while_waiting: Callable[[], None] = lambda: None
    ) -> dict[str, Any] | None:
        """Returns the next message. Raises BadMessage if the message is neither one of `events` nor an error."""
        try:
            message = self.message(limit_s, while_waiting)
        except (ValueError, RecursionError) as e:
            raise messages.BadMessage(f"no JSON: {one_line(e)}") from None
        if message is not None:
            messages.check(message, ("error", *events))
        return message

    def _checked(self, message: dict[str, Any]) -> dict[str, Any]:
        if message["event"] != "error":
            return message
        if message["trace"]:
            with self._output.open("a", encoding="utf-8") as log:
                log.write(message["trace"])
        error: type[HarnessError] | None = BY_EXIT_STATUS.get(message["status"])
        if error is None:
            raise RuntimeError(f"the measured process failed:\n{message['trace']}")
        hint = f": {self._see_output()}" if error is PluginUnavailable and message["trace"] else ""
        raise error(message["text"] + hint)

    def _see_output(self) -> str:
        """Returns a pointer to the file with the output, or a note that the process printed nothing."""
        is_empty = self._output.is_file() and not self._output.stat().st_size
        return "it printed nothing" if is_empty else f"see {self._output}"


class MeasuredProcess(Supervised):
    """A measured process on this machine. The process never outlives this context manager."""

    def __init__(
        self,
        setup: Mapping[str, Any],
        output: Path,
        module: str = "harness.run.measured.process",
        while_waiting: Callable[[], None] = lambda: None,
    ) -> None:
        """setup: the first message. module: the module whose `main` runs. The other arguments are the same as in
        `Supervised`.
        """
        super().__init__(output, while_waiting)
        self.journal_fd = Journal.create()
        # The process gets a new session, because only the supervisor handles Ctrl-C.
        with output.open("wb") as log:
            self._process, self._channel = connect(
                module, [self.journal_fd], log=log, new_session=True
            )
        self._channel.send("setup", **setup)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def pids(self) -> Sequence[int]:
        return [self.pid]

    @property
    def was_killed(self) -> bool:
        return self._process.returncode == -signal.SIGKILL

    def __exit__(self, *exc: object) -> None:
        self.kill()
        self._channel.close()
        os.close(self.journal_fd)
        with suppress(OSError):  # the result folder may have been removed
            if not self._output.stat().st_size:
                self._output.unlink()

    def kill(self) -> None:
        """Kills the whole process group, because a plug-in may have started processes."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def start(
        self,
        plan: LoadPlan,
        workers: int,
        rows: RowKind,
    ) -> Journal:
        Journal.resize(self.journal_fd, plan.journal_samples, workers, rows)
        self._channel.send("plan", plan=plan.to_json())
        self._journal = Journal(self.journal_fd)
        return self._journal

    def begin(self, start_ns: int) -> None:
        self._channel.send("begin", start_ns=start_ns)

    def go(self) -> None:
        self._channel.send("go")

    def message(
        self, limit_s: float, while_waiting: Callable[[], None] = lambda: None
    ) -> dict[str, Any] | None:
        deadline = time.monotonic() + limit_s
        while True:
            left = deadline - time.monotonic()
            try:
                return self._channel.receive(max(0.001, min(left, 1.0)))
            except TimeoutError:
                if self._process.poll() is not None:
                    # The process may have sent a last message just before its end.
                    with suppress(TimeoutError):
                        return self._channel.receive(0)
                    return None
                if left <= 0:
                    raise
                while_waiting()

    def wait_for_exit(self) -> None:
        try:
            self._process.wait(EXIT_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def death(self) -> str:
        status = self._process.wait()
        if status < 0:
            return f"was killed by {signal_name(-status)}"
        return f"exited with status {status}"


def _goes_on(
    message: dict[str, Any] | None, watchdog: Watchdog, show_loading: Callable[[int, int], None]
) -> bool:
    """Returns whether the message only reports that the dataset is loading or that batches before the run are in
    progress.
    """
    if message is None or message["event"] not in ("loading", "alive"):
        return False
    watchdog.still_loading()
    if message["event"] == "loading":
        show_loading(message["done"], message["total"])
    return True


def raise_if_stuck(now: Now, hang_s: float, load_limit_s: float) -> None:
    if now.finished_ns > max(END_LIMIT_S, hang_s) * 1e9:
        raise RunHung("the measured process hung after its last completion")
    if now.loading_ns > load_limit_s * 1e9:
        error = RunHung if now.issued else PluginUnavailable
        before = "" if now.issued else ", or the backend in a batch before the run"
        raise error(
            f"LoadGen issued nothing for {load_limit_s:.0f} s: the dataset is stuck in load{before}; "
            "--hang-timeout sets how long to wait"
        )
    if now.idle_ns > hang_s * 1e9:
        raise RunHung(
            f"the measured process hung: {now.waiting:,} samples were in flight, and none was "
            f"completed for {now.idle_ns / 1e9:.0f} s; --hang-timeout sets how long to wait"
        )
