"""How far a run's numbers could have come out otherwise: block bootstrap, and noise between runs.

Samples of one run are not independent: a stall makes a hundred neighbours late. So what is drawn
again, with replacement, is not samples but blocks of them that follow each other in time.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from harness.types import Array

BLOCKS = 20
"""Of a run, equal in samples: few enough that each is longer than what makes neighbours alike."""

DRAWS = 1000
LEVEL = 0.95
"""Of every interval."""

LEAST_FREEDOM = 2
"""Degrees of freedom of a spread that is told. One tells nothing: the interval of two runs' mean
would reach nine times as far as they lie apart, to either side.
"""

LEAST_RUNS = LEAST_FREEDOM + 1
"""Of one configuration, for an interval over them."""

_SEED = 20_240_229  # the same files give the same intervals
_GRID = 1024
"""Ranks that are told apart; half of them lie in the slowest hundredth of the samples."""

_T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179)
"""Student's t, two-sided 95 %, for 1, 2, ... degrees of freedom (any table of it)."""


def blocks(completed_ns: Array) -> Array:
    """(n,) the block each sample is in, 0 to BLOCKS - 1, by when it was completed."""
    n = len(completed_ns)
    rank = np.empty(n, np.int64)
    rank[np.argsort(completed_ns, kind="stable")] = np.arange(n)
    made: Array = rank * min(BLOCKS, n) // n
    return made


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
    found = {"mean": weights @ sums / total[:, 0]}
    for name, fraction in fractions.items():
        first = (seen > np.floor(total * fraction)).argmax(axis=1)
        found[name] = ordered[ranks[first]].astype(np.float64)
    return found


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
    """The middle LEVEL of them."""
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def between_runs(before: Sequence[float], after: Sequence[float]) -> float | None:
    """Half the interval of mean(after) - mean(before), from how runs of one side differ.

    The spread is pooled: both sides ran on this machine. None below LEAST_FREEDOM.
    """
    freedom = len(before) + len(after) - 2
    if freedom < LEAST_FREEDOM:
        return None
    squares = sum(float(np.var(side)) * len(side) for side in (before, after))
    error = math.sqrt(squares / freedom * (1 / len(before) + 1 / len(after)))
    return _t(freedom) * error


def over_runs(values: Sequence[float]) -> tuple[float, tuple[float, float] | None] | None:
    """Geometric mean of runs of one configuration and the interval of that mean (Student's t of
    the logarithms: noise multiplies), None with fewer than LEAST_RUNS.

    None at all without values, or with one that is not above 0.
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
    """Beyond the table, its expansion in 1 / freedom: off by less than 0.3 % there."""
    if freedom <= len(_T_95):
        return _T_95[freedom - 1]
    return 1.95996 + 2.37227 / freedom + 2.8225 / freedom**2


def _ranks(n: int) -> Array:
    """(k,) ascending ranks, the last one n - 1: all, or a grid that is finest in the tail."""
    if n <= _GRID:
        return np.arange(n)
    body = np.linspace(0, n - 1, _GRID // 2)
    tail = n - np.geomspace(1, n / 100, _GRID // 2)
    return np.unique(np.concatenate([body, tail]).astype(np.int64))


def _weights(count: int) -> Array:
    """(DRAWS, count) how often each block is in each draw."""
    made = np.random.default_rng(_SEED).multinomial(count, np.full(count, 1 / count), size=DRAWS)
    return made.astype(np.float64)
