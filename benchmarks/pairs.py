"""Measures ratios and differences in alternating pairs, and decides whether this machine can resolve them.

A and B are measured in the order A B, B A, A B, ..., so that drift affects A and B equally. In this order, two runs of
the same side also follow each other (B B, A A, ...). These neighbouring runs are the A/A comparison.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb
from typing import Literal

import numpy as np

MIN_PAIRS = 7
_RESAMPLES = 4000

Compare = Callable[[float, float], float]
Limit = Literal["at most", "at least"]
Verdict = Literal["met", "missed", "not decidable here"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Pairs:
    """The values of alternating pairs. Pair i consists of a[i] and b[i]; a[i] was measured first if i is even."""

    a: tuple[float, ...]
    b: tuple[float, ...]


def alternate(a: Callable[[], float], b: Callable[[], float], pairs: int) -> Pairs:
    """Measures `pairs` pairs in the order A B B A."""
    seen_a, seen_b = [], []
    for i in range(pairs):
        if i % 2:
            seen_b.append(b())
            seen_a.append(a())
        else:
            seen_a.append(a())
            seen_b.append(b())
    return Pairs(tuple(seen_a), tuple(seen_b))


def ratio(a: float, b: float) -> float:
    return a / b


def difference(a: float, b: float) -> float:
    return a - b


def compared(pairs: Pairs, compare: Compare) -> Estimate:
    return estimate([compare(a, b) for a, b in zip(pairs.a, pairs.b, strict=True)])


def same(pairs: Pairs, compare: Compare) -> Estimate:
    """Compares each run with the next run of the same side (A/A). The numerator alternates."""
    return neighbours(pairs.a, compare, pairs.b)


def neighbours(a: Sequence[float], compare: Compare, b: Sequence[float] = ()) -> Estimate:
    """Compares neighbours: in a single series, each run with the next run; for two series, see `alternate`."""
    if b:
        columns = (b, a)
        side_by_side = [columns[i % 2][i : i + 2] for i in range(len(a) - 1)]
    else:
        side_by_side = [a[i : i + 2] for i in range(len(a) - 1)]
    return estimate(
        [compare(x, y) if i % 2 else compare(y, x) for i, (x, y) in enumerate(side_by_side)]
    )


def estimate(values: Sequence[float]) -> Estimate:
    """Returns the estimate for values (n,), n >= 1. The bootstrap is seeded, so the same values give the same interval."""
    seen = np.asarray(values, float)
    drawn = np.random.default_rng(0).integers(0, len(seen), (_RESAMPLES, len(seen)))
    low, high = np.percentile(np.median(seen[drawn], axis=1), [2.5, 97.5])
    return Estimate(float(np.median(seen)), float(low), float(high))


def verdict(found: Estimate, aa: Estimate, limit: Limit, bar: float, neutral: float) -> Verdict:
    """Judges a value against its bar. neutral: the ideal A/A, 1 for a ratio and 0 for a difference.

    The verdict is "not decidable" if A/A deviates by more than the distance to the bar, or if the interval contains the
    bar.
    """
    band = max(abs(aa.low - neutral), abs(aa.high - neutral))
    if band > abs(found.value - bar) or found.low <= bar <= found.high:
        return "not decidable here"
    return "met" if (found.value <= bar) == (limit == "at most") else "missed"


def passes_verdict(passed: int, runs: int) -> Verdict:
    """Judges the runs at the bar's rate. Decides only if a fair coin would give such a one-sided result in less than 5
    % of cases.
    """
    tail = sum(comb(runs, k) for k in range(max(passed, runs - passed), runs + 1)) / 2**runs
    if tail >= 0.05:
        return "not decidable here"
    return "met" if 2 * passed > runs else "missed"
