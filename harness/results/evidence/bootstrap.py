"""Estimates how far a run's numbers may be off: block bootstrap, and noise between runs.

Samples of one run are not independent: a stall makes a hundred neighbours late. The bootstrap
therefore draws, with replacement, blocks of consecutive samples and not single samples.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from harness.types import Array

BLOCKS = 20
"""Blocks of a run, equal in samples: few enough that each is longer than a stall."""

DRAWS = 1000
LEVEL = 0.95
"""Confidence level of every interval."""

LEAST_FREEDOM = 2
"""Fewest degrees of freedom of a reported spread. With one, the interval of two runs' mean would
reach nine times their distance to either side.
"""

LEAST_RUNS = LEAST_FREEDOM + 1
"""Runs of one configuration that an interval over runs needs."""

_SEED = 20_240_229  # the same files give the same intervals
_GRID = 1024
"""Ranks that the bootstrap distinguishes; half of them lie in the slowest hundredth of the samples."""

_T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179)
"""Student's t, two-sided 95 %, for 1, 2, ... degrees of freedom (any table of it)."""


def blocks(completed_ns: Array) -> Array:
    """(n,) block of each sample, 0 to BLOCKS - 1, in the order of completion."""
    n = len(completed_ns)
    rank = np.empty(n, np.int64)
    rank[np.argsort(completed_ns, kind="stable")] = np.arange(n)
    block: Array = rank * min(BLOCKS, n) // n
    return block


def drawn_percentiles(
    values: Array, block: Array, fractions: Mapping[str, float]
) -> Mapping[str, Array]:
    """name -> (DRAWS,) that percentile and, as `mean`, the mean of each draw of blocks.

    values: (n,) n >= 1. block: (n,) from `blocks`.
    """
    order = np.argsort(values, kind="stable")
    ordered, block = values[order], block[order]
    ranks = _ranks(len(ordered))
    cell = np.searchsorted(ranks, np.arange(len(ordered)))
    count = int(block.max()) + 1
    table = np.bincount(block * len(ranks) + cell, minlength=count * len(ranks))
    weights = _weights(count)
    seen = np.cumsum(weights @ table.reshape(count, -1).astype(np.float64), axis=1)
    total = seen[:, -1:]
    sums = np.bincount(block, weights=ordered, minlength=count)
    drawn = {"mean": weights @ sums / total[:, 0]}
    for name, fraction in fractions.items():
        first = (seen > np.floor(total * fraction)).argmax(axis=1)
        drawn[name] = ordered[ranks[first]].astype(np.float64)
    return drawn


def drawn_rate(completed_ns: Array, begun_ns: int) -> Array:
    """(DRAWS,) completions a second in each draw of blocks."""
    ordered = np.sort(completed_ns)
    sizes = np.bincount(blocks(ordered))
    ends = ordered[np.cumsum(sizes) - 1]
    took_ns = np.diff(ends, prepend=begun_ns)
    weights = _weights(len(sizes))
    rates: Array = weights @ sizes * 1e9 / np.maximum(weights @ took_ns, 1)
    return rates


def interval(draws: Array) -> tuple[float, float]:
    """The interval that holds the middle LEVEL of the draws."""
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def between_runs(before: Sequence[float], after: Sequence[float]) -> float | None:
    """Half the width of the interval of mean(after) - mean(before), from the spread within each side.

    The spread is pooled: both sides ran on this machine. None below LEAST_FREEDOM.
    """
    freedom = len(before) + len(after) - 2
    if freedom < LEAST_FREEDOM:
        return None
    squares = sum(float(np.var(side)) * len(side) for side in (before, after))
    error = math.sqrt(squares / freedom * (1 / len(before) + 1 / len(after)))
    return _t(freedom) * error


def over_runs(values: Sequence[float]) -> tuple[float, tuple[float, float] | None] | None:
    """Geometric mean over runs of one configuration, and its interval (Student's t of the logarithms:
    noise multiplies). The interval is None with fewer than LEAST_RUNS values.

    Returns None without values, or with a value that is not above 0.
    """
    if not values or min(values) <= 0:
        return None
    logs = np.log(np.asarray(values, np.float64))
    mean = float(logs.mean())
    if len(values) < LEAST_RUNS:
        return math.exp(mean), None
    half = _t(len(values) - 1) * float(logs.std(ddof=1)) / math.sqrt(len(values))
    return math.exp(mean), (math.exp(mean - half), math.exp(mean + half))


def _t(freedom: int) -> float:
    """Student's t; beyond the table an expansion in 1 / freedom with an error below 0.3 %."""
    if freedom <= len(_T_95):
        return _T_95[freedom - 1]
    return 1.95996 + 2.37227 / freedom + 2.8225 / freedom**2


def _ranks(n: int) -> Array:
    """(k,) ascending ranks that end at n - 1: all of them, or a grid that is finest in the tail."""
    if n <= _GRID:
        return np.arange(n)
    body = np.linspace(0, n - 1, _GRID // 2)
    tail = n - np.geomspace(1, n / 100, _GRID // 2)
    return np.unique(np.concatenate([body, tail]).astype(np.int64))


def _weights(count: int) -> Array:
    """(DRAWS, count) number of times that each draw holds each block."""
    drawn = np.random.default_rng(_SEED).multinomial(count, np.full(count, 1 / count), size=DRAWS)
    return drawn.astype(np.float64)
