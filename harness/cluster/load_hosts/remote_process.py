"""Supervises a measured process on another machine through the load host on that machine."""

import os
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.cluster.load_hosts.remote_channel import (
    LOST_S,
    append_piece,
    channel_over,
    send_file,
)
from harness.core.clock import wall_ns
from harness.core.config.parse import Endpoint
from harness.errors import BY_EXIT_STATUS, ConfigError, one_line
from harness.loadgen.logs import FILES
from harness.loadgen.plan import LoadPlan
from harness.machine.clock_offset import PINGS, ClockOffset, Ping, best_offset
from harness.models.opened.node import own_code
from harness.run.journal import Journal, RowKind
from harness.run.journal_mirror import Mirror
from harness.run.setup import Setup
from harness.run.supervisor.measured_process import Supervised

_NO_HOST = "answers, but is not a load host"

PING_EVERY_S = 0.25
PINGS_LIMIT_S = 2.0
"""Maximum total time for the pings before the run."""

WINDOW_S = 10.0
"""In each window of this length, the best ping determines the clock's offset."""


class RemoteProcess(Supervised):
    """A measured process on a load host. The process exits when the connection closes."""

    def __init__(
        self,
        address: Endpoint,
        setup: Setup,
        outdir: Path,
        output: Path,
        while_waiting: Callable[[], None],
    ) -> None:
        """Raises ConfigError if the host does not respond or refuses the run. outdir: folder for the files that the
        process wrote. output: file for the process's output if the process died.
        """
        super().__init__(output, while_waiting)
        self._address = address
        self._outdir = outdir
        self._socket = self._connected()
        self._channel = channel_over(self._socket)
        self._journal_fd: int | None = None
        self._mirror: Mirror | None = None
        self._how = ""  # how the process ended; "" while it is running
        self._was_killed = False
        self._heard_s = self._pinged_s = time.monotonic()
        self._early: deque[dict[str, Any]] = (
            deque()
        )  # messages that arrived between the first pings
        self._pings: list[Ping] = []
        self.clocks: list[ClockOffset] = []
        try:
            self._channel.send("setup", code=own_code(), setup=setup.to_json())
            if self._answer()["event"] != "hello":
                raise self._refused(_NO_HOST)
            end_s = time.monotonic() + PINGS_LIMIT_S
            while len(self._pings) < PINGS and time.monotonic() < end_s:
                self._ping()
                self._take(self._pong())
            self.slowest_ping_ns = max(ping.round_trip_ns for ping in self._pings)
            self._close_window()
        except BaseException:
            self._channel.close()
            raise

    def _connected(self) -> socket.socket:
        try:
            return socket.create_connection(self._address, LOST_S)
        except OSError as e:
            raise self._refused(f"does not answer ({one_line(e)})") from None

    def _refused(self, why: str) -> ConfigError:
        return ConfigError(
            f"--load-hosts: {self._address} {why}: start `load-host --listen {self._address}` there"
        )

    def _answer(self) -> dict[str, Any]:
        """Returns the next message that arrives before the run. Raises the error that the host sent."""
        try:
            message = self._channel.receive(LOST_S)
        except (OSError, ValueError) as e:
            why = f" ({one_line(e)})" if isinstance(e, OSError) else ""
            raise self._refused(f"{_NO_HOST}{why}") from None
        if message is not None and message.get("event") == "error":
            error = BY_EXIT_STATUS.get(int(message.get("status", 0)), ConfigError)
            raise error(f"--load-hosts: {self._address}: {message.get('text')}")
        if message is None or "event" not in message:
            raise self._refused(_NO_HOST)
        return message

    def _pong(self) -> dict[str, Any]:
        """Returns the next reply to a ping. Keeps messages from the process that arrive earlier, and `message` returns
        them later.
        """
        while (message := self._answer())["event"] != "pong":
            self._early.append(message)
        return message

    def __exit__(self, *exc: object) -> None:
        self.kill()
        if self._journal_fd is not None:
            os.close(self._journal_fd)

    @property
    def pids(self) -> tuple[int, ...]:
        return ()

    @property
    def was_killed(self) -> bool:
        return self._was_killed

    def kill(self) -> None:
        """Closes the connection, which also ends the process."""
        self._channel.close()

    def start(
        self,
        plan: LoadPlan,
        workers: int,
        rows: RowKind,
    ) -> Journal:
        self._journal_fd = fd = Journal.create()
        Journal.resize(fd, plan.journal_samples, workers, rows)
        self._journal = Journal(fd)
        self._mirror = Mirror(self._journal, self.clocks[0].offset_ns)
        self._socket.settimeout(LOST_S)
        with suppress(OSError):  # the next `message` reports a lost host
            if plan.schedule is not None:
                send_file(self._channel, Path(plan.schedule))
            self._channel.send("plan", plan=plan.to_json(), workers=workers, rows=rows.name)
        return self._journal

    def begin(self, start_ns: int) -> None:
        self._journal.start_ns = start_ns - self.clocks[0].offset_ns
        with suppress(OSError):
            self._channel.send("begin", start_ns=start_ns)

    def go(self) -> None:
        with suppress(OSError):  # the next `message` reports a lost host
            self._channel.send("go")

    def message(
        self, limit_s: float, while_waiting: Callable[[], None] = lambda: None
    ) -> dict[str, Any] | None:
        if self._early:
            return self._early.popleft()
        deadline_s = time.monotonic() + limit_s
        while not self._how:
            self._ping_if_due()
            left_s = deadline_s - time.monotonic()
            try:
                message = self._channel.receive(max(0.001, min(left_s, PING_EVERY_S)))
            except TimeoutError:
                self._look_whether_heard()
                if left_s <= 0 and not self._how:
                    raise
                while_waiting()
                continue
            except OSError as e:
                self._how = f"was cut off: {one_line(e)}"
                break
            self._heard_s = time.monotonic()
            if message is None:
                self._how = "was cut off: the connection was closed"
            elif not self._is_own(message):
                return message
        return None

    def _look_whether_heard(self) -> None:
        if time.monotonic() - self._heard_s > LOST_S:
            self._how = f"sent nothing for {LOST_S:.0f} s"

    def _is_own(self, message: Mapping[str, Any]) -> bool:
        """Handles a message from the load host itself; returns False if the message comes from the process instead.
        Raises ValueError if the message is faulty.
        """
        try:
            event = message["event"]
            if event == "pong":
                self._take(message)
            elif event == "news" and self._mirror is not None:
                self._mirror.add(message)
            elif event == "file" and message["name"] in FILES:
                append_piece(self._outdir, message)
            elif event == "died":
                self._how = one_line(str(message["how"]))
                self._was_killed = "SIGKILL" in self._how
                with self._output.open("a", encoding="utf-8") as log:
                    log.write(str(message["output"]))
            else:
                return False
        except (KeyError, TypeError) as e:
            raise ValueError(f"a message is not complete: {e!r}") from None
        return True

    def wait_for_exit(self) -> None:
        """Measures the offset of the host's clock for the last time. The process ends when the connection is closed."""
        if self._pings:
            self._close_window()

    def death(self) -> str:
        return self._how

    def _ping_if_due(self) -> None:
        now_s = time.monotonic()
        if now_s - self._pinged_s >= PING_EVERY_S:
            self._pinged_s = now_s
            with suppress(OSError):
                self._ping()

    def _ping(self) -> None:
        self._channel.send("ping", sent_ns=wall_ns())

    def _take(self, pong: Mapping[str, Any]) -> None:
        received_ns = wall_ns()
        sent_ns, arrived_ns, answered_ns = (
            int(pong[name]) for name in ("sent_ns", "arrived_ns", "answered_ns")
        )
        self._pings.append(Ping(sent_ns, arrived_ns, answered_ns, received_ns))
        if self.clocks and received_ns - self.clocks[-1].at_ns > WINDOW_S * 1e9:
            self._close_window()

    def _close_window(self) -> None:
        self.clocks.append(best_offset(self._pings))
        self._pings.clear()
