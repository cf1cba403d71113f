"""Intervals from blocks either have their stated coverage, even if queries wait in a queue, or are not printed."""

import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.coverage import MEDIAN_NS, PROCESSES, Draw, alike, percentile_coverage, queue
from harness.results.evidence.block_intervals import (
    blocks,
    mean_interval,
    percentile_intervals,
    rate_interval,
)
from tests.builders.support import present

FRACTIONS = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
NAMED = {process.name: process for process in PROCESSES}


def in_time(count: int) -> Any:
    return blocks(np.arange(count))


@pytest.mark.parametrize(
    ("name", "queries", "runs", "percentiles"),
    [
        ("independent", 2000, 200, ("p50", "p90")),
        ("independent", 20_000, 100, ("p50", "p90", "p99")),
        ("alike for 10 queries", 20_000, 100, ("p50", "p90")),
        ("queue, utilisation 0.5", 20_000, 100, ("p50", "p90")),
        ("queue, utilisation 0.7", 20_000, 100, ("p50",)),
        ("queue, utilisation 0.95", 200_000, 30, ("p50",)),
        ("slow phases of 30, one in 3,000", 20_000, 100, ("p50",)),
        ("drift of 20 %", 20_000, 100, ("p50", "p90", "p99")),
    ],
)
def test_intervals_have_their_stated_coverage(
    name: str, queries: int, runs: int, percentiles: tuple[str, ...]
) -> None:
    """Bug: at a utilisation of 0.95, even blocks of one twentieth of the run were correlated, so the intervals were too
    narrow.
    """
    coverage = percentile_coverage(NAMED[name], queries, runs)
    error = math.sqrt(0.95 * 0.05 / runs)
    for percentile in percentiles:
        one = coverage[percentile]
        assert one.intervals >= 0.9, percentile
        assert present(one.held) >= 0.95 - 3 * error, percentile


@pytest.mark.parametrize(
    ("name", "queries", "percentile"),
    [
        ("queue, utilisation 0.9", 2000, "p50"),
        ("queue, utilisation 0.9", 20_000, "p99"),
        ("queue, utilisation 0.95", 20_000, "p50"),
        ("queue, utilisation 0.95", 20_000, "p90"),
        ("slow phases of 30, one in 3,000", 20_000, "p99"),
        ("slow phases of 200, one in 4,000", 20_000, "p90"),
        ("stalls of 20 queries, one in 2,000", 20_000, "p99"),
        ("independent", 2000, "p99"),
    ],
)
def test_too_few_independent_parts_have_no_interval(
    name: str, queries: int, percentile: str
) -> None:
    assert percentile_coverage(NAMED[name], queries, 40)[percentile].intervals <= 0.2


def test_reason_names_the_necessary_length_of_a_run() -> None:
    """A run of the advised length yields an interval."""
    rng = np.random.default_rng(8)
    short = percentile_intervals(queue(0.9)(rng, 5000), in_time(5000), FRACTIONS)["p50"]
    found = re.fullmatch(
        r"the run has about (\d+) independent parts?: run (\d+) times as long", short.reason or ""
    )
    assert found is not None
    assert short[:2] == (None, None)
    assert int(found[1]) < 60
    queries = 5000 * 2 * int(found[2])
    long = percentile_intervals(queue(0.9)(rng, queries), in_time(queries), FRACTIONS)["p50"]
    assert long.reason is None


@pytest.mark.parametrize("draw", [alike(100), queue(0.7)])
def test_effective_samples_count_independent_neighbourhoods(draw: Draw) -> None:
    """If the order is random, all of these samples count as independent."""
    rng = np.random.default_rng(3)
    torn, neighbours = [], []
    for _ in range(20):
        values = draw(rng, 20_000)
        neighbours.append(percentile_intervals(values, in_time(20_000), FRACTIONS)["p50"])
        anyhow = rng.permutation(20_000)
        torn.append(percentile_intervals(values, blocks(anyhow), FRACTIONS)["p50"])
    assert 150 < np.median([one.effective_samples for one in neighbours]) < 4000
    assert 12_000 < np.median([one.effective_samples for one in torn]) < 28_000


@given(
    st.integers(1, 5000),
    st.integers(1, 10**9),
    st.sampled_from((0.5, 0.9, 0.99, 0.999)),
    st.integers(0, 10**6),
)
def test_the_percentile_lies_within_its_interval(
    count: int, most: int, fraction: float, seed: int
) -> None:
    """Bug: the p90 of 200,000 samples lay outside its interval in every run."""
    rng = np.random.default_rng(seed)
    values = rng.integers(0, most, count)
    one = percentile_intervals(values, blocks(rng.permutation(count)), {"p": fraction})["p"]
    estimate = np.sort(values)[int(count * fraction)]
    if one.reason is None:
        assert one.low is not None
        assert one.high is not None
        assert one.low <= estimate <= one.high
    else:
        assert (one.low, one.high) == (None, None)
    assert 1 <= one.effective_samples <= 2 * count


@given(st.integers(2, 3000), st.integers(2, 1000), st.integers(0, 10**6))
def test_another_unit_changes_only_the_unit(count: int, factor: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 10**6, count)
    intervals, scaled = (
        percentile_intervals(values * by, in_time(count), FRACTIONS) for by in (1, factor)
    )
    for name, one in intervals.items():
        ends = tuple(None if end is None else end * factor for end in one[:2])
        assert scaled[name] == (*ends, *one[2:])


def test_longer_independent_runs_have_narrower_intervals() -> None:
    values = np.random.default_rng(2).integers(10**5, 10**6, 160_000)
    widths = []
    for count in (10_000, 40_000, 160_000):
        one = percentile_intervals(values[:count], in_time(count), FRACTIONS)["p90"]
        widths.append(present(one.high) - present(one.low))
    assert widths[0] > widths[1] > widths[2]


def test_a_constant_has_no_spread_and_one_sample_no_interval() -> None:
    constant = percentile_intervals(np.full(100_000, 7), in_time(100_000), FRACTIONS)
    assert {(one.low, one.high) for one in constant.values()} == {(7, 7)}
    single = percentile_intervals(np.array([7]), in_time(1), FRACTIONS)["p50"]
    assert single[:3] == (None, None, 1)
    assert single.reason == "the run has about 1 independent part: run 120 times as long"
    assert mean_interval(np.array([7]), in_time(1)) is None
    assert rate_interval(np.array([7]), 0) is None


@pytest.mark.parametrize("neighbours", [1, 10])
def test_intervals_of_means_and_rates_have_their_stated_coverage(neighbours: int) -> None:
    rng = np.random.default_rng(11)
    truth = MEDIAN_NS * math.exp(0.5**2 / 2)
    mean_held = rate_held = 0
    for _ in range(300):
        values = alike(neighbours)(rng, 4000)
        low, high = mean_interval(values, in_time(4000)) or (0.0, 0.0)
        mean_held += low <= truth <= high
        low, high = rate_interval(np.cumsum(values), 0) or (0.0, 0.0)
        rate_held += low <= 1e9 / truth <= high
    assert min(mean_held, rate_held) >= 273  # the limit is the expected 285 minus 3 standard errors
    assert max(mean_held, rate_held) < 300


def test_a_queue_near_its_peak_has_no_interval_of_its_mean() -> None:
    values = queue(0.95)(np.random.default_rng(1), 20_000)
    assert mean_interval(values, in_time(20_000)) is None


def test_a_steady_rate_has_a_narrow_interval() -> None:
    assert rate_interval(np.arange(1, 1001) * 1_000_000, 0) == pytest.approx((1000, 1000))
