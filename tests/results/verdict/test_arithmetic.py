"""Numbers that LoadGen computes do not contradict each other; any single changed number causes a contradiction."""

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.stats import early_stopping_ns, late_allowed, percentile_ns
from harness.loadgen.logs import DetailLog
from harness.results.evidence.stages import PERCENTILES
from harness.results.verdict.arithmetic import contradictions, settings_stated_twice
from harness.types import Array
from tests.builders.support import SCENARIOS, golden_log

FORM = "%m-%d-%Y %H:%M:%S.%f"


def of_latencies(latency_ns: Array, span_ns: int, **values: Any) -> DetailLog:
    """Returns a log with the statistics of these latencies. span_ns: from the first query to the last answer."""
    ordered = np.sort(latency_ns)
    begin = datetime(2026, 11, 21, tzinfo=UTC)
    end = begin + timedelta(microseconds=span_ns // 1000)
    statistics = {
        f"result_{fraction * 100:.2f}_percentile_latency_ns": percentile_ns(ordered, fraction)
        for fraction in PERCENTILES.values()
    }
    return DetailLog(
        values={
            "effective_samples_per_query": 1,
            "result_query_count": len(ordered),
            "result_min_latency_ns": int(ordered[0]),
            "result_max_latency_ns": int(ordered[-1]),
            "result_mean_latency_ns": int(ordered.sum()) // len(ordered),
            "power_begin": begin.strftime(FORM)[:-3],
            "power_end": end.strftime(FORM)[:-3],
            **statistics,
            **values,
        }
    )


def six_digits(rate: float) -> float:
    return float(f"{rate:.6g}")


@given(st.integers(1, 3000), st.integers(0, 10**6), st.sampled_from([0.0, 0.5, 2.0]))
def test_a_stream_contradicts_nothing(count: int, seed: int, spread: float) -> None:
    random = np.random.default_rng(seed)
    latency_ns = (1e5 * random.lognormal(0, spread, count)).astype(np.int64) + 1
    gaps_ns = random.integers(0, 5000, count)
    issued_ns = int((latency_ns + gaps_ns)[:-1].sum())
    log = of_latencies(
        latency_ns,
        issued_ns + int(latency_ns[-1]),
        effective_scenario="SingleStream",
        effective_target_latency_percentile=0.9,
        early_stopping_latency_ss=early_stopping_ns(np.sort(latency_ns), 0.9) or 0,
        result_qps_with_loadgen_overhead=six_digits((count - 1) * 1e9 / issued_ns)
        if count > 1
        else None,
        result_qps_without_loadgen_overhead=six_digits(1e9 / (int(latency_ns.sum()) // count)),
    )
    assert list(contradictions(log)) == []


@given(st.integers(100, 3000), st.integers(0, 10**6), st.floats(10.0, 1e5))
def test_a_server_run_contradicts_nothing(count: int, seed: int, rate: float) -> None:
    random = np.random.default_rng(seed)
    due_ns = np.concatenate([[0], np.cumsum(random.exponential(1e9 / rate, count - 1))]).astype(
        np.int64
    )
    latency_ns = (1e7 * random.lognormal(0, 1, count)).astype(np.int64)
    bound_ns = int(np.quantile(latency_ns, random.uniform(0.9, 1.0)))
    late = int((latency_ns > bound_ns).sum())
    done_ns = due_ns + latency_ns
    log = of_latencies(
        latency_ns,
        int(done_ns.max()),
        effective_scenario="Server",
        effective_target_qps=six_digits(rate),
        effective_target_latency_percentile=0.99,
        effective_target_latency_ns=bound_ns,
        result_overlatency_query_count=late,
        early_stopping_met=late <= late_allowed(count, 0.99),
        result_completed_samples_per_sec=six_digits((count - 1) * 1e9 / done_ns[-1]),
        result_scheduled_samples_per_sec=six_digits((count - 1) * 1e9 / due_ns[-1]),
    )
    assert list(contradictions(log)) == []
    log.values["result_overlatency_query_count"] = late + count // 2
    assert list(contradictions(log))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_loadgens_own_logs_contradict_nothing(scenario: str) -> None:
    assert [
        *contradictions(golden_log(scenario)),
        *settings_stated_twice(golden_log(scenario)),
    ] == []


def changed(scenario: str, **values: Any) -> list[str]:
    log = copy.deepcopy(golden_log(scenario))
    log.values |= values
    return list(contradictions(log))


def test_equal_issue_mode_pads_the_offline_query() -> None:
    """Bug: honest results of language benchmarks were rejected, because the log counts fewer samples than were issued."""
    fewer = {"effective_samples_per_query": 450}
    assert len(changed("offline", **fewer)) == 1
    assert changed("offline", **fewer, effective_sample_concatenate_permutation=True) == []


def test_early_stopping_by_tokens_is_not_early_stopping_by_latency() -> None:
    """Bug: an honest result was refused, because the result estimates the time to the first token."""
    other = {"early_stopping_latency_ss": 1, "early_stopping_result": None}
    assert changed("single-stream", **other)
    assert changed("single-stream", **other, requested_use_token_latencies=True) == []
