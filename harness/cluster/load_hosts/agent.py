"""Waits on another machine for runs that have it issue a share of their load, and lends them a measured process.

One run at a time. Its journal is sent while the run goes on, so that little of it is lost with a host.

receives   setup    the harness's version and code, and the run as the measured process gets it
receives   ping     answered at once with `pong`, for the clock and as a sign of life
receives   file     a piece of a file that the plan names
receives   plan     what this host issues of the run's load
receives   begin    as the measured process
sends      news     of the journal
sends      died     how the measured process ended, where it sent no last message
sends      file     a piece of what the run left
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
"""Limit of a connection's first message, until which it keeps no run waiting."""

MOST_SILENT = 64
"""Connections without their first message; for one more, the oldest is closed."""

BUSY_LIMIT_S = 5.0
"""Time for the process of the run before to end."""

_LAST_BYTES = 4000
"""The end of what plug-ins printed is sent where the process died."""


class Agent:
    """Takes runs from a socket that listens, until it is stopped."""

    def __init__(self, listening: socket.socket, allowed: frozenset[str]) -> None:
        """allowed: environment variables of this machine that a run's --header may name."""
        self._listening = listening
        self._allowed = allowed
        self._busy = threading.Lock()
        self._answering: dict[socket.socket, threading.Thread] = {}
        self._silent: dict[socket.socket, None] = {}  # the oldest first

    def run(self) -> None:
        """Returns after `stop`, once nothing is left of the last run."""
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
        """Also ends the part in a run. May be called by a signal's handler."""
        self._listening.close()
        for connected in [*self._answering]:
            _hang_up(connected)

    def _answer(self, connected: socket.socket, peer: str) -> None:
        with closing(channel_over(connected)) as channel:
            try:
                with suppress(OSError):  # the run's machine is gone
                    self._hear(channel, connected, peer)
            except BaseException as e:  # noqa: BLE001 - shown there
                channel.send_error(e)
            finally:
                self._silent.pop(connected, None)
                del self._answering[connected]

    def _hear(self, channel: Channel, connected: socket.socket, peer: str) -> None:
        """A peer is silent, and no run, until its first message is whole."""
        try:
            setup = channel.receive(HELLO_LIMIT_S)
            if setup is not None and (
                setup["event"] != "setup" or not isinstance(setup["code"], Mapping)
            ):
                raise ValueError(f"an event {setup['event']!r:.40}")
        except (ValueError, KeyError, TypeError) as e:
            say(f"{peer} sent what no run sends: {one_line(e)}")
            raise ConfigError(
                "the message does not begin a run: is the client the same version of the harness?"
            ) from None
        self._silent.pop(connected, None)
        if setup is None:
            return
        if not self._busy.acquire(timeout=BUSY_LIMIT_S):
            raise ConfigError("it takes part in another run: wait for its end")
        say(f"{peer}: a run begins")
        try:
            _take_part(channel, setup, self._allowed)
        finally:
            self._busy.release()
            say(f"{peer}: the run has ended")


def _hang_up(connected: socket.socket) -> None:
    """Its thread finds the end."""
    with suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)


def _take_part(channel: Channel, message: Mapping[str, Any], allowed: frozenset[str]) -> None:
    """One run, from its `setup` to its end. Raises what refuses it."""
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
    """The run, with this machine's folder. A ConfigError where this host cannot or may not take part."""
    ours = own_code()
    differing = [what for what, value in ours.items() if message["code"].get(what) != value]
    if differing:
        raise ConfigError(
            f"not the same there as here: {', '.join(differing)}: install the same version"
        )
    setup = replace(Setup.from_json(message["setup"]), outdir=folder)
    config = setup.config
    for name in (config.backend, setup.dataset, setup.metric):
        if name is not None and registry.is_code(name):
            raise ConfigError(
                f"{name} is a file or module of the run's own, which a load host on another machine does not "
                "execute: install it there as a plug-in"
            )
    if config.hook is not None:
        raise ConfigError("--hook is code, which a load host on another machine does not execute")
    for header, source in config.header:
        name = source.removeprefix("env:")
        if name not in allowed:
            raise ConfigError(
                f"--header {header}={source}: that host sends no server its {name}: start it with --allow-env {name}"
            )
    return setup


class _Part:
    """Passes messages on in both directions: one thread for each."""

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
        }

    def run(self) -> None:
        """Until the run closes the connection, or its machine is gone."""
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
            pass  # the run's machine is gone
        except (ValueError, KeyError, TypeError) as e:
            say(f"the run sent what no run sends, and is left: {e!r}")
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
