"""Determines how many queries a run in a search needs, how many may be late, and whether the run passed."""

from collections.abc import Mapping
from math import ceil
from typing import Any

from harness.core.codes import HOPELESS
from harness.core.config.parse import Slo
from harness.core.config.run_config import RunConfig
from harness.core.config.schema import MAX_CONCURRENCY, MAX_STREAMS
from harness.core.stats import late_allowed, queries_needed
from harness.core.units import NS_PER_S
from harness.loadgen import real_time
from harness.loadgen.plan import Calibration
from harness.loadgen.scenario import Axis, Scenario, scenario_named
from harness.results import records
from harness.results.evidence.stages import query_latency_ns
from harness.results.outcome import Finished
from harness.results.run_folder import PERFORMANCE
from harness.types import Array

PROBE_LATE = 2
"""A probe is made long enough to pass with this many late queries, because a shorter probe at a low rate might not
include a burst.
"""

_OF_AN_INSTANCE = ("gather", "infer", "postprocess", "complete")
"""Stages in which a batch occupies its instance."""

IN_FLIGHT = Axis("concurrency", "in flight", 1, MAX_CONCURRENCY, whole=True)
IN_REAL_TIME = Axis("streams", "streams", 1, MAX_STREAMS, whole=True)


def axis_of(config: RunConfig) -> Axis | None:
    """Returns the kind of load to search for; None if the scenario has no such load."""
    if config.streams is not None:
        return IN_REAL_TIME
    return scenario_named(config.scenario).search_axis if config.concurrency is None else IN_FLIGHT


class Judge:
    """Computes how many queries a load needs, and judges whether a finished run passed."""

    def __init__(self, scenario: Scenario, slo: Slo, frame_period_ns: int | None = None) -> None:
        """Prepares the judge. frame_period_ns: time between frames in the streams of --streams."""
        self._scenario = scenario
        self._slo = slo
        self._period_ns = frame_period_ns

    def full_queries(self, config: RunConfig) -> int:
        """Returns the number of queries in a full run.

        For streams and a fixed concurrency, assumes that every query takes the whole bound. This assumption yields the
        lowest rate at which a run with N queries in flight passes (Little's law).
        """
        if config.streams is not None and self._period_ns is not None:
            shape = config.streams, self._period_ns
            return real_time.load(
                None, config.duration_ns, *shape, self._slo.percentile
            ).query_count
        slowest = Calibration(
            slowest_batch_ns=0, latency_ns=self._slo.bound_ns, rate_per_s=self._least_rate(config)
        )
        return self._scenario.load(config, self._slo, slowest).query_count

    def _least_rate(self, config: RunConfig) -> float:
        """Returns the rate in queries/s that results if every query in flight takes as long as the bound."""
        return (config.concurrency or 1) * NS_PER_S / self._slo.bound_ns

    def probe_queries(self, config: RunConfig, probe_ns: int) -> int:
        """Returns the number of queries in a probe, which suffices to pass early stopping with PROBE_LATE late queries."""
        per_s = config.target_qps or self._least_rate(config)
        if config.streams is not None and self._period_ns is not None:
            per_s = config.streams * NS_PER_S / self._period_ns
        least = queries_needed(PROBE_LATE, self._slo.percentile)
        return min(max(ceil(probe_ns / NS_PER_S * per_s), least), self.full_queries(config))

    def allowed(self, config: RunConfig, queries: int) -> int:
        """Returns how many of `queries` may be late in a run that passes, in proportion to the late queries of a full
        run.

        For streams, LoadGen's estimate discards one query fewer than LoadGen's early stopping does for Server.
        """
        full = self.full_queries(config)
        late = max(0, late_allowed(full, self._slo.percentile) - self._scenario.streams)
        return late * queries // full

    def passed(self, finished: Finished, kind: str, late: int | None, allowed: int) -> bool:
        """Returns whether the run passed.

        A full run passes if it is VALID. A shorter probe passes if at most `allowed` queries are late.
        """
        failed = {reason["code"] for reason in finished.result["reasons"]}
        few = kind == "probe" and late is not None and late <= allowed
        return not failed or (few and HOPELESS not in failed)

    def late(self, finished: Finished, allowed: int | None) -> int | None:
        """Returns the number of queries above the bound, from LoadGen or, if LoadGen does not report it, from the
        journal.

        The number exceeds `allowed` if the run missed another SLO or was ended early, because unanswered queries have
        no row.
        """
        late = self._counted(finished)
        others = (finished.result.get("goodput") or {}).get("slos", ())
        if allowed is not None and any(
            not one["met"] for one in others if one["slo"] != str(self._slo)
        ):
            late = max(late or 0, allowed + 1)
        failed = [reason["code"] for reason in finished.result["reasons"]]
        if allowed is not None and HOPELESS in failed:
            return max(late or 0, allowed + 1)
        return late

    def _counted(self, finished: Finished) -> int | None:
        if self._slo.of:
            slos = (finished.result.get("goodput") or {}).get("slos", ())
            return next((one["late"] for one in slos if one["slo"] == str(self._slo)), None)
        counted = (finished.result["queries"] or {}).get("late")
        if counted is not None:
            return int(counted)
        latency_ns = _journal_latency_ns(finished)
        return None if latency_ns is None else int((latency_ns > self._slo.bound_ns).sum())

    def fastest_ns(self, finished: Finished) -> int | None:
        """Returns the shortest latency, from LoadGen or, if LoadGen does not report it, from the journal; None if no
        latency is known, or for an SLO on token times.
        """
        if self._slo.of:
            return None  # because the fastest answer says nothing about token times
        least = (finished.result["latency_ns"] or {}).get("min")
        if least is not None:
            return int(least)
        latency_ns = _journal_latency_ns(finished)
        return None if latency_ns is None or not len(latency_ns) else int(latency_ns.min())


def _journal_latency_ns(finished: Finished) -> Array | None:
    """Returns the (queries,) latencies of the performance run; None if the run left no rows."""
    run = records.read(finished.folder / PERFORMANCE, "")
    if run is None or run.done is None:
        return None
    return query_latency_ns(run.done, run.plan.samples_per_query)


def busy_share(result: Mapping[str, Any]) -> float | None:
    """Returns the share of the time during which an instance computed; None for a server, or if the run has no model.

    The share is the number of batches per second per instance, multiplied by the median time during which a batch
    occupies an instance. A batch on the wide instance occupies all instances. result: the content of result.json.
    """
    if result["backend"] == "null":
        return None
    stages, queries = result.get("stages_ns"), result["queries"] or {}
    rate, batch = (result["throughput_per_s"] or {}).get("completed"), queries.get("mean_batch")
    instances = (result.get("plan") or {}).get("instances")
    if not (stages and "infer" in stages and rate and batch and instances):
        return None
    wide = (result["plan"].get("elastic") or {}).get("samples", 0)
    occupied = 1 + wide / max(1, queries.get("samples_answered") or 1) * (instances - 1)
    batch_ns = sum(stages[name]["p50"] for name in _OF_AN_INSTANCE)
    return float(rate / batch / instances * occupied * batch_ns / NS_PER_S)


def model_per_s(result: Mapping[str, Any]) -> float | None:
    """Returns the rate in samples/s that the model alone would reach if every instance were always busy. The rate comes
    from the median times of the bare loops at their best batch size. Returns None if result.json contains no bare
    loops.
    """
    times = (result.get("reference") or {}).get("service_ns")
    instances = (result.get("plan") or {}).get("instances")
    if not times or not instances:
        return None
    per_ns = max(one["batch"] / max(least_ns(one), 1) for one in times)
    return float(instances * per_ns * NS_PER_S)


def model_ns(result: Mapping[str, Any]) -> float | None:
    """Returns the median time in ns of the model's fastest batch in the bare loops; None if result.json contains no
    bare loops.
    """
    times = (result.get("reference") or {}).get("service_ns")
    return min(map(least_ns, times)) if times else None


def least_ns(one: Mapping[str, float]) -> float:
    """Returns the smaller of the two medians for a batch size, so that a slowdown before or after the run has no
    effect.
    """
    return float(min(one["before"], one["after"]))


def answered(queries: Mapping[str, Any]) -> int:
    """Returns the number of answered queries. queries: from result.json; empty if the run issued none."""
    return int(queries.get("samples_answered", 0)) // int(queries.get("samples_per_query", 1))
