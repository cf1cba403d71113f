"""Supervises several measured processes as a group. The group starts the schedules of all processes at the same time,
and ends the run if a process is lost.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.cluster.load_hosts import merged_messages
from harness.cluster.load_hosts.merged_journal import MergedJournal, Share, merged_completions
from harness.cluster.load_hosts.thinning import parts_of, plan_of, witness_plan
from harness.core.clock import ClockWatch, wall_ns
from harness.core.units import NS_PER_S
from harness.errors import HarnessError, LoadHostLost, RunDied
from harness.loadgen.logs import ANSWERS, digests
from harness.loadgen.plan import LoadPlan
from harness.results.evidence.stages import Completions
from harness.results.load_hosts.witness import seen
from harness.run import messages
from harness.run.journal import RowKind
from harness.run.supervisor.completions import NewRows
from harness.run.supervisor.measured_process import LOOK_EVERY_S, Supervised, raise_if_stuck
from harness.run.supervisor.watchdog import Now, Watchdog

START_NS = 2 * NS_PER_S
START_ROUND_TRIPS = 100
"""After all hosts are ready, the schedule starts with a delay of START_NS or START_ROUND_TRIPS times the slowest round
trip, whichever is longer. The delay ensures that every host receives the start time early enough.
"""

_CHECKS: Mapping[str, Callable[[Mapping[str, Any]], object]] = {
    "loaded": messages.loaded,
    "calibrated": messages.calibration,
}

_Show = Callable[[int, int], None]


@dataclass(slots=True)
class Host:
    """A host and its state."""

    name: str
    process: Supervised
    outdir: Path
    """Folder for the files from this host's part of the run. The group removes the folder after the run."""
    share: Share | None = None
    watchdog: Watchdog | None = None
    is_ready: bool = False
    ended: Mapping[str, Any] | None = None
    lost: str = ""
    """How the connection to this host was lost; "" if the connection was not lost."""

    @property
    def ahead_ns(self) -> int:
        """Lead of the host's clock over this machine's clock, measured by pings before the run."""
        return self.process.clocks[0].offset_ns if self.process.clocks else 0


class HostGroup:
    """All hosts that take part in a run, with the same interface as a single `Measured`."""

    def __init__(self, hosts: Sequence[Host], outdir: Path, witness: Host | None = None) -> None:
        """outdir: the run's folder, which receives the answers from the hosts.

        witness: a process on this machine whose queries do not count in the run's results.
        """
        self._hosts = hosts
        self._witness = witness
        self._all = [*hosts, *([witness] if witness is not None else [])]
        self._outdir = outdir
        self.clock = ClockWatch()

    @property
    def pids(self) -> Sequence[int]:
        return [pid for host in self._all for pid in host.process.pids]

    @property
    def was_killed(self) -> bool:
        return any(host.process.was_killed for host in self._all)

    @property
    def names(self) -> Sequence[str]:
        return [host.name for host in self._hosts]

    def kill(self) -> None:
        for host in self._all:
            host.process.kill()

    def expect(self, events: Sequence[str], limit_s: float, show_loading: _Show) -> dict[str, Any]:
        """Returns the hosts' next messages, merged into one. Raises a host's error, with the host's name added."""
        found = {}
        for host in self._all:
            try:
                message = host.process.expect(events, limit_s, show_loading)
                _CHECKS[message["event"]](message)
            except HarnessError as e:
                raise type(e)(f"load host {host.name}: {e}") from e.__cause__
            found[host.name] = message
        if "loaded" in events:
            return merged_messages.loaded(found)
        return merged_messages.calibrated([found[name] for name in self.names])

    def await_prepared(self, limit_s: float, show_loading: _Show) -> None:
        for host in self._all:
            try:
                host.process.await_prepared(limit_s, show_loading)
            except HarnessError as e:
                raise type(e)(f"load host {host.name}: {e}") from e.__cause__

    def go(self) -> None:
        for host in self._all:
            host.process.go()

    def start(
        self,
        plan: LoadPlan,
        workers: int,
        rows: RowKind,
    ) -> MergedJournal:
        shares = []
        for host, part in zip(self._hosts, parts_of(plan, self.names), strict=True):
            own = plan_of(plan, part, host.outdir)
            journal = host.process.start(own, workers, rows)
            host.share = Share(own, part, journal)
            host.watchdog = Watchdog(NewRows(journal, own))
            shares.append(host.share)
        if (witness := self._witness) is not None:
            own = witness_plan(plan, witness.outdir)
            witness.watchdog = Watchdog(NewRows(witness.process.start(own, workers, rows), own))
        self._shares = shares
        self._journal = MergedJournal(shares)
        return self._journal

    def watch(
        self,
        watchdog: Watchdog,
        hang_s: float,
        load_limit_s: float,
        show: Callable[[Now], None],
        show_loading: _Show,
    ) -> dict[str, Any]:
        """Watches the hosts in the same way as `MeasuredProcess.watch`. Raises LoadHostLost as soon as any host is
        lost.
        """
        while True:
            self.clock.sample()
            show(watchdog.look())
            running = [host for host in self._all if host.ended is None]
            if not running:
                return self._ended()
            for host in running:
                self._look_at(host, hang_s, load_limit_s, show_loading, LOOK_EVERY_S / len(running))
            if not self._journal.start_ns and all(host.is_ready for host in self._all):
                self._begin()

    def _look_at(
        self, host: Host, hang_s: float, load_limit_s: float, show_loading: _Show, wait_s: float
    ) -> None:
        assert host.watchdog is not None
        event = "ended" if host.is_ready else "ready"
        try:
            raise_if_stuck(host.watchdog.look(), hang_s, load_limit_s)
            message = host.process.listen(host.watchdog, show_loading, wait_s, event)
            if message is None:
                return
            if message["event"] == "ready":
                host.is_ready = True
            else:
                host.ended = host.process.ended(message)
        except HarnessError as e:
            if host is self._witness:
                self._drop(host, e)
                return
            if isinstance(e, RunDied):
                host.lost = str(e)
                raise LoadHostLost(
                    f"load host {host.name} is lost ({e}), so the run was ended; its measurements until then are kept"
                ) from None
            raise type(e)(f"load host {host.name}: {e}") from e.__cause__

    def _drop(self, witness: Host, error: HarnessError) -> None:
        """Continues without the witness, which is not part of the run. Keeps the measurements that the witness has
        made.
        """
        witness.lost = str(error)
        witness.process.kill()
        self._all.remove(witness)

    def _begin(self) -> None:
        slowest_ns = max(host.process.slowest_ping_ns for host in self._hosts)
        start_ns = wall_ns() + max(START_NS, START_ROUND_TRIPS * slowest_ns)
        self._journal.start_ns = start_ns
        for host in self._all:
            host.process.begin(start_ns + host.ahead_ns)

    def completions(self, _plan: LoadPlan, _shortest_ns: int | None = None) -> Completions:
        return merged_completions(self._shares)

    def _ended(self) -> dict[str, Any]:
        found = {host.name: host.ended for host in self._hosts if host.ended is not None}
        return merged_messages.ended(found, self._bring_answers_together())

    def _bring_answers_together(self) -> Mapping[str, str]:
        """Writes all hosts' answers into a single file, in the order of the run. Returns the file's digest as in the
        message `ended`.

        If a host's file changed after the host had written it, returns the host's digest instead; this digest does not
        match any file, so it reveals the change.
        """
        rows = []
        for host in self._hosts:
            assert host.share is not None
            assert host.ended is not None
            path = host.outdir / ANSWERS
            if digests(host.outdir) != host.ended["files"]:
                return host.ended["files"] or {ANSWERS: ""}
            if path.is_file():
                part = host.share.part
                logged = json.loads(path.read_text(encoding="utf-8"))
                rows += [{**row, "seq_id": int(part[row["seq_id"]])} for row in logged]
        if rows:
            rows.sort(key=lambda row: row["seq_id"])
            (self._outdir / ANSWERS).write_text(json.dumps(rows), encoding="utf-8")
        return digests(self._outdir)

    def summary(self) -> list[dict[str, Any]]:
        """Returns the facts about each host for the run's files, in the order of the column `host`."""
        return [_told(host) for host in self._hosts]

    def witnessed(self) -> dict[str, Any] | None:
        """Returns the section `witness` for the run's files. Returns None without a witness, or if the run did not
        end normally.
        """
        witness = self._witness
        if witness is None or witness.watchdog is None or not (witness.ended or witness.lost):
            return None
        found = seen(witness.process.completions(witness.watchdog.rows.plan))
        return {**found, "lost": witness.lost} if witness.lost else found


def _told(host: Host) -> dict[str, Any]:
    clocks, ended = host.process.clocks, host.ended
    return {
        "name": host.name,
        "queries": host.share.plan.query_count if host.share is not None else 0,
        "clock_offset_ns": host.ahead_ns,
        "clock_error_ns": clocks[0].error_ns if clocks else 0,
        "clock_drift_ns": clocks[-1].offset_ns - host.ahead_ns if len(clocks) > 1 else None,
        "lost": host.lost,
        "client": ended["client"] if ended is not None else None,
    }
