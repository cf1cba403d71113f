"""Keeps the course of a run for `browse`: one small snapshot of the run's counts per second, from the first query on.

A live page thus shows the whole run, whenever it is opened. A snapshot costs about a hundredth of a page for
Prometheus.
"""

import threading
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from time import monotonic
from typing import Annotated, Any, NamedTuple

import psutil
from prometheus_client.core import Metric
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter

from harness.core.config.parse import Slo
from harness.core.registry import SCENARIOS
from harness.core.units import NS_PER_S
from harness.loadgen.scenario import scenario_named
from harness.run.supervisor.metrics.live_counts import EDGES_NS, LiveCounts

SNAPSHOTS_PATH = "/snapshots"
PERIOD_S = 1.0
LEAST_S = 0.5
"""A request gets a new snapshot if the newest snapshot is older than this."""

MOST = 3600
"""A longer course keeps every second snapshot, and so on, so that it stays whole. Must be even, which keeps the newest."""

LEAST_LEFT_S = 1.0
"""The remaining time is estimated only once a phase has lasted at least this long."""

_CPU = "harness_host_cpu_seconds_total"
_MEASURED_CPU = "harness_measured_cpu_seconds_total"
_WATTS = "harness_power_watts"
_UNUSED = ("idle", "iowait", "steal")
"""CPU modes in which no program on this machine uses the core."""


def _is_whole(counts: Sequence[int]) -> Sequence[int]:
    if len(counts) not in (0, len(EDGES_NS) + 1):
        raise ValueError("a histogram has a different number of buckets")
    return counts


Count = Annotated[int, Field(ge=0, lt=2**53)]
Buckets = Annotated[Sequence[Count], AfterValidator(_is_whole)]
"""Number of values so far in each bucket of EDGES_NS, and above the last edge; empty without values."""
Bounds = Sequence[tuple[str, float]]
"""Names of percentiles that SLOs limit, and their bounds in s."""


class Stage(NamedTuple):
    name: str
    mean_s: float
    share: float
    """Share of the total time of all stages, in [0, 1]."""


class Totals(NamedTuple):
    """Counts since the start of a run's phase, and current readings. Times are in seconds."""

    latency: Buckets
    token_times: Mapping[str, Buckets]
    """Buckets for `ttft` and `tpot`."""
    tokens: float
    stages: Mapping[str, tuple[float, float]]
    """Maps a stage to the sum and the count of its times."""
    nodes: Mapping[str, float]
    """Maps a node to the number of samples that it answered."""
    run_cpu_s: float | None
    busy_s: float | None
    """CPU time that all programs used, summed over the cores."""
    stolen_s: float | None
    waiting: float | None
    """Number of waiting samples."""
    watts: Mapping[str, float]
    bounds_s: Bounds
    token_bounds_s: Bounds
    cores: int | None = None
    """Number of cores on this machine."""


class Snapshot(NamedTuple):
    """A run's state at one moment. Rates are per second. Latencies are in seconds, and cover the time since the start
    of the phase.
    """

    at_s: float
    """Time of the snapshot, on the machine's monotonic clock."""
    elapsed_s: float | None
    """Time from the phase's first query to the latest answer; None before the first answer."""
    scenario: str
    phase: str
    """performance, accuracy or answers; empty before the first query."""
    progress: float
    """Share of the planned samples that have been answered."""
    completed: float
    """Number of completed queries; in Offline, of samples."""
    failed: float
    """Number of failed queries; in Offline, of samples."""
    in_flight: float
    """Number of samples in flight."""
    offered: float | None
    is_valid: bool | None
    """Whether the run is VALID; None before the verdict."""
    totals: Totals
    planned: float | None = None
    """Number of samples planned for the phase."""

    @property
    def has_begun(self) -> bool:
        """Whether the phase has issued a query."""
        return bool(self.phase and (self.completed or self.in_flight))

    @property
    def is_answered(self) -> bool:
        """Whether all samples planned for the phase are answered."""
        return self.progress >= 1 and not self.in_flight

    @property
    def rate(self) -> float | None:
        """Queries per second since the start of the phase; in Offline, samples per second."""
        return self.completed / self.elapsed_s if self.elapsed_s else None

    @property
    def left_s(self) -> float | None:
        """Estimated time until all planned samples are answered; None while unknown."""
        if self.elapsed_s is None or self.elapsed_s < LEAST_LEFT_S or not 0 < self.progress < 1:
            return None
        return self.elapsed_s * (1 - self.progress) / self.progress

    @property
    def counts_samples(self) -> bool:
        """Whether the scenario issues all samples in one query. Such a run counts samples instead of queries, and has
        no latency.
        """
        return self.scenario in SCENARIOS and scenario_named(self.scenario).all_at_once

    @property
    def stages(self) -> Sequence[Stage]:
        """A sample's mean time in each stage."""
        means = {
            name: total / count for name, (total, count) in self.totals.stages.items() if count
        }
        whole = sum(means.values())
        return [Stage(name, mean, mean / whole if whole else 0.0) for name, mean in means.items()]


class CourseReply(NamedTuple):
    """Reply of the endpoint to `browse`."""

    run: str
    """Name of the run's folder."""
    snapshots: Sequence[Snapshot]


REPLY: TypeAdapter[CourseReply] = TypeAdapter(CourseReply, config=ConfigDict(allow_inf_nan=False))
_SNAPSHOT: TypeAdapter[Snapshot] = TypeAdapter(Snapshot)
_NAME: TypeAdapter[str] = TypeAdapter(str)


def snapshot(
    scenario: str,
    counts: LiveCounts | None,
    slos: Sequence[Slo],
    machine: Sequence[Metric],
    result: Mapping[str, Any] | None,
) -> Snapshot:
    """Returns the current state.

    counts: of the latest phase, with the new rows of the journal; None before the first phase. machine: series of the
    machine and of its meters. result: the content of result.json; None before the verdict.
    """
    now = Snapshot(
        at_s=monotonic(),
        elapsed_s=None,
        scenario=scenario,
        phase="",
        progress=0.0,
        completed=0.0,
        failed=0.0,
        in_flight=0.0,
        offered=None,
        is_valid=None if result is None else result["verdict"] == "VALID",
        totals=_totals(counts, slos, machine),
    )
    if counts is None:
        return now
    plan = counts.plan
    per_s, all_at_once = counts.per_second, now.counts_samples
    return now._replace(
        elapsed_s=counts.queries(counts.completed) / per_s if per_s else None,
        phase=plan.role,
        progress=counts.progress,
        completed=counts.completed if all_at_once else counts.queries(counts.completed),
        failed=counts.failed if all_at_once else counts.failed_queries,
        in_flight=counts.in_flight,
        offered=None if plan.accuracy else plan.target_qps,
        planned=plan.planned_samples,
    )


def _totals(counts: LiveCounts | None, slos: Sequence[Slo], machine: Sequence[Metric]) -> Totals:
    samples = [one for family in machine for one in family.samples]
    cpu_s = {one.labels["mode"]: one.value for one in samples if one.name == _CPU}
    own_s = [one.value for one in samples if one.name == _MEASURED_CPU]
    bounds_s, token_bounds_s = bounds_of(slos)
    readings = Totals(
        latency=(),
        token_times={},
        tokens=0,
        stages={},
        nodes={},
        run_cpu_s=own_s[0] if own_s else None,
        busy_s=sum(v for mode, v in cpu_s.items() if mode not in _UNUSED) if cpu_s else None,
        stolen_s=cpu_s.get("steal"),
        waiting=None,
        watts={one.labels["source"]: one.value for one in samples if one.name == _WATTS},
        bounds_s=bounds_s,
        token_bounds_s=token_bounds_s,
        cores=psutil.cpu_count(),
    )
    if counts is None:
        return readings
    return readings._replace(
        latency=counts.latency.counts.tolist(),
        token_times={
            time: found.counts.tolist()
            for time, found in counts.token_times.items()
            if counts.tokens
        },
        tokens=counts.tokens,
        stages={name: (found.sum / NS_PER_S, found.total) for name, found in counts.stages.items()},
        nodes={node: found.completed for node, found in counts.nodes.items()},
        waiting=counts.queued,
    )


def bounds_of(slos: Sequence[Slo]) -> tuple[Bounds, Bounds]:
    """Returns the bounds on the query latency, such as ('p99', 0.05), and on token times, such as ('TTFT p99', 0.2)."""
    bounds_s: dict[bool, list[tuple[str, float]]] = {False: [], True: []}
    for slo in slos:
        name = slo.name.partition(":")[2] if slo.of else slo.name
        bounds_s[bool(slo.of)].append(
            (f"{slo.of.upper()} {name}".lstrip(), slo.bound_ns / NS_PER_S)
        )
    return bounds_s[False], bounds_s[True]


class Course:
    """A run's snapshots so far. This class is thread-safe."""

    def __init__(self, take: Callable[[], tuple[str, Snapshot | None]]) -> None:
        """take: returns the name of the run's folder and the current state; None before the name is known."""
        self._take = take
        self._lock = threading.Lock()
        self._run = ""
        self._newest: Snapshot | None = None
        self._kept: list[tuple[float, bytes]] = []
        """Times of the snapshots, and the snapshots as JSON, oldest first."""
        self._step_s = 0.0
        """Least time between two snapshots before the newest."""

    def update(self, least_s: float) -> None:
        """Adds a snapshot if the newest snapshot is older than `least_s`."""
        with self._lock:
            before = self._newest
            if before is not None and monotonic() - before.at_s < least_s:
                return
            self._run, now = self._take()
            if now is None:
                return
            if before is not None and (_is_still(before, now) or self._is_near()):
                self._kept.pop()
            self._newest = now
            self._kept.append((now.at_s, _SNAPSHOT.dump_json(now)))
            if len(self._kept) > MOST:
                del self._kept[1::2]
                self._step_s = 2 * (self._step_s or PERIOD_S)

    def _is_near(self) -> bool:
        """Returns whether the newest snapshot follows the one before it in less than the step."""
        return len(self._kept) > 1 and self._kept[-1][0] - self._kept[-2][0] < self._step_s

    def answer(self, after_s: float) -> bytes:
        """Returns the snapshots later than `after_s`, at least the newest, as JSON of `CourseReply`."""
        self.update(LEAST_S)
        with self._lock:
            begin = bisect_right(self._kept, after_s, key=itemgetter(0))
            kept = self._kept[begin:] or self._kept[-1:]
            return b"[%b,[%b]]" % (_NAME.dump_json(self._run), b",".join(one for _, one in kept))


def _is_still(before: Snapshot, now: Snapshot) -> bool:
    """Returns whether the counts do not change: before the first query, and after the last answer."""
    return before.phase == now.phase and all(
        one.is_answered or not one.has_begun for one in (before, now)
    )
