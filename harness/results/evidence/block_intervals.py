"""Computes confidence intervals for one run's numbers that stay valid if neighbouring samples are correlated.

The samples in a run are not independent: one stall delays a hundred neighbouring samples, and a queue delays a
thousand. The spread between blocks of neighbouring samples shows how many independent samples the run is worth. If this
number is too small, no interval is computed. docs/intervals.md shows how often the intervals contain the true value.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from harness.core.stats import LEVEL, interval_ranks, student_t
from harness.core.units import counted
from harness.results.evidence.parts import BLOCKS, Spread, spread_of
from harness.types import Array

_NORMAL = 1.959964
"""Two-sided 95 % bound of the normal distribution. Student's t divided by this bound shows how much wider the interval
becomes.
"""

_MOST_EFFECTIVE = 2
"""The effective samples are limited to this many times the actual samples, because blocks of independent samples may by
chance vary less than expected.
"""

_LEAST_PARTS = 60
"""A number gets an interval only with at least this many independent parts below it and above it. A lower minimum would
give intervals to many runs whose parts look independent only by chance.
"""

_LEAST_EVENTS = 10
"""A number gets no interval if fewer slow phases than this explain its variation, because the run does not show how
often such phases occur.
"""


class PercentileInterval(NamedTuple):
    """The interval of one percentile."""

    low: int | None
    """Lower end, in the unit of the values; None without an interval."""
    high: int | None
    """Upper end, in the unit of the values; None without an interval."""
    effective_samples: int
    """Number of independent samples that would give an equally wide interval."""
    reason: str | None
    """Why the percentile has no interval; None if it has one."""


def blocks(completed_ns: Array) -> Array:
    """Returns the (n,) block numbers of the samples, from 0 to BLOCKS - 1, in the order of completion."""
    n = len(completed_ns)
    rank = np.empty(n, np.int64)
    rank[np.argsort(completed_ns, kind="stable")] = np.arange(n)
    block: Array = rank * min(BLOCKS, n) // n
    return block


def percentile_intervals(
    values: Array, block: Array, fractions: Mapping[str, float]
) -> Mapping[str, PercentileInterval]:
    """Returns a mapping from percentile name to interval.

    values: (n,) integers, n >= 1. block: (n,) block numbers from `blocks`.

    The number of samples above the percentile varies by chance. For independent samples, its variance is binomial. The
    design effect is the ratio of the actual variance to the binomial variance. The number of samples divided by the
    design effect is the number of independent samples. The ranks are exact for this number of independent samples.
    Student's t is used because the variance is estimated.

    Source: Korn and Graubard, Confidence intervals for proportions with small expected number of
    positive counts estimated from survey data, Survey Methodology 24 (1998), with the inversion of
    Woodruff, Confidence intervals for medians and other position measures, JASA 47 (1952).
    """
    order = np.argsort(values, kind="stable")
    ordered, block = values[order], block[order]
    sizes = np.bincount(block)
    return {
        name: _percentile(ordered, block, sizes, fraction) for name, fraction in fractions.items()
    }


def mean_interval(values: Array, block: Array) -> tuple[float, float] | None:
    """Returns Student's interval of the mean; None if the run has too few independent parts or too few events.

    values: (n,). block: (n,) block numbers from `blocks`.
    """
    mean = float(values.mean())
    spread = spread_of(np.bincount(block, weights=values - mean))
    if spread is None:
        return None
    deviation = student_t(_whole(spread.freedom)) * math.sqrt(spread.variance)
    independent = float(np.var(values)) * len(values)
    effective = independent * (_NORMAL / deviation) ** 2 * len(values) if deviation else math.inf
    if _longer(min(effective, len(values)) / 2, spread.events) > 1:
        return None
    half = deviation / len(values)
    return mean - half, mean + half


def rate_interval(completed_ns: Array, begun_ns: int) -> tuple[float, float] | None:
    """Returns the interval of completions per second, from the gaps between completions; None if the mean has no
    interval.

    completed_ns: (n,). begun_ns: start of the first gap.
    """
    gaps_ns = np.diff(np.sort(completed_ns), prepend=begun_ns)
    interval = mean_interval(gaps_ns, blocks(np.arange(len(gaps_ns))))
    if interval is None:
        return None
    fastest_ns, slowest_ns = interval
    return 1e9 / slowest_ns, 1e9 / fastest_ns if fastest_ns > 0 else math.inf


def _percentile(ordered: Array, block: Array, sizes: Array, fraction: float) -> PercentileInterval:
    """Computes the interval of one percentile.

    ordered: (n,) ascending values. block: (n,) block of each value. sizes: samples in each block.
    """
    n = len(ordered)
    rank = int(n * fraction)  # the same rank as in percentile_ns
    above = int(np.searchsorted(ordered, ordered[rank], side="right"))
    share = 1 - above / n
    spread = spread_of(np.bincount(block[above:], minlength=len(sizes)) - share * sizes)
    effective = _effective_samples(n, share, spread)
    parts = effective * min(fraction, 1 - fraction)
    longer = _longer(parts, spread.events if spread else math.inf)
    if spread is None or longer > 1:
        return PercentileInterval(None, None, effective, _run_longer(parts, longer))
    low, high = interval_ranks(effective, fraction, LEVEL)
    assert low is not None
    assert high is not None
    return PercentileInterval(
        low=int(ordered[min(rank, low * n // effective)]),
        high=int(ordered[max(rank, min(n - 1, -(-high * n // effective)))]),
        effective_samples=effective,
        reason=None,
    )


def _effective_samples(n: int, share: float, spread: Spread | None) -> int:
    """Returns how many independent samples would estimate the `share` above a percentile as precisely as the run's
    samples do.
    """
    independent = n * share * (1 - share)
    if spread is None or independent == 0:
        return n
    widened = (student_t(_whole(spread.freedom)) / _NORMAL) ** 2 * spread.variance
    return int(max(1, n * min(_MOST_EFFECTIVE, independent / widened if widened else math.inf)))


def _longer(parts: float, events: float) -> float:
    """Returns how many times longer a run must be to get an interval; 1 or less if the run is long enough."""
    return max(_LEAST_PARTS / parts, _LEAST_EVENTS / events)


def _run_longer(parts: float, longer: float) -> str:
    """Returns the sentence that replaces an interval. parts, longer: argument and result of `_longer`."""
    count = round(min(parts, _LEAST_PARTS / longer))
    factor = math.ceil(longer) if longer < 10 else math.ceil(longer / 10) * 10
    return f"the run has about {counted(max(1, count), 'independent part')}: run {factor:,} times as long"


def _whole(freedom: float) -> int:
    return int(max(1.0, min(freedom, 1e6)))
