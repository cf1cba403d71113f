"""Waits on a load host for runs, and issues this host's share of a run's load with a measured process.

An agent handles one run at a time. The agent sends the journal during the run, so that little data is lost if the
connection to the host is lost.

receives   setup    the harness's version and code, and the run as the measured process gets it
receives   ping     answered at once with `pong`, for the clock and as a sign of life
receives   file     a piece of a file that the plan refers to
receives   plan     this host's part of the load plan
receives   begin    as in the measured process
sends      news     new rows of the journal
sends      died     how the measured process ended, if it sent no last message
sends      file     a piece of a file that the run wrote
           and all messages of the measured process
"""

import os
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness.cluster.load_hosts.remote_channel import append_piece, channel_over, send_file
from harness.core import registry
from harness.core.child import Channel
from harness.core.clock import wall_ns
from harness.core.console import say
from harness.errors import ConfigError, one_line
from harness.loadgen.logs import digests
from harness.loadgen.plan import LoadPlan
from harness.models.opened.node import own_code
from harness.run.journal import RowKind
from harness.run.journal_mirror import News
from harness.run.setup import Setup
from harness.run.shared_region import release
from harness.run.supervisor.measured_process import MeasuredProcess

NEWS_EVERY_S = 0.25
HELLO_LIMIT_S = 10.0
"""Maximum time to wait for a connection's first message. A connection that has not sent its first message does not
delay other runs.
"""

MOST_SILENT = 64
"""Maximum number of connections that have not yet sent a first message. If a further connection arrives, the agent
closes the oldest of these connections.
"""

BUSY_LIMIT_S = 5.0
"""Maximum time to wait until the previous run's process has ended. If the process takes longer, the agent refuses the
new run as busy.
"""

_LAST_BYTES = 4000
"""When a process dies, the agent sends at most this many bytes from the end of the process's output."""


class Agent:
    """Accepts runs from a listening socket until `stop` is called."""

    def __init__(self, listening: socket.socket, allowed: frozenset[str]) -> None:
        """allowed: names of this machine's environment variables that a run's --header may use."""
        self._listening = listening
        self._allowed = allowed
        self._busy = threading.Lock()
        self._answering: dict[socket.socket, threading.Thread] = {}
        self._silent: dict[socket.socket, None] = {}  # oldest first

    def run(self) -> None:
        """Accepts runs until `stop` is called. Returns after the last run has ended."""
        while True:
            try:
                connected, (peer, *_) = self._listening.accept()
            except OSError:
                break
            if len(self._silent) >= MOST_SILENT:
                for oldest in [*self._silent][:1]:
                    self._silent.pop(oldest, None)
                    _hang_up(oldest)
            self._silent[connected] = None
            thread = threading.Thread(target=self._answer, args=(connected, peer))
            self._answering[connected] = thread
            thread.start()
        for thread in [*self._answering.values()]:
            thread.join()

    def stop(self) -> None:
        """Stops accepting runs and ends the current run. May be called in a signal handler."""
        self._listening.close()
        for connected in [*self._answering]:
            _hang_up(connected)

    def _answer(self, connected: socket.socket, peer: str) -> None:
        with closing(channel_over(connected)) as channel:
            try:
                # The connection to the machine that started the run may be lost.
                with suppress(OSError):
                    self._hear(channel, connected, peer)
            except BaseException as e:  # noqa: BLE001 - shown there
                channel.send_error(e)
            finally:
                self._silent.pop(connected, None)
                del self._answering[connected]

    def _hear(self, channel: Channel, connected: socket.socket, peer: str) -> None:
        """Handles a new connection. The connection counts as a run once its first message is complete."""
        try:
            setup = channel.receive(HELLO_LIMIT_S)
            if setup is not None and (
                setup["event"] != "setup" or not isinstance(setup["code"], Mapping)
            ):
                raise ValueError(f"an event {setup['event']!r:.40}")
        except (ValueError, KeyError, TypeError) as e:
            say(f"{peer} sent a message that no run sends: {one_line(e)}")
            raise ConfigError(
                "the message does not begin a run: use the same version of the harness on both hosts"
            ) from None
        self._silent.pop(connected, None)
        if setup is None:
            return
        if not self._busy.acquire(timeout=BUSY_LIMIT_S):
            raise ConfigError("it takes part in a different run: wait until that run has ended")
        say(f"{peer}: a run begins")
        try:
            _take_part(channel, setup, self._allowed)
        finally:
            self._busy.release()
            say(f"{peer}: the run has ended")


def _hang_up(connected: socket.socket) -> None:
    """Closes a connection, which ends the thread that reads from it."""
    with suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)


def _take_part(channel: Channel, message: Mapping[str, Any], allowed: frozenset[str]) -> None:
    """Takes part in a run from its `setup` message until its end. Raises an error if the agent refuses the run."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="mlperf-load-host-")))
        setup = _accepted(message, folder, allowed)
        output = folder / "output.log"
        process = MeasuredProcess(setup.to_json(), output)
        stack.callback(release, setup.config, process.pid)
        stack.enter_context(process)
        channel.send("hello")
        _Part(channel, process, folder, output).run()


def _accepted(message: Mapping[str, Any], folder: Path, allowed: frozenset[str]) -> Setup:
    """Returns the run's setup with a folder on this machine. Raises ConfigError if this host cannot take part or is not
    allowed to take part.
    """
    ours = own_code()
    differing = [what for what, value in ours.items() if message["code"].get(what) != value]
    if differing:
        raise ConfigError(
            f"that host differs from this one in {', '.join(differing)}: install the same version"
        )
    setup = replace(Setup.from_json(message["setup"]), outdir=folder)
    config = setup.config
    for name in (config.backend, setup.dataset, setup.metric):
        if name is not None and registry.is_code(name):
            raise ConfigError(
                f"{name} is a file or module, and a load host on a different machine does not "
                "execute such code: install it there as a plug-in"
            )
    if config.hook is not None:
        raise ConfigError(
            "--hook is code, which a load host on a different machine does not execute"
        )
    for header, source in config.header:
        name = source.removeprefix("env:")
        if name not in allowed:
            raise ConfigError(
                f"--header {header}={source}: that host may not send its {name}: start it with --allow-env {name}"
            )
    return setup


class _Part:
    """Forwards messages between the run and its measured process, with one thread per direction."""

    def __init__(
        self, channel: Channel, process: MeasuredProcess, folder: Path, output: Path
    ) -> None:
        self._channel = channel
        self._process = process
        self._folder = folder
        self._output = output
        self._sending = threading.Lock()
        self._news: News | None = None
        self._left = threading.Event()
        self._receives: Mapping[str, Callable[[dict[str, Any]], None]] = {
            "ping": self._pong,
            "file": lambda message: append_piece(folder, message),
            "plan": self._start,
            "begin": lambda message: process.begin(int(message["start_ns"])),
            "go": lambda _message: process.go(),
        }

    def run(self) -> None:
        """Forwards messages until the coordinator closes the connection or is lost."""
        thread = threading.Thread(target=self._receive, daemon=True)
        thread.start()
        while not self._left.is_set():
            try:
                message = self._process.message(NEWS_EVERY_S)
            except TimeoutError:
                self._tell()
                continue
            self._tell()
            if message is None:
                self._send("died", how=self._process.death(), output=self._printed())
                break
            if message["event"] == "ended":
                for name in digests(self._folder):
                    with self._sending:
                        send_file(self._channel, self._folder / name)
            self._send(**message)
            if message["event"] in ("ended", "error"):
                break
        thread.join()

    def _receive(self) -> None:
        try:
            while (message := self._channel.receive()) is not None:
                self._receives[message["event"]](message)
        except OSError:
            pass  # the connection to the machine that started the run is lost
        except (ValueError, KeyError, TypeError) as e:
            say(f"the run sent a message that no run sends, and was closed: {e!r}")
        finally:
            self._left.set()
            self._process.kill()

    def _send(self, event: str, **values: Any) -> None:
        with self._sending:
            self._channel.send(event, **values)

    def _pong(self, message: dict[str, Any]) -> None:
        arrived_ns = wall_ns()
        with self._sending:
            self._channel.send(
                "pong", sent_ns=message["sent_ns"], arrived_ns=arrived_ns, answered_ns=wall_ns()
            )

    def _start(self, message: dict[str, Any]) -> None:
        plan = LoadPlan.from_json(message["plan"])
        own = None if plan.schedule is None else str(self._folder / Path(plan.schedule).name)
        kind = RowKind[message["rows"]]
        journal = self._process.start(replace(plan, schedule=own), message["workers"], kind)
        self._news = News(journal)

    def _tell(self) -> None:
        if self._news is not None:
            for news in self._news.read():
                self._send("news", **news)

    def _printed(self) -> str:
        with suppress(OSError), self._output.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LAST_BYTES))
            return file.read().decode("utf-8", "replace")
        return ""
