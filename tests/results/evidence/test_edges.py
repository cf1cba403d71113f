"""Numbers at the limits: one query, no query, a truncated query, or all queries due at once."""

from dataclasses import replace

import numpy as np
import pytest

from harness.core.units import NS_PER_MS, NS_PER_S
from harness.results.evidence.intervals import latency_intervals
from harness.results.evidence.own_log import detail_log
from harness.results.evidence.stages import Completions, query_completed_ns, query_latency_ns
from harness.run.supervisor.completions import NewRows
from tests.builders.support import golden_completions, golden_journal, plan
from tests.results.evidence.test_own_log import completions, of

LATENCY_NS = 5 * NS_PER_MS


def at(*seconds: float) -> Completions:
    due_ns = np.array([int(s * NS_PER_S) for s in seconds], np.int64)
    return completions(due_ns, np.full(len(due_ns), LATENCY_NS, np.int64))


def test_queries_that_are_all_due_at_once_have_no_offered_rate() -> None:
    values = detail_log(of(3), at(1, 1, 1), "Server").values
    assert values["result_scheduled_samples_per_sec"] is None
    assert values["effective_target_qps"] == values["result_completed_samples_per_sec"] == 400


def test_a_closed_loop_has_no_offered_rate() -> None:
    values = detail_log(of(3, schedule=None, concurrency=2), at(1, 1, 2), "Server").values
    assert values["result_scheduled_samples_per_sec"] is None
    assert values["effective_target_qps"] == pytest.approx(2 / 1.005)


def test_the_offered_rate_of_a_schedule_is_the_schedules() -> None:
    values = detail_log(of(3), at(0, 1, 2), "Server").values
    assert values["result_scheduled_samples_per_sec"] == values["effective_target_qps"] == 1.0


@pytest.mark.parametrize("late", [10, 11])
def test_early_stopping_counts_the_late_queries(late: int) -> None:
    """At p99, ten of 2,010 queries may be late (table in the MLPerf rules)."""
    latency_ns = np.full(2010, NS_PER_MS, np.int64)
    latency_ns[:late] = NS_PER_S
    done = completions(np.arange(2010, dtype=np.int64) * NS_PER_MS, latency_ns)
    assert detail_log(of(2010), done, "Server").get("early_stopping_met") == (late == 10)


def test_the_ends_of_a_run_are_cut_to_milliseconds_as_loadgens() -> None:
    done = completions(np.array([1_999_999_999], np.int64), np.array([1], np.int64))
    values = detail_log(of(1), done, "Server").values
    assert values["power_begin"] == "01-01-1970 00:00:01.999"
    assert values["power_end"] == "01-01-1970 00:00:02.000"


def test_a_run_without_a_whole_query_has_no_intervals() -> None:
    done = golden_completions("multi-stream")
    columns = {name: column[:7] for name, column in done.columns.items()}
    assert latency_intervals(Completions(columns, 7, answered_once=True), 8) is None


def test_order_statistics_are_measured_latencies() -> None:
    done = golden_completions("server")
    intervals = latency_intervals(done, 1)
    assert intervals is not None
    low, high = intervals["p50"]["order_statistic"]
    assert low is not None
    assert high is not None
    assert low <= intervals["p50"]["estimate"] <= high
    assert {low, high} <= set(done.latency_ns.tolist())


def test_half_answered_query_of_two_samples_is_not_counted() -> None:
    columns = {
        "order": np.arange(5),
        "scheduled_ns": np.zeros(5, np.int64),
        "completed_ns": np.array([3, 1, 2, 4, 9], np.int64),
    }
    done = Completions(columns, 5, answered_once=True)
    assert query_latency_ns(done, 2).tolist() == [3, 4]
    assert query_completed_ns(done, 2).tolist() == [3, 4]


@pytest.mark.parametrize("accuracy", [False, True])
def test_a_live_reader_knows_only_the_schedule_of_a_performance_run(accuracy: bool) -> None:
    made = replace(plan("server"), accuracy=accuracy)
    assert (NewRows(golden_journal("server"), made).due_ns is None) == accuracy
