"""Intervals from blocks hold the truth as often as they say, also where neighbours are alike."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.coverage import MEDIAN_NS, PROCESSES, alike, percentile_coverage
from harness.results.evidence.block_intervals import (
    blocks,
    mean_interval,
    percentile_intervals,
    rate_interval,
)

FRACTIONS = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def in_time(count: int) -> Any:
    return blocks(np.arange(count))


@pytest.mark.parametrize(("queries", "runs"), [(2000, 400), (20_000, 200), (200_000, 40)])
def test_independent_samples_are_held_as_often_as_promised(queries: int, runs: int) -> None:
    """Bug: p99 of 20,000 queries was missed in half of all runs, p90 of 200,000 in 80 %."""
    error = math.sqrt(0.95 * 0.05 / runs)
    for name, (held, _, whole) in percentile_coverage(PROCESSES[0], queries, runs).items():
        assert held >= 0.95 - 3 * error, name
        if name != "p99.9":
            assert held <= 0.97 + 3 * error, name  # not by being too wide
            assert whole == 1, name


def test_neighbours_that_are_alike_are_held_where_order_statistics_fail() -> None:
    coverage = percentile_coverage(PROCESSES[1], 20_000, 100)
    for name in FRACTIONS:
        held, order_statistic, _ = coverage[name]
        assert held >= 0.88
        assert order_statistic < 0.80


def test_effective_samples_count_independent_neighbourhoods() -> None:
    rng = np.random.default_rng(3)
    torn, alike_100 = [], []
    for _ in range(40):
        values = alike(100)(rng, 20_000)
        alike_100.append(percentile_intervals(values, in_time(20_000), FRACTIONS)["p50"])
        anyhow = rng.permutation(20_000)
        torn.append(percentile_intervals(values, blocks(anyhow), FRACTIONS)["p50"])
    assert 100 < np.median([one.effective_samples for one in alike_100]) < 800
    assert 12_000 < np.median([one.effective_samples for one in torn]) < 28_000


@given(
    st.lists(st.integers(0, 10**9), min_size=1, max_size=300),
    st.sampled_from((0.5, 0.9, 0.99, 0.999)),
    st.randoms(use_true_random=False),
)
def test_the_percentile_lies_within_its_interval(
    values: list[int], fraction: float, order: Any
) -> None:
    """Bug: p90 of 200,000 lay outside in every run."""
    when = list(range(len(values)))
    order.shuffle(when)
    low, high, effective = percentile_intervals(
        np.array(values), blocks(np.array(when)), {"p": fraction}
    )["p"]
    estimate = sorted(values)[int(len(values) * fraction)]
    assert low is None or low <= estimate
    assert high is None or estimate <= high
    assert 1 <= effective <= 2 * len(values)


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=200), st.integers(2, 1000))
def test_another_unit_changes_only_the_unit(values: list[int], factor: int) -> None:
    block = in_time(len(values))
    intervals, scaled = (
        percentile_intervals(np.array(values) * by, block, FRACTIONS) for by in (1, factor)
    )
    for name, (low, high, effective) in intervals.items():
        ends = tuple(None if end is None else end * factor for end in (low, high))
        assert scaled[name] == (*ends, effective)


def test_a_constant_has_no_spread_and_one_sample_no_interval() -> None:
    constant = percentile_intervals(np.full(5000, 7), in_time(5000), FRACTIONS)
    assert {(one.low, one.high) for one in constant.values()} == {(7, 7)}
    assert percentile_intervals(np.array([7]), in_time(1), FRACTIONS)["p50"] == (None, None, 1)
    assert mean_interval(np.array([7]), in_time(1)) is None
    assert rate_interval(np.array([7]), 0) is None


def test_means_and_rates_are_held_as_often_as_promised() -> None:
    rng = np.random.default_rng(11)
    truth = MEDIAN_NS * math.exp(0.5**2 / 2)
    mean_held = rate_held = 0
    for _ in range(300):
        values = alike(10)(rng, 4000)
        low, high = mean_interval(values, in_time(4000)) or (0.0, 0.0)
        mean_held += low <= truth <= high
        low, high = rate_interval(np.cumsum(values), 0) or (0.0, 0.0)
        rate_held += low <= 1e9 / truth <= high
    assert min(mean_held, rate_held) >= 273  # 285 - 3 standard errors
    assert max(mean_held, rate_held) < 300


def test_a_steady_rate_has_a_narrow_interval() -> None:
    assert rate_interval(np.arange(1, 1001) * 1_000_000, 0) == pytest.approx((1000, 1000))
