"""Computes sections of result.json from a performance run's rows and log. Has no side effects.

A result is saved several times during a run, so numbers that require sorting or simulating a million rows are computed
only once.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, cast

from harness.core.units import NS_PER_S
from harness.loadgen.plan import InstanceGroup
from harness.loadgen.scenario import latency_key, percentile_key, scenario_named
from harness.machine.host_log import HostLog
from harness.results.evidence import reference, stages
from harness.results.evidence.evidence import Evidence
from harness.results.evidence.input_probe import section
from harness.results.evidence.intervals import latency_intervals
from harness.results.evidence.own_log import HARNESS
from harness.results.evidence.stages import Completions
from harness.results.evidence.steady_state import SteadyState, steady_state
from harness.results.schema import performance as schema
from harness.results.schema.machine import MeasuredProcess
from harness.results.steady import section as steady

_KEPT_UP = 0.9
"""The system did not keep up if it completed less than this share of the scheduled rate."""

_INTERRUPTED = "interrupted, from the journal"
_LOG_UNUSABLE = "log unusable, from the journal"
"""Value of `source` for numbers that come from the journal because LoadGen's log is unusable."""


def completes(rates: Mapping[str, Any] | None, *, in_sessions: bool) -> bool:
    """Returns whether the system completed the offered rate. A run without a schedule always does, because its answers
    set the rate.

    rates: `throughput_per_s` of result.json. in_sessions: whether the rate counts the starts of sessions, not of
    queries.
    """
    known = rates or {}
    offered, completed = known.get("scheduled") or known.get("asked"), known.get("completed")
    if offered is None or completed is None or in_sessions:
        return True
    return bool(completed >= _KEPT_UP * offered)


class Performance:
    """The numbers of one performance run. A number is None if the run ended too early to produce it.

    done: rows of the journal; None without rows. wait_ns: longest time that a sample may wait for other samples in
    Server.
    """

    def __init__(self, run: Evidence, spec: InstanceGroup | None, wait_ns: int = 0) -> None:
        self.run = run
        self._scenario = scenario_named(run.plan.scenario)
        self._spec = spec
        self._wait_ns = wait_ns
        self.done: Completions | None = run.done or None

    @cached_property
    def journal_latency_ns(self) -> Mapping[str, int] | None:
        if self.done is None:
            return None
        latency = stages.query_latency_ns(self.done, self.run.plan.samples_per_query)
        return stages.percentiles(latency) if len(latency) else None

    @cached_property
    def _steady_state(self) -> SteadyState | None:
        return steady_state(self.done, self.run.plan) if self.done is not None else None

    def steady(self, host: HostLog | None) -> schema.Steady | None:
        """Returns the referee's verdict. host: the machine's log, from which the lines around a change are taken."""
        state = self._steady_state
        if state is None or self.done is None:
            return None
        begin_ns = int(self.done.columns["scheduled_ns"].min())
        return steady.section(state.run, state.official, begin_ns, host)

    @cached_property
    def mean_batch(self) -> float | None:
        done = self.done
        return len(done) / float((1.0 / done.batch_size).sum()) if done else None

    @cached_property
    def intervals_ns(self) -> schema.Intervals | None:
        """Intervals; None in Offline, because Offline's latencies only reflect how many samples were issued at once."""
        if self.done is None or self._scenario.all_at_once:
            return None
        logged = self.latency_ns() if self.run.logged else None
        return latency_intervals(self.done, self.run.plan.samples_per_query, logged)

    @cached_property
    def stages_ns(self) -> Mapping[str, schema.Stage] | None:
        return stages.summarise(self.done) if self.done is not None else None

    def reference(
        self, ceiling_per_s: float | None
    ) -> schema.Reference | schema.NoReference | None:
        compared = self._reference
        if compared is None or "reason" in compared:
            return compared
        return {**compared, "null_backend_per_s": ceiling_per_s}

    @cached_property
    def _reference(self) -> schema.Reference | schema.NoReference | None:
        """Comparison with the reference; None if the run lost samples or did not end by itself."""
        run, done, spec = self.run, self.done, self._spec
        bare = run.ended.get("bare") if run.ended is not None else None
        if bare is None or spec is None or done is None or not done.answered_once:
            return None
        return reference.report(run.plan, done, bare, spec, wait_ns=self._wait_ns)

    @cached_property
    def input_probe(self) -> schema.InputProbe | schema.NotProbed | None:
        """Result of the input probe; None if the run did not end by itself."""
        ended = self.run.ended
        return section(ended.get("probed")) if ended is not None else None

    def latency_ns(self) -> schema.Latency | None:
        """Returns LoadGen's latencies, or the journal's latencies if LoadGen did not end. `source` names the origin of
        the latencies.
        """
        run, log = self.run, self.run.log
        if run.logged:
            scenario = self._scenario
            percentile = {
                name: log.get(percentile_key(scenario, fraction))
                for name, fraction in stages.PERCENTILES.items()
            }
            ends = {name: log.get(latency_key(scenario, name)) for name in ("mean", "min", "max")}
            source = log.source if run.plan.harness_scheduled else "LoadGen mlperf_log_detail.txt"
            return cast("schema.Latency", {**ends, **percentile, "source": source})
        if self.journal_latency_ns is None:
            return None
        return cast("schema.Latency", {**self.journal_latency_ns, "source": self._journal_source})

    def throughput_per_s(self) -> schema.Throughput:
        """Returns the rates of the run. `scheduled` is the rate of the schedule that was drawn from the seed; `asked`
        is the value of --target-qps. Only Server runs have `scheduled` and `asked`.
        """
        log, plan = self.run.log, self.run.plan
        if not self.run.logged:
            return {
                "asked": plan.target_qps,
                "scheduled": None,
                "completed": self._journal_rate,
                "source": self._journal_source,
            }
        key = self._scenario.rate_key
        return {
            "asked": plan.target_qps,
            "scheduled": log.get("result_scheduled_samples_per_sec"),
            "completed": self._journal_rate if key is None else log.get(key),
            "source": "journal" if key is None else log.source,
        }

    @property
    def kept_up(self) -> bool:
        """Whether the system completed the offered rate."""
        return completes(self.throughput_per_s(), in_sessions=self.run.plan.sessions)

    @cached_property
    def _took_ns(self) -> int:
        """Time from the first sample's scheduled time to the last completion; 0 if no sample was completed."""
        if self.done is None:
            return 0
        columns = self.done.columns
        return int(columns["completed_ns"].max()) - int(columns["scheduled_ns"].min())

    @cached_property
    def infer_s(self) -> float:
        """Total time that batches spent in the backend, over all instances. If a server answers, this time includes the
        network.
        """
        if self.done is None:
            return 0.0
        columns = self.done.columns
        begin, end = self.done.answer_edge
        if self.done.generates:
            return stages.covered_ns(columns[begin], columns[end], columns["worker"]) / NS_PER_S
        spent_ns = columns[end] - columns[begin]
        return float((spent_ns / self.done.batch_size).sum()) / NS_PER_S

    @property
    def _journal_source(self) -> str:
        run = self.run
        return _INTERRUPTED if run.failure is not None or run.ended is None else _LOG_UNUSABLE

    @property
    def _journal_rate(self) -> float | None:
        return len(self.done) * 1e9 / self._took_ns if self.done and self._took_ns > 0 else None

    def queries(self) -> schema.Queries:
        plan, log, done = self.run.plan, self.run.log, self.done
        return {
            "planned": plan.query_count if plan.ramp is None or not done else done.issued,
            "samples_per_query": plan.samples_per_query,
            "counted_by_loadgen": (
                None if plan.harness_scheduled else log.get("result_query_count")
            ),
            # If the harness sets no latency bound, LoadGen counts late queries against its default bound.
            "late": log.get("result_overlatency_query_count") if plan.latency_bound_ns else None,
            "samples_issued": done.issued if done else 0,
            "samples_answered": len(done) if done else 0,
            "samples_failed": done.failed if done else 0,
            "expected_s": plan.expected_s,
            "took_s": self._took_ns / 1e9 if done else None,
            "mean_batch": self.mean_batch,
        }

    def arrivals(self) -> schema.Arrivals:
        plan = self.run.plan
        arrivals: schema.Arrivals = {
            "source": HARNESS if plan.harness_scheduled else "LoadGen",
            "schedule_sha256": plan.arrivals_sha256,
            "concurrency": plan.concurrency,
        }
        if plan.streams is not None:
            arrivals["streams"] = plan.streams
        if plan.until is not None:
            arrivals["until"] = plan.until
        return arrivals

    def process(self) -> MeasuredProcess | None:
        """Returns CPU time and context switches from the first loading of samples until LoadGen unloads them, and the
        largest growth in memory since LoadGen's start.
        """
        if self.run.ended is None or self.done is None:
            return None
        used = self.run.ended["used"]
        queries = max(1, self.done.issued // self.run.plan.samples_per_query)
        peak_bytes = used["rss_run_peak_bytes"]
        run_queue_s, infer_s = used.get("run_queue_s"), self.infer_s
        known = run_queue_s is not None and infer_s > 0 and not self.done.is_remote
        # `busy_over_infer` means nothing for a generating backend, because many samples share one inference time.
        known &= not self.done.generates
        return {
            "cpu_s_per_query": used["cpu_s"] / queries,
            "cpu_over_wall": used["cpu_s"] / used["wall_s"] if used["wall_s"] else None,
            "run_queue_s_per_query": None if run_queue_s is None else run_queue_s / queries,
            "busy_over_infer": (used["cpu_s"] + run_queue_s) / infer_s if known else None,
            "voluntary_switches_per_query": used["voluntary_switches"] / queries,
            "involuntary_switches_per_query": used["involuntary_switches"] / queries,
            "cyclic_garbage_objects": used["cyclic_garbage_objects"],
            "rss_growth_bytes": (
                None if peak_bytes is None else peak_bytes - used["rss_before_bytes"]
            ),
            "rss_growth_reason": used["rss_run_peak_reason"],
        }
