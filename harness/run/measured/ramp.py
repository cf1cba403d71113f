"""Raises the rate step by step until an SLO is missed, and then holds a lower rate, all in one run.

A step begins as soon as the previous step ends, even if answers of the previous step are still being judged. When a
step misses an SLO, no queries are sent until all answers have arrived. The run then holds the previous step's rate for
the full duration of a hold. If a hold misses an SLO, the hold ends, and the run holds a lower rate.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from harness.core.clock import wall_ns
from harness.core.config.parse import Slo, parse_slos
from harness.core.stats import share_interval
from harness.core.units import NS_PER_MS, NS_PER_S
from harness.loadgen import logs
from harness.loadgen.binding import Callbacks
from harness.loadgen.logs import RAMP_ROWS
from harness.loadgen.plan import LoadPlan
from harness.loadgen.schedule import drawn_samples
from harness.run.journal import Journal
from harness.run.measured.own_scheduler import Scheduler
from harness.types import Array

_LOOK_NS = 20 * NS_PER_MS
"""New answers are judged at this interval."""

_FEWEST = 8
"""A step is judged only after this many answers."""

MOST_HOLDS = 10
"""A run makes at most this many holds. The last hold is completed even if it misses an SLO."""

_Issue = Callable[[list[int], list[int]], None]


class _Step:
    """The queries that are due at one rate."""

    def __init__(
        self, rate_per_s: float, first: int, begin_ns: int, slos: int, *, holds: bool
    ) -> None:
        self.rate_per_s, self.first, self.begin_ns, self.holds = rate_per_s, first, begin_ns, holds
        self.end = first
        """Position in issue order of the first query after this step."""
        self.judged, self.late = [0] * slos, [0] * slos
        """Number of judged answers per SLO, and number of answers that missed the SLO."""


class RampAndHold(Scheduler):
    """Issues queries at random times (Poisson) at the rate of each step."""

    def __init__(self, plan: LoadPlan, journal: Journal, begin_hold: Callable[[], None]) -> None:
        """begin_hold: called before each hold, when no query is in flight."""
        assert plan.ramp is not None
        super().__init__(plan, journal, drawn_samples(plan))
        ramp = plan.ramp
        self._start_per_s, self._factor = float(ramp["start"]), float(ramp["factor"])
        self._step_ns, self._hold_ns = int(ramp["step_ns"]), int(ramp["hold_ns"])
        self._slos: Sequence[Slo] = parse_slos(ramp["slos"])
        self._begin_hold = begin_hold
        self._random = np.random.RandomState(plan.seeds.schedule & 0xFFFFFFFF)
        self._due_ns = np.zeros(len(self._samples), np.int64)  # one due time per query
        self._steps: list[_Step] = []
        self._end = 0  # number of queries issued so far
        self._rows = 0  # number of journal rows that were judged
        self._step_of = np.zeros(len(self._samples), np.int32)  # one step number per query

    def run(self, calls: Callbacks, outdir: Path) -> None:
        calls.load(self._held)
        self._journal.start_ns = self._start_ns()
        self._issue_all(calls.issue)
        calls.unload(self._held)
        if self._log is not None:
            self._log.write(outdir / logs.ANSWERS, self._samples)
        steps = self._steps
        np.savez(
            outdir / RAMP_ROWS,
            due_ns=self._due_ns[: self._end],
            first=np.array([step.first for step in steps], np.int64),
            rate=np.array([step.rate_per_s for step in steps]),
            holds=np.array([step.holds for step in steps], np.int8),
            broken=np.array([self._is_broken(step) for step in steps], np.int8),
        )

    def _issue_all(self, issue: _Issue) -> None:
        rate_per_s = self._ramped(issue)
        for hold in range(MOST_HOLDS):
            self._drain()
            self._begin_hold()
            step = self._send(issue, rate_per_s, self._hold_ns, holds=True)
            self._drain()
            if not self._is_broken(step) or hold == MOST_HOLDS - 1 or self._is_full():
                return
            rate_per_s /= self._factor

    def _ramped(self, issue: _Issue) -> float:
        """Raises the rate until a step misses an SLO. Returns the rate to hold."""
        rate_per_s = self._start_per_s
        while not self._is_full():
            step = self._send(issue, rate_per_s, self._step_ns, holds=False)
            broken = next((one for one in self._steps if self._is_broken(one)), None)
            if broken is not None:
                return broken.rate_per_s / self._factor
            rate_per_s = step.rate_per_s * self._factor
        return rate_per_s / self._factor

    def _is_full(self) -> bool:
        """Returns whether the journal has no room for another query."""
        return self._end == len(self._samples)

    def _send(self, issue: _Issue, rate_per_s: float, length_ns: int, *, holds: bool) -> _Step:
        """Issues the queries of a step. Ends early if this step or the previous step misses an SLO."""
        begin_ns = due_ns = wall_ns()
        step = _Step(rate_per_s, self._end, begin_ns, len(self._slos), holds=holds)
        self._steps.append(step)
        # The previous step is watched, too, because the last answers to its queries may still arrive. A hold begins
        # only when all answers have arrived.
        watched = [step] if holds else self._steps[-2:]
        look_ns = begin_ns + _LOOK_NS
        mean_ns = NS_PER_S / rate_per_s
        while not self._is_full():
            now_ns = wall_ns()
            if now_ns >= look_ns:
                self._judge()
                look_ns = now_ns + _LOOK_NS
                if any(self._is_broken(one, now_ns) for one in watched):
                    break
            first = self._end
            while due_ns <= now_ns and not self._is_full() and due_ns < begin_ns + length_ns:
                self._due_ns[self._end] = due_ns
                self._step_of[self._end] = len(self._steps) - 1
                self._end += 1
                due_ns += int(self._random.exponential(mean_ns)) + 1
            step.end = self._end
            if self._end > first:
                issue(*self._ids_and_indices(first, self._end))
            if due_ns >= begin_ns + length_ns and now_ns >= begin_ns + length_ns:
                break
            wake_ns = min(max(due_ns, now_ns), look_ns, begin_ns + length_ns)
            if wake_ns > now_ns:
                time.sleep((wake_ns - now_ns) / NS_PER_S)
        return step

    def _drain(self) -> None:
        """Waits until every issued query is answered, and judges all answers."""
        while self._journal.completed < self._end:
            time.sleep(_LOOK_NS / NS_PER_S / 10)
        self._judge()

    def _judge(self) -> None:
        """Judges the answers that arrived since the last call. This process writes the rows, so the rows that it reads
        are complete.
        """
        for worker, count in enumerate(self._journal.row_counts()):
            # A ramp has only one writer, because a ramp runs with servers or a single instance.
            if worker:
                break
            rows = self._journal.rows(worker, self._rows, count)
            self._rows = count
            if len(rows):
                self._count(rows)

    def _count(self, rows: Array) -> None:
        order = rows["first"].astype(np.int64)
        step_of, due_ns = self._step_of[order], self._due_ns[order]
        for number, slo in enumerate(self._slos):
            judged, late = _late(rows, due_ns, slo)
            for place in np.unique(step_of).tolist():
                mine = judged & (step_of == place)
                self._steps[place].judged[number] += int(mine.sum())
                self._steps[place].late[number] += int((late & mine).sum())

    def _is_broken(self, step: _Step, now_ns: int = 0) -> bool:
        """Returns whether the share of timely answers is below an SLO's percentile, with 95 % confidence.

        now_ns: if set, queries that have waited longer than the latency bound count as late.
        """
        for number, slo in enumerate(self._slos):
            judged, late = step.judged[number], step.late[number]
            if now_ns and not slo.of:
                due_ns = self._due_ns[step.first : step.end]
                overdue = int((due_ns < now_ns - slo.bound_ns).sum()) - judged
                judged, late = judged + max(0, overdue), late + max(0, overdue)
            if judged >= _FEWEST and share_interval(judged - late, judged)[1] < slo.percentile:
                return True
        return False


def _late(rows: Array, due_ns: Array, slo: Slo) -> tuple[Array, Array]:
    """Returns two (rows,) masks: the rows to which the SLO applies, and the rows that missed the SLO."""
    failed = rows["failed"] > 0
    everyone = np.ones(len(rows), bool)
    if not slo.of:
        return everyone, failed | (rows["completed_ns"] - due_ns > slo.bound_ns)
    names = rows.dtype.names or ()
    if "first_token_ns" not in names:
        return np.zeros(len(rows), bool), failed
    first_ns, tokens = rows["first_token_ns"], rows["tokens"].astype(np.int64)
    failed = failed | (first_ns == 0)
    if slo.of == "ttft":
        return everyone, failed | (first_ns - due_ns > slo.bound_ns)
    gaps = np.maximum(tokens - 1, 1)
    if slo.of == "tpot":
        return failed | (tokens > 1), failed | (
            rows["completed_ns"] - first_ns > slo.bound_ns * gaps
        )
    most_late = np.floor(np.maximum(tokens - 1, 0) * (1 - slo.percentile) + 1e-9)
    return everyone, failed | (rows["late_tokens"] > most_late)
