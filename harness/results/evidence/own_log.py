"""Derives a detail log in LoadGen's form from the journal of a run with the harness scheduler.

The keys match LoadGen's, so that the same code reads both logs. The log's `source` names the scheduler.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from harness.core.stats import late_allowed, percentile_ns, queries_needed
from harness.core.units import NS_PER_S
from harness.loadgen.logs import DetailLog
from harness.loadgen.plan import LoadPlan
from harness.loadgen.scenario import percent_text
from harness.results.evidence.stages import PERCENTILES, Completions
from harness.types import Array

HARNESS = "harness scheduler"


def detail_log(plan: LoadPlan, done: Completions | None, loadgen_scenario: str) -> DetailLog:
    """Returns the log of a Server run that ended by itself; empty if no query was answered."""
    log = DetailLog(source=HARNESS)
    if not done:
        return log
    log.values = {
        "effective_scenario": loadgen_scenario,
        "effective_test_mode": "PerformanceOnly",
        "effective_performance_sample_count": plan.performance_count,
        "effective_samples_per_query": 1,
        **{f"effective_{name}_rng_seed": seed for name, seed in plan.seeds._asdict().items()},
        **_rates(plan, done),
        **_latencies(np.sort(done.latency_ns)),
        **_judged(plan, done, np.sort(done.latency_ns)),
        "num_errors": 0,
    }
    log.complete, log.repeated = True, 1
    return log


def _rates(plan: LoadPlan, done: Completions) -> dict[str, Any]:
    """Returns the rates: n - 1 divided by the time until the last of n queries was due, or until it was answered
    (results.cc, LogDetail).

    The offered rate comes from the schedule. A run with a fixed number of queries in flight has no schedule, so it
    offers its completed rate.
    """
    scheduled_ns, completed_ns = done.columns["scheduled_ns"], done.columns["completed_ns"]
    start_ns = int(scheduled_ns.min())
    gaps = len(done) - 1
    due_ns, answered_ns = int(scheduled_ns[-1]) - start_ns, int(completed_ns[-1]) - start_ns
    completed = gaps * NS_PER_S / max(1, answered_ns)
    scheduled = gaps * NS_PER_S / due_ns if plan.concurrency is None and due_ns > 0 else None
    return {
        "effective_target_qps": scheduled or completed,
        "result_scheduled_samples_per_sec": scheduled,
        "result_completed_samples_per_sec": completed,
        "power_begin": _utc_text(start_ns),
        "power_end": _utc_text(int(completed_ns.max())),
    }


def _latencies(ordered_ns: Array) -> dict[str, Any]:
    return {
        "result_min_latency_ns": int(ordered_ns[0]),
        "result_max_latency_ns": int(ordered_ns[-1]),
        "result_mean_latency_ns": int(ordered_ns.sum()) // len(ordered_ns),
        **{
            f"result_{percent_text(share)}_percentile_latency_ns": percentile_ns(ordered_ns, share)
            for share in PERCENTILES.values()
        },
    }


def _judged(plan: LoadPlan, done: Completions, ordered_ns: Array) -> dict[str, Any]:
    """Judges the run by Server's constraints. Requires no minimum duration, just as LoadGen requires none in quick
    runs.

    A query in `left_out` counts as issued, but neither as on time nor as late.
    """
    assert plan.percentile is not None
    bound_ns = plan.latency_bound_ns
    issued, judged = done.issued, done.issued - done.left_out
    late = 0  # stays 0 without a latency bound; other code judges token times
    if bound_ns is not None:
        late = len(ordered_ns) - int(np.searchsorted(ordered_ns, bound_ns, "right"))
    constraints = {
        "result_perf_constraints_met": (
            bound_ns is None or percentile_ns(ordered_ns, plan.percentile) <= bound_ns
        ),
        "result_min_duration_met": True,
        # A ramp has a fixed end, so its `query_count` is only the number of queries that the journal can hold.
        "result_min_queries_met": plan.ramp is not None or issued >= plan.query_count,
        "early_stopping_met": late_allowed(judged, plan.percentile) >= late,
    }
    return {
        "effective_target_latency_percentile": plan.percentile,
        "effective_target_latency_ns": bound_ns,
        **constraints,
        "result_validity": "VALID" if all(constraints.values()) else "INVALID",
        "early_stopping_result": early_stopping_text(late, judged, plan.percentile),
        "result_query_count": issued,
        "result_overlatency_query_count": late,
    }


def early_stopping_text(late: int, queries: int, percentile: float) -> str:
    """Returns the text that LoadGen writes into the detail log of a Server run (results.cc, EarlyStopping)."""
    needed = queries_needed(late, percentile)
    if queries >= needed:
        return " * Run successful."
    return (
        f" * Run unsuccessful.  * Processed {queries} queries.  * Would need to run at least "
        f"{needed - queries} more queries,  with the run being successful if every additional  "
        "query were under latency."
    )


def _utc_text(ns: int) -> str:
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ns // 1_000_000)
    return f"{at:%m-%d-%Y %H:%M:%S}.{at.microsecond // 1000:03d}"
