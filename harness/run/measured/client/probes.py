"""Sends small requests during the load, on separate connections, to measure how long other clients wait."""

import threading
from collections.abc import Sequence
from contextlib import suppress
from math import ceil
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from harness.core.clock import wall_ns
from harness.core.units import NS_PER_S
from harness.errors import ConfigError, one_line
from harness.loadgen.logs import PROBE_ROWS
from harness.remote import HasProbe, HasReader, Remote, Request
from harness.run.journal import Journal
from harness.run.measured.client.dispatch import stream_reader
from harness.types import Dataset
from harness.wire.connections import Server
from harness.wire.flight import Flight
from harness.wire.transport import transport

ALONE = 20
"""At most this many sequential probes run before the load. The probes stop earlier if ALONE_S has passed."""
ALONE_S = 5.0

BUSY_S = 4.0
MOST_CONNECTIONS = 64
"""Each server gets at most this many connections. Below this limit, each server gets enough connections for the probe
rate even if every probe takes BUSY_S.
"""

LAST_S = 10.0
"""After the load, the harness waits at most this long for the last probes."""

_TURN_S = 0.05
_LOOK_S = 0.002


class Probes:
    """The probes of one run. Call `rehearse`, `begin`, `end` and `close`, in this order."""

    def __init__(
        self, servers: Sequence[Server], remote: Remote, rate_per_s: float, timeout_s: float
    ) -> None:
        self._rate_per_s = rate_per_s
        self._answer = remote.answer
        self._reader = remote.reader if isinstance(remote, HasReader) else None
        self._request = Request("/")
        connections = min(MOST_CONNECTIONS, ceil(rate_per_s * BUSY_S) + 1)
        self._flights = transport(
            servers,
            connections,
            lambda _: self._request,
            timeout_s,
            reader=stream_reader(remote),
        )
        self._servers = len(servers)
        self._alone_ns: list[int] = []
        self._due_ns: list[int] = []
        self._rows: list[tuple[int, int, int, int, int]] = []
        self._why = ""
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def rehearse(self, remote: Remote, dataset: Dataset, sample: int) -> None:
        """Makes the probe's request, and times the request without load. Raises ConfigError if the server does not
        reply to the request.

        sample: dataset index of a loaded sample, which is sent if the plug-in has no smaller request.
        """
        smallest = remote.probe() if isinstance(remote, HasProbe) else None
        request = smallest or remote.request(dataset.batch([sample]))
        self._request = request._replace(body=(b"".join(map(bytes, request.body)),))
        self._flights.prepare([0])
        end_s = monotonic() + ALONE_S
        for _ in range(ALONE + self._servers):
            flight = Flight([0], [0], 0)
            self._flights.submit(flight)
            while not (done := self._flights.turn(_TURN_S)):
                pass
            if not self._is_right(done[0]):
                raise ConfigError(f"--probe-rate: the server did not answer a probe: {self._why}")
            self._alone_ns.append(flight.read_ns - flight.taken_ns)
            if monotonic() > end_s:
                break
        # The first probe of each server is dropped, because this probe may warm the server up.
        self._alone_ns = self._alone_ns[self._servers :] or self._alone_ns

    def begin(self, journal: Journal, seed: int) -> None:
        """Starts the probes. The first probe is due soon after the load's first query."""
        self._flights.forget()
        self._thread = threading.Thread(
            target=self._run, args=(journal, seed), name="probes", daemon=True
        )
        self._thread.start()

    def _run(self, journal: Journal, seed: int) -> None:
        while not journal.issued:
            if self._stopped.wait(_LOOK_S):
                return
        # Probes with Poisson arrivals see the same average wait as other clients, even if the load is periodic.
        random = np.random.RandomState([seed & 0xFFFFFFFF, 0x70726F62])
        due_ns = wall_ns()
        pending = 0
        last_s: float | None = None
        while True:
            if self._stopped.is_set():
                last_s = last_s or monotonic() + LAST_S
                if not pending or monotonic() > last_s:
                    return
            now_ns = wall_ns()
            if last_s is None and now_ns >= due_ns:
                self._due_ns.append(due_ns)
                self._flights.submit(Flight([0], [0], len(self._due_ns) - 1))
                pending += 1
                due_ns += ceil(random.exponential(NS_PER_S / self._rate_per_s))
            wait_s = max(0.0, (due_ns - wall_ns()) / NS_PER_S) if last_s is None else _TURN_S
            for flight in self._flights.turn(min(_TURN_S, wait_s)):
                pending -= 1
                self._note(flight)

    def _note(self, flight: Flight) -> None:
        right = self._is_right(flight)
        first_ns = flight.chunks[0][0] if flight.chunks else flight.arrived_ns or flight.read_ns
        due_ns = self._due_ns[flight.first]
        sent_ns = flight.sent_ns or flight.read_ns
        self._rows.append((due_ns, sent_ns, first_ns, flight.read_ns, int(not right)))

    def _is_right(self, flight: Flight) -> bool:
        """Returns whether the probe was answered correctly. Otherwise, stores the reason in `_why`."""
        if flight.reply is None:
            self._why = one_line(flight.error or "no reply")
            return False
        try:
            if self._reader is not None:
                (flight.reader or self._reader()).answer(flight.reply)
            else:
                self._answer(flight.reply, 1)
        except Exception as e:  # noqa: BLE001 - an error of the plug-in or the server is counted
            self._why = one_line(e)
            return False
        return True

    def end(self, outdir: Path) -> None:
        """Ends the probes after the load, and writes the probes' rows to `outdir`."""
        self._stopped.set()
        if self._thread is None:
            return
        self._thread.join(LAST_S + _TURN_S * 4)
        names = ("due_ns", "sent_ns", "first_ns", "completed_ns", "failed")
        rows = np.array(self._rows, np.int64).reshape(-1, len(names))
        columns: dict[str, Any] = dict(zip(names, rows.T, strict=True))
        np.savez(
            outdir / PROBE_ROWS,
            sent=np.int64(len(self._due_ns)),
            alone_ns=np.array(self._alone_ns, np.int64),
            **columns,
        )

    def close(self) -> None:
        self._stopped.set()
        with suppress(RuntimeError):
            if self._thread is not None:
                self._thread.join(LAST_S)
        self._flights.close()
