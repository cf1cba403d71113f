"""Shows the progress of one LoadGen run, from loading the model to the last query."""

from collections.abc import Iterable, Iterator
from math import ceil

from harness.core.clock import monotonic_ns
from harness.core.config.parse import STEADY, Slo
from harness.core.config.run_config import RunConfig
from harness.core.units import NS_PER_S, counted, show_ns, show_rate, show_wait
from harness.loadgen.plan import Calibration, InstanceGroup, LoadPlan
from harness.loadgen.scenario import scenario_named
from harness.run.progress import Progress
from harness.run.supervisor.watchdog import Now

NOTED = 1.1
"""The announcement states the reason if the number of queries exceeds NOTED times the number that --duration implies.
"""

LEAST_S = 1.0
"""The remaining time is estimated only after a run has lasted this long."""


def show_loading(progress: Progress, name: str, done: int, total: int) -> None:
    """Shows how many samples a dataset has loaded. name: the step for which the samples are loaded."""
    share = done / total if total else None
    progress.show(name, share=share, details=[f"loading {done:,} of {counted(total, 'sample')}"])


class RunProgress:
    """Displays the progress of one LoadGen run. role: the role in the run's LoadPlan."""

    def __init__(self, progress: Progress, role: str) -> None:
        self._progress = progress
        self._role = role
        self._step = "loading the model"
        self._step_since_ns = monotonic_ns()
        self._plan: LoadPlan | None = None
        self._begun_ns = 0
        self._before = (0, 0)

    def begin_step(self, step: str) -> None:
        """Shows a new step before the run. step: current work of the measured process."""
        self._step, self._step_since_ns = step, monotonic_ns()
        self.show_step()

    def show_step(self) -> None:
        took_s = (monotonic_ns() - self._step_since_ns) / NS_PER_S
        self._progress.show(f"{self._role}: {self._step}", details=[f"{took_s:.0f} s"])

    def show_loading(self, done: int, total: int) -> None:
        show_loading(self._progress, self._role, done, total)

    def begin_run(self, plan: LoadPlan) -> None:
        self._plan = plan
        self._begun_ns = monotonic_ns()
        self._before = (self._begun_ns, 0)

    def show(self, now: Now) -> None:
        """Shows the state of the run. Before the first query and after the last query, shows that the model is timed
        without load.
        """
        at_ns = monotonic_ns()
        if not now.issued:
            self._begun_ns, self._before = at_ns, (at_ns, 0)
            self._show_loops()
        elif now.finished_ns:
            self._show_loops()
        elif self._progress.is_due:
            share, took_s = self._share(now, at_ns), (at_ns - self._begun_ns) / NS_PER_S
            known = share and took_s >= LEAST_S and not self._may_end_early
            left_s = took_s * (1 - share) / share if known else None
            self._progress.show(
                self._role, share=share, details=self._details(now, at_ns), left_s=left_s
            )

    @property
    def _may_end_early(self) -> bool:
        return self._plan is not None and self._plan.until is not None

    def _show_loops(self) -> None:
        self._progress.show(f"{self._role}: timing without load")

    def _share(self, now: Now, at_ns: int) -> float:
        """Returns the share of the planned samples that are answered.

        For an official run, returns at most the share of the minimum duration that has passed.
        """
        assert self._plan is not None
        share = min(1.0, now.completed / max(self._plan.planned_samples, 1))
        if self._plan.model_key is not None and self._plan.expected_s:
            share = min(share, (at_ns - self._begun_ns) / NS_PER_S / self._plan.expected_s)
        return share

    def _details(self, now: Now, at_ns: int) -> list[str]:
        """Returns the rate since the last display, the p99 so far, and the numbers of waiting and failed samples.

        Omits the p99 in Offline, because latencies in Offline only reflect the number of samples issued at once.
        """
        assert self._plan is not None
        then_ns, count = self._before
        self._before = (at_ns, now.completed)
        rate = (now.completed - count) * NS_PER_S / max(at_ns - then_ns, 1)
        parts = [f"{show_rate(rate)}/s"]
        if now.p99_ns is not None and not scenario_named(self._plan.scenario).all_at_once:
            parts.append(f"p99 {show_ns(now.p99_ns)}")
        parts.append(f"{now.waiting:,} waiting")
        if now.failed:
            parts.append(f"{now.failed:,} FAILED")
        return parts


def _more_than_asked(plan: LoadPlan, config: RunConfig) -> str:
    """Returns the reason why the run issues many more queries than --duration implies; '' for any other run."""
    if (
        plan.target_qps is None
        or config.queries is not None
        or config.mlperf
        or plan.schedule is not None
    ):
        return ""
    asked = ceil(config.duration_ns / NS_PER_S * plan.target_qps)
    if plan.query_count <= NOTED * asked:
        return ""
    percents = [slo.percentile for slo in config.slo] or [plan.percentile or 0.0]
    return (
        f" (the minimum that can judge a p{100 * max(percents):.10g}; --duration alone would issue {asked:,}. For "
        "fewer, lower the percentile in --slo or set --queries)"
    )


def _own_schedule(plan: LoadPlan) -> Iterator[str]:
    """Yields phrases about how the harness's scheduler issues the queries; none for LoadGen's scheduler."""
    if plan.schedule is not None:
        yield "replayed from a file, not MLPerf"
    if plan.ramp is not None:
        yield f"at a rate that grows from {show_rate(plan.ramp['start'])}/s until an SLO is missed, not MLPerf"
    if plan.sessions and plan.concurrency is None:
        yield "in sessions, not MLPerf"
    if plan.load_hosts:
        yield f"from {counted(plan.load_hosts, 'load host')}, not MLPerf"
    if plan.streams is not None and plan.frame_period_ns is not None:
        yield (
            f"the frames of {counted(plan.streams, 'stream')}, one every {show_ns(plan.frame_period_ns)}, not MLPerf"
        )
    if plan.concurrency is not None:
        unit = "sessions" if plan.sessions else "in flight"
        yield f"{plan.concurrency:,} {unit}, not MLPerf"


def _open_end(plan: LoadPlan, count: str) -> str:
    """Returns the beginning of the announcement of a run with --until."""
    decided = (
        "the run is steady or not" if plan.until == STEADY else f"the interval is ±{plan.until}"
    )
    return f"{plan.scenario}: until {decided}, at most {count}"


def _bounds(plan: LoadPlan, config: RunConfig) -> Iterable[Slo]:
    """Returns the SLO that LoadGen judges, and then the other SLOs of a performance run.

    The official rules may set the first SLO.
    """
    bounds = [] if plan.accuracy else [*config.slo]
    if plan.percentile is not None and plan.latency_bound_ns is not None:
        bounds.insert(0, Slo(plan.percentile, plan.latency_bound_ns))
    return dict.fromkeys(bounds)


def announcement(
    plan: LoadPlan, calibration: Calibration, group: InstanceGroup, config: RunConfig
) -> str:
    """Returns one line about the next run and its duration. The line gives the reason if the run exceeds --duration."""
    scenario = scenario_named(plan.scenario)
    all_at_once, calibrated = scenario.all_at_once, calibration.rate_per_s is not None
    unit = "samples" if all_at_once or plan.accuracy else "queries"
    most = "at most " if plan.ramp is not None else ""
    count = f"{most}{plan.query_count:,} {unit}{_more_than_asked(plan, config)}"
    parts = [f"{plan.scenario}: {count}" if plan.until is None else _open_end(plan, count)]
    if plan.target_qps is not None:
        chosen = ", a demonstration rate" if scenario.scheduled and calibrated else ""
        parts.append(f"at {show_rate(plan.target_qps)}/s{chosen}")
    parts += _own_schedule(plan)
    if calibration.rate_per_s is not None:
        parts.append(f"capacity {show_rate(calibration.rate_per_s)}/s")
    if calibration.latency_ns is not None:
        parts.append(f"calibrated latency {show_ns(calibration.latency_ns)}")
    parts += [f"SLO {slo.name} ≤ {show_ns(slo.bound_ns)}" for slo in _bounds(plan, config)]
    parts.append(str(group))
    if plan.expected_s:
        parts.append(
            f"{'about' if plan.until is None else 'at least'} {show_wait(plan.expected_s)}"
        )
    return ", ".join(parts)
