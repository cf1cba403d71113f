"""Computes percentiles and early stopping in the same way as LoadGen, and confidence intervals."""

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist, fmean, stdev

import numpy as np

from harness.types import Array

MOST_QUERIES = 10**9
"""Maximum number of queries that `queries_to_settle` tries. A run never issues more queries."""

LEVEL = 0.95
"""Confidence level of all intervals except in early stopping."""

EARLY_STOPPING_CONFIDENCE = 0.99
"""Confidence with which LoadGen states that the true percentile meets the bound (early_stopping.cc)."""

TRIMMED = 0.2
"""Share of the samples that a trimmed mean omits at each end, as in XSP and Benanza."""


def percentile_ns(sorted_ns: Sequence[int] | Array, fraction: float) -> int:
    """Returns the latency that a share `fraction` of the samples does not exceed, without interpolation.

    sorted_ns: (n,) latencies in ns, ascending, n >= 1. fraction: between 0 and 1, such as 0.99.
    The result is one of the measured values: sorted_ns[floor(n * fraction)].

    Source: mlcommons/inference loadgen/results.cc, PerformanceSummary::ProcessLatencies, at
    commit b66003e: `sample_latencies[sample_count * lp.percentile]`.
    """
    if len(sorted_ns) == 0:
        raise ValueError("no latencies: the run completed no samples")
    if not 0.0 < fraction < 1.0:
        raise ValueError(f"fraction must lie in (0, 1), got {fraction}")
    return int(sorted_ns[int(len(sorted_ns) * fraction)])


def trimmed_mean(values: Sequence[float], share: float = TRIMMED) -> float:
    """Returns the mean after dropping the floor(n * share) lowest and the floor(n * share) highest values.

    Source: DLBricks (Li et al., ICPE 2020), section 4.
    """
    if not values:
        raise ValueError("no values: nothing was measured")
    dropped = int(len(values) * share)
    return fmean(sorted(values)[dropped : len(values) - dropped])


def share_interval(successes: int, tries: int) -> tuple[float, float]:
    """Returns Wilson's confidence interval for a share at the confidence level LEVEL. tries: at least 1.

    Source: Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927).
    """
    z2 = NormalDist().inv_cdf((1 + LEVEL) / 2) ** 2
    share = successes / tries
    middle = share + z2 / (2 * tries)
    half = math.sqrt(z2 * (share * (1 - share) + z2 / (4 * tries)) / tries)
    whole = 1 + z2 / tries
    low, high = (middle - half) / whole, (middle + half) / whole
    # Min and max correct rounding errors.
    return max(0.0, min(low, share)), min(1.0, max(high, share))


def late_allowed(queries: int, percentile: float) -> int:
    """Returns the maximum number of late queries for which early stopping passes, or -1 if `queries` is too small.

    percentile: the target, such as 0.99. A query is late when it exceeds the latency bound. LoadGen passes when P(X <=
    late) <= 1 - confidence for X ~ Binomial(queries, 1 - percentile). If the true percentile missed the bound, so few
    late queries would be very unlikely.

    Source: mlcommons/inference loadgen/early_stopping.cc, MinPassingQueriesFinder. A test reproduces the table in the
    MLPerf rules (at p99, 459 queries if no query is late, 662 if one query is late).
    """
    late_share = 1.0 - percentile
    mean = queries * late_share
    # The result is a 1 % quantile, which is below the mean, so larger counts need not be tested.
    first, at_most = _at_most(queries, late_share, int(mean) + 1)
    allowed = int((at_most <= 1.0 - EARLY_STOPPING_CONFIDENCE).sum())
    return min(first + allowed - 1, queries)


def early_stopping_ns(sorted_ns: Sequence[int] | Array, percentile: float) -> int | None:
    """Returns LoadGen's estimate for a stream's percentile. With 99 % confidence, the true percentile does not exceed
    the estimate.

    sorted_ns: (n,) latencies in ns, ascending. If n is too small for an estimate, returns None.

    Source: mlcommons/inference loadgen/results.cc, PerformanceSummary::EarlyStopping, at commit
    b66003e: `sample_latencies[sample_count - t]`. A test reproduces the values in the golden logs.
    """
    count = len(sorted_ns)
    late = late_allowed(count, percentile) if count else 0
    return int(sorted_ns[count - late]) if late >= 1 else None


def interval_ranks(count: int, fraction: float, level: float) -> tuple[int | None, int | None]:
    """Returns the ranks of two of `count` sorted samples, between which the true percentile lies.

    The percentile lies between these samples with a probability of at least `level` for any distribution of independent
    samples, because the number of samples below the percentile is Binomial(count, fraction). Ranks begin at 0. A rank
    is None if even the first or last sample is too close to the percentile.

    Source: Conover, Practical Nonparametric Statistics, 3rd ed., section 3.2.
    """
    outside = (1.0 - level) / 2
    deviation = math.sqrt(count * fraction * (1.0 - fraction))
    last = min(count, int(count * fraction + 12 * deviation) + 1)
    first, at_most = _at_most(count, fraction, last)
    low = first + int((at_most <= outside).sum()) - 1
    high = first + int((at_most < 1.0 - outside).sum())
    return (low if low >= 0 else None), (high if high < count else None)


def median_interval(
    values: Sequence[float] | Array, level: float = LEVEL
) -> tuple[float | None, float | None]:
    """Returns the bounds of a confidence interval for the median. If there are too few values, a bound is None."""
    ordered = sorted(values)
    ranks = interval_ranks(len(ordered), 0.5, level)
    low, high = (None if rank is None else float(ordered[rank]) for rank in ranks)
    return low, high


@lru_cache(maxsize=256)
def queries_needed(late: int, percentile: float) -> int:
    """Returns the smallest number of queries for which early stopping passes if `late` queries are late."""
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
    """Returns the number of queries after which early stopping would pass if the share of late queries stayed constant.

    Returns None if this share is not below 1 - percentile, because no number of queries would then be enough.
    """
    share = late / queries
    # The factor is needed because 1 - 0.99 is slightly more than 0.01.
    if share >= (1.0 - percentile) * (1 - 1e-9):
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


@lru_cache(maxsize=1024)
def student_t(freedom: int, level: float = LEVEL) -> float:
    """Returns the value t in Student's distribution. A variable with `freedom` degrees of freedom lies between -t and t
    with the probability `level`.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4. The probability is a finite
    sum, and t is found by bisection. Above 10,000 degrees of freedom, t equals the normal distribution's value to four
    digits.
    """
    freedom = min(freedom, 10_000)
    low, high = 0.0, math.pi / 2  # bounds for the angle whose tangent is t / sqrt(freedom)
    for _ in range(60):
        angle = (low + high) / 2
        low, high = (angle, high) if _within_t(angle, freedom) < level else (low, angle)
    return math.sqrt(freedom) * math.tan((low + high) / 2)


def mean_half_width(values: Sequence[float]) -> float:
    """Returns half the width of Student's confidence interval for the mean. values: at least two independent values."""
    return student_t(len(values) - 1) * stdev(values) / math.sqrt(len(values))


def _within_t(angle: float, freedom: int) -> float:
    """Returns the probability that `student_t` uses, for t = sqrt(freedom) * tan(angle)."""
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for k in range(odd + 2, freedom + 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (k - 1) / k
    share = math.sin(angle) * total
    return 2 / math.pi * (angle + share) if odd else share


def _at_most(n: int, p: float, last: int) -> tuple[int, Array]:
    """Returns `first`, and an array of shape (last - first + 1,) with P(X <= k) for k = first, ..., last and X ~
    Binomial(n, p).

    first: 12 standard deviations below the mean, because smaller values have negligible probabilities.
    """
    first = max(0, int(n * p - 12 * math.sqrt(n * p * (1.0 - p))))
    k = np.arange(first, last)
    steps = np.log((n - k) / (k + 1)) + math.log(p / (1.0 - p))
    choose = math.lgamma(n + 1) - math.lgamma(first + 1) - math.lgamma(n - first + 1)
    log_first = choose + first * math.log(p) + (n - first) * math.log1p(-p)
    return first, np.cumsum(np.exp(log_first + np.concatenate([[0.0], np.cumsum(steps)])))
