"""Intervals of percentiles have their stated coverage, checked by counting in three ways."""

import re
from itertools import accumulate
from math import comb
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.stats import LEVEL, early_stopping_ns, interval_ranks
from harness.results.evidence.between_runs import between_runs, over_runs
from harness.results.evidence.intervals import latency_intervals
from harness.results.evidence.performance import Performance
from harness.results.evidence.stages import PERCENTILES, Completions, query_latency_ns
from tests.builders.support import evidence, golden_log, present

STREAMS = {
    "single-stream": "early_stopping_latency_ss",
    "multi-stream": "early_stopping_latency_ms",
}


@given(st.integers(1, 400), st.sampled_from((0.5, 0.9, 0.97, 0.99, 0.999)))
def test_ranks_are_those_of_the_exact_binomial(count: int, p: float) -> None:
    at_most = list(
        accumulate(comb(count, k) * p**k * (1 - p) ** (count - k) for k in range(count + 1))
    )
    low, high = interval_ranks(count, p, 0.95)
    below = [k for k in range(count) if at_most[k] <= 0.025]
    above = [k for k in range(count) if at_most[k] >= 0.975]
    assert low == (below[-1] if below else None)
    assert high == (above[0] if above else None)


def test_interval_has_the_tabulated_ranks() -> None:
    """The median of ten samples lies between the second and the ninth with a probability of 98 %, as in any table."""
    assert interval_ranks(10, 0.5, 0.95) == (1, 8)
    assert interval_ranks(5, 0.5, 0.95) == (None, None)
    assert interval_ranks(1_000_000, 0.5, 0.95) == (499_019, 500_980)


def test_intervals_of_independent_samples_have_their_stated_coverage() -> None:
    rng = np.random.default_rng(5)
    held = 0
    for _ in range(400):
        ordered = np.sort(rng.exponential(1.0, 700))
        low, high = interval_ranks(700, 0.9, LEVEL)
        held += ordered[present(low)] <= -np.log(0.1) <= ordered[present(high)]
    assert 0.93 * 400 <= held <= 0.99 * 400


@pytest.mark.parametrize("scenario", STREAMS)
def test_the_early_stopping_estimate_is_loadgens(scenario: str) -> None:
    """The estimates are compared by rank, because the journal's time stamps do not equal LoadGen's to the nanosecond."""
    run, log = evidence(scenario), golden_log(scenario)
    ordered = np.sort(query_latency_ns(present(run.done), run.plan.samples_per_query))
    told = log.get("early_stopping_result")
    discarded = int(re.findall(r"Would discard (\d+) highest", told)[0])
    percentile = log.get("effective_target_latency_percentile")
    found = early_stopping_ns(ordered, percentile)
    assert found == ordered[len(ordered) - 1 - discarded]
    assert found == pytest.approx(log.get(STREAMS[scenario]), abs=20_000)


@pytest.mark.parametrize(("count", "estimated"), [(0, False), (63, False), (64, True)])
def test_too_few_queries_have_no_estimate(count: int, estimated: bool) -> None:
    assert (early_stopping_ns(range(count), 0.9) is not None) == estimated


@pytest.mark.parametrize("scenario", ["single-stream", "multi-stream", "server"])
def test_every_percentile_of_a_run_has_its_intervals(scenario: str) -> None:
    run = evidence(scenario)
    assert run.done is not None
    found: Any = latency_intervals(run.done, run.plan.samples_per_query)
    assert found is not None
    ordered = np.sort(query_latency_ns(run.done, run.plan.samples_per_query))
    for name, fraction in PERCENTILES.items():
        value = ordered[int(len(ordered) * fraction)]
        low, high = found[name]["order_statistic"]
        assert low is None or low <= value
        assert high is None or value <= high
        assert found[name]["estimate"] == value
        low, high = found[name]["block_interval"]
        assert low is None or low <= value
        assert high is None or value <= high
    # 700 queries are too few for an upper limit at p99.9.
    assert found["p99.9"]["order_statistic"][1] is None
    assert found["level"] == 0.95


@pytest.mark.parametrize("scenario", ["single-stream", "multi-stream", "server"])
def test_loadgens_percentile_lies_in_its_interval(scenario: str) -> None:
    """Bug: LoadGen's p50 of 36.4 us lay above the journal's interval of 35.1 us to 35.3 us."""
    run, numbers = evidence(scenario), Performance(evidence(scenario), None)
    logged, found = numbers.latency_ns(), numbers.intervals_ns
    own = present(latency_intervals(present(run.done), run.plan.samples_per_query))
    assert logged is not None
    assert found is not None
    moved = 0
    for name in PERCENTILES:
        one, journals = found[name], own[name]  # type: ignore[literal-required]
        assert one["estimate"] == logged[name]  # type: ignore[literal-required]
        assert one["journal"] == journals["estimate"] == journals["journal"]
        for kind in ("order_statistic", "block_interval"):
            low, high = one[kind]
            assert low is None or logged["min"] <= low <= one["estimate"]
            assert high is None or one["estimate"] <= high <= logged["max"]
            assert [end is None for end in one[kind]] == [end is None for end in journals[kind]]
        moved += one["estimate"] != one["journal"]
    assert moved > 0  # some estimates differ, because the two logs use different clocks


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**6)), min_size=1, max_size=60))
def test_an_interval_moved_to_another_clock_holds_that_clocks_percentile(
    samples: list[tuple[int, int]],
) -> None:
    """LoadGen's latency may exceed the journal's by any amount, because LoadGen and the journal sort their latencies
    separately.
    """
    ours, later = np.array(samples).T
    theirs = np.sort(ours + later)
    count = len(ours)
    logged = {name: int(theirs[int(count * p)]) for name, p in PERCENTILES.items()}
    logged |= {"min": int(theirs[0]), "max": int(theirs[-1])}
    completed_ns = np.arange(count) * 10**10
    columns = {"completed_ns": completed_ns, "scheduled_ns": completed_ns - ours}
    found: Any = latency_intervals(Completions(columns, count, answered_once=True), 1, logged)
    for name in PERCENTILES:
        one = found[name]
        assert one["estimate"] == logged[name]
        for low, high in (one["order_statistic"], one["block_interval"]):
            assert low is None or logged["min"] <= low <= one["estimate"]
            assert high is None or one["estimate"] <= high <= logged["max"]
        assert one["early_stopping"] is None or one["early_stopping"] <= logged["max"]


def test_a_clock_that_adds_the_same_to_all_moves_an_interval_by_that() -> None:
    ours = np.random.default_rng(4).integers(10**5, 10**6, 2_000)
    ordered = np.sort(ours) + 1_200
    logged = {name: int(ordered[int(2_000 * p)]) for name, p in PERCENTILES.items()}
    columns = {"completed_ns": np.arange(2_000) * 10**9}
    columns["scheduled_ns"] = columns["completed_ns"] - ours
    done = Completions(columns, 2_000, answered_once=True)
    own: Any = latency_intervals(done, 1)
    moved: Any = latency_intervals(done, 1, logged)
    for name in ("p50", "p90"):
        assert moved[name]["block_interval"] == [e + 1_200 for e in own[name]["block_interval"]]
        assert moved[name]["early_stopping"] == own[name]["early_stopping"] + 1_200


def test_consecutive_slow_queries_prevent_a_block_interval() -> None:
    run = evidence("server")
    assert run.done is not None
    count = len(run.done)
    rng = np.random.default_rng(2)
    calm = rng.normal(10e6, 1e6, count).astype(np.int64)
    bursts = np.sort(calm)  # the values are the same, but the slow ones are consecutive
    intervals = []
    for latency in (calm, bursts):
        columns = dict(run.done.columns)
        columns["completed_ns"] = np.arange(count) * 10**9
        columns["scheduled_ns"] = columns["completed_ns"] - latency
        found: Any = latency_intervals(type(run.done)(columns, count, True), 1)
        intervals.append(present(found)["p50"])
    of_calm, of_bursts = intervals
    assert of_calm["order_statistic"] == of_bursts["order_statistic"]
    assert of_calm["block_interval_reason"] is None
    assert of_bursts["block_interval"] == [None, None]
    assert "independent part" in of_bursts["block_interval_reason"]
    assert 3 * of_bursts["effective_samples"] < of_calm["effective_samples"]


@given(st.lists(st.floats(1e-3, 1e9), min_size=3, max_size=12))
def test_the_mean_over_runs_lies_in_its_interval_and_among_the_runs(values: list[float]) -> None:
    found = present(over_runs(values))
    mean, interval = found
    low, high = present(interval)
    assert low * (1 - 1e-9) <= mean <= high * (1 + 1e-9)
    assert min(values) * (1 - 1e-9) <= mean <= max(values) * (1 + 1e-9)


def test_the_interval_over_runs_is_students() -> None:
    """For the logarithms 0, 1 and 2, the mean is 1, the standard deviation is 1, and t(2) is 4.302653."""
    found = present(over_runs([1.0, np.e, np.e**2]))
    assert found[1] is not None
    mean, low, high = np.log([found[0], *found[1]])
    assert (mean, high - mean) == pytest.approx((1.0, 4.302653 / 3**0.5))
    assert high - mean == pytest.approx(mean - low)
    assert over_runs([0.0, 1.0, 2.0]) is None
    assert over_runs([]) is None


def test_one_degree_of_freedom_has_no_interval() -> None:
    """Bug: the interval of the rates 1,000/s and 1,100/s was 572/s to 1,922/s."""
    mean, interval = over_runs([4.0, 9.0]) or (0.0, (0.0, 0.0))
    assert mean == pytest.approx(6.0)
    assert interval is None
    assert between_runs([1.0, 2.0], [1.5]) is None
