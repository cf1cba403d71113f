"""Computes intervals of one run's numbers that allow for neighbouring samples being alike.

One stall delays a hundred neighbours, so the samples of a run are not independent. A run is cut into
20 blocks of neighbouring samples; the spread between the blocks says how many independent samples the
run is worth. docs/intervals.md shows how often these intervals hold the truth.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from harness.core.stats import LEVEL, interval_ranks, student_t
from harness.types import Array

_BLOCKS = 20
"""Blocks of a run, equal in samples: few enough that each is longer than a stall."""

_NORMAL = 1.959964
"""The normal distribution's two-sided 95 % bound; Student's, which replaces it, is wider."""

_MOST_EFFECTIVE = 2
"""A run is never worth more than this many times its samples. By chance the blocks of independent
samples may be more alike than independent ones are expected to be.
"""


class PercentileInterval(NamedTuple):
    """The interval of one percentile."""

    low: int | None
    """In the unit of the values; None where no sample lies far enough out."""
    high: int | None
    """In the unit of the values; None where no sample lies far enough out."""
    effective_samples: int
    """Number of independent samples that would give an interval as wide."""


def blocks(completed_ns: Array) -> Array:
    """(n,) block of each sample, 0 to 19, in the order of completion."""
    n = len(completed_ns)
    rank = np.empty(n, np.int64)
    rank[np.argsort(completed_ns, kind="stable")] = np.arange(n)
    block: Array = rank * min(_BLOCKS, n) // n
    return block


def percentile_intervals(
    values: Array, block: Array, fractions: Mapping[str, float]
) -> Mapping[str, PercentileInterval]:
    """name -> interval of that percentile.

    values: (n,) integers, n >= 1. block: (n,) from `blocks`.

    The number of samples above the percentile varies from block to block. Where samples are
    independent, its variance is the binomial one; the ratio of both is the design effect, which
    divides the number of samples. Student's t allows for a variance estimated from few blocks, and
    the ranks of that number of independent samples are exact.

    Source: Korn and Graubard, Confidence intervals for proportions with small expected number of
    positive counts estimated from survey data, Survey Methodology 24 (1998), with the inversion of
    Woodruff, Confidence intervals for medians and other position measures, JASA 47 (1952).
    """
    order = np.argsort(values, kind="stable")
    ordered, block = values[order], block[order]
    return {name: _percentile(ordered, block, fraction) for name, fraction in fractions.items()}


def mean_interval(values: Array, block: Array) -> tuple[float, float] | None:
    """Student's interval of the mean, from the means of the blocks; None with one block.

    values: (n,). block: (n,) from `blocks`.
    """
    sizes = np.bincount(block)
    if len(sizes) < 2:
        return None
    mean = float(values.mean())
    # The ratio of block sums to block sizes, which differ by one sample at most.
    rests = np.bincount(block, weights=values - mean)
    half = student_t(len(sizes) - 1) * _deviation_of_sum(rests) / len(values)
    return mean - half, mean + half


def rate_interval(completed_ns: Array, begun_ns: int) -> tuple[float, float] | None:
    """Interval of the completions a second, from the times that blocks of them took; None with one block.

    completed_ns: (n,). begun_ns: start of the first block.
    """
    gaps_ns = np.diff(np.sort(completed_ns), prepend=begun_ns)
    interval = mean_interval(gaps_ns, blocks(np.arange(len(gaps_ns))))
    if interval is None:
        return None
    fastest_ns, slowest_ns = interval
    return 1e9 / slowest_ns, 1e9 / fastest_ns if fastest_ns > 0 else math.inf


def _percentile(ordered: Array, block: Array, fraction: float) -> PercentileInterval:
    """ordered: (n,) ascending. block: (n,) block of each."""
    n = len(ordered)
    rank = int(n * fraction)  # as percentile_ns
    effective = _effective_samples(ordered, block, rank)
    low, high = interval_ranks(effective, fraction, LEVEL)
    return PercentileInterval(
        low=None if low is None else int(ordered[min(rank, low * n // effective)]),
        high=None if high is None else _at(ordered, max(rank, -(-high * n // effective))),
        effective_samples=effective,
    )


def _at(ordered: Array, rank: int) -> int | None:
    return int(ordered[rank]) if rank < len(ordered) else None


def _effective_samples(ordered: Array, block: Array, rank: int) -> int:
    """Independent samples that would tell as much about the samples above ordered[rank]."""
    n = len(ordered)
    above = np.searchsorted(ordered, ordered[rank], side="right")
    share = 1 - above / n
    counts = np.bincount(block[above:], minlength=int(block.max()) + 1)
    independent = n * share * (1 - share)
    if len(counts) < 2 or independent == 0:
        return n
    widening = student_t(len(counts) - 1) / _NORMAL * _deviation_of_sum(counts)
    if widening == 0:
        return _MOST_EFFECTIVE * n
    return int(min(max(1, n * independent / widening**2), _MOST_EFFECTIVE * n))


def _deviation_of_sum(parts: Array) -> float:
    """Standard deviation of the sum of independent parts, estimated from their spread."""
    return float(np.std(parts, ddof=1)) * math.sqrt(len(parts))
