"""Percentiles and early stopping, as LoadGen counts them."""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from harness.types import Array

MOST_QUERIES = 10**9
"""Nobody runs more; a share of late queries that needs more is as good as too large."""

EARLY_STOPPING_CONFIDENCE = 0.99
"""LoadGen's confidence that the true percentile meets the bound (early_stopping.cc)."""


def percentile_ns(sorted_ns: Sequence[int] | Array, fraction: float) -> int:
    """The latency that `fraction` of the samples do not exceed, with no interpolation.

    sorted_ns: (n,) latencies in ns, ascending, n >= 1.
    fraction: in (0, 1), e.g. 0.99.
    Returns one of the measured values: sorted_ns[floor(n * fraction)].

    Source: mlcommons/inference loadgen/results.cc, PerformanceSummary::ProcessLatencies, at
    commit b66003e: `sample_latencies[sample_count * lp.percentile]`.
    """
    if len(sorted_ns) == 0:
        raise ValueError("no latencies: the run completed no samples")
    if not 0.0 < fraction < 1.0:
        raise ValueError(f"fraction must lie in (0, 1), got {fraction}")
    return int(sorted_ns[int(len(sorted_ns) * fraction)])


def late_allowed(queries: int, percentile: float) -> int:
    """How many of `queries` may be late so that early stopping still passes; -1 when none may run.

    percentile: the target, e.g. 0.99. A query is late when it exceeds the latency bound.
    LoadGen passes when P(X <= late) <= 1 - confidence for X ~ Binomial(queries, 1 - percentile):
    so few late queries would be a rare accident if the true percentile missed the bound.

    Source: mlcommons/inference loadgen/early_stopping.cc, MinPassingQueriesFinder; the table in
    the MLPerf rules (459 queries at p99 with none late, 662 with one) is reproduced by a test.
    """
    late_share = 1.0 - percentile
    mean, deviation = queries * late_share, math.sqrt(queries * late_share * percentile)
    # The 1 % quantile lies below the mean, and nothing that counts lies 12 deviations below it.
    first = max(0, int(mean - 12 * deviation))
    k = np.arange(first, int(mean) + 2)
    steps = np.log((queries - k[:-1]) / (k[:-1] + 1)) + math.log(late_share / percentile)
    logs = _log_binomial(queries, first, late_share) + np.concatenate([[0.0], np.cumsum(steps)])
    at_most = np.cumsum(np.exp(logs))
    allowed = int((at_most <= 1.0 - EARLY_STOPPING_CONFIDENCE).sum())
    return min(first + allowed - 1, queries)


@lru_cache(maxsize=256)
def queries_needed(late: int, percentile: float) -> int:
    """The fewest queries with which early stopping passes although `late` of them are late."""
    if late < 0:
        raise ValueError(f"late must be at least 0, got {late}")
    low, high = late, max(64, 2 * late)
    while late_allowed(high, percentile) < late:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if late_allowed(middle, percentile) >= late:
            high = middle
        else:
            low = middle
    return high


def queries_to_settle(late: int, queries: int, percentile: float) -> int | None:
    """Queries after which early stopping would pass if the share of late ones stayed the same.

    None when that share is not below 1 - percentile: then no number of queries is enough.
    """
    share = late / queries
    if share >= (1.0 - percentile) * (1 - 1e-9):  # 1 - 0.99 is a little more than 0.01
        return None

    def passes(count: int) -> bool:
        return late_allowed(count, percentile) >= math.ceil(share * count)

    low, high = max(queries, 64) - 1, max(queries, 64)
    while not passes(high):
        low, high = high, 2 * high
        if high > MOST_QUERIES:
            return None
    while high - low > max(1, high // 1000):
        middle = (low + high) // 2
        low, high = (low, middle) if passes(middle) else (middle, high)
    return high


def _log_binomial(n: int, k: int, p: float) -> float:
    choose = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return choose + k * math.log(p) + (n - k) * math.log1p(-p)
