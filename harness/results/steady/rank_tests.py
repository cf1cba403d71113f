"""Tests a short series for a trend or a step, using ranks. The formulas match the formulas in MLPerf Endpoints'
detector.

Source: mlcommons/endpoints, src/inference_endpoint/metrics/steady_state_diagnostics.py at commit
40b78bf (Apache-2.0): `mann_kendall_hamed_rao`, `pettitt`, `_rel_drift`, `batch_means_ci`.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from harness.types import Array

Trend = Literal["up", "down", "steady", "insufficient"]

FEWEST = 4
"""A test needs at least this many values."""

SIGNIFICANT = 0.05
"""Significance level of both tests."""

_Z_95 = 1.96

_T_95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Student's two-sided 95 % bounds for 1 to 30 degrees of freedom. Above 30, the detector uses 1.96."""


class Step(NamedTuple):
    """Result of Pettitt's test for one change point."""

    at: int
    """Number of values before the change."""
    p_value: float

    @property
    def is_significant(self) -> bool:
        return self.p_value < SIGNIFICANT


def trend_of(values: Array) -> Trend:
    """Returns the result of the Mann-Kendall test with the variance of Hamed and Rao (1998). values: (n,)."""
    n = len(values)
    if n < FEWEST:
        return "insufficient"
    later, earlier = np.triu_indices(n, 1)[::-1]
    score = int(np.sign(values[later] - values[earlier]).sum())
    _, tied = np.unique(values, return_counts=True)
    variance = (n * (n - 1) * (2 * n + 5) - int((tied * (tied - 1) * (2 * tied + 5)).sum())) / 18.0
    variance *= _correction(values)
    if variance > 0:
        z = (abs(score) - 1) / math.sqrt(variance) if score else 0.0
        if math.erfc(z / math.sqrt(2.0)) >= SIGNIFICANT:
            return "steady"
    return "up" if score > 0 else "down" if score < 0 else "steady"


def _correction(values: Array) -> float:
    """Returns the factor for the variance, from the significant autocorrelations of the ranks."""
    n = len(values)
    ranks = np.empty(n)
    ranks[np.argsort(values, kind="stable")] = np.arange(1, n + 1)
    rest = ranks - ranks.mean()
    lags = np.arange(1, n)
    correlation = np.correlate(rest, rest, "full")[n:] / float(rest @ rest)
    weights = (n - lags) * (n - lags - 1) * (n - lags - 2)
    counted = np.abs(correlation) > _Z_95 / math.sqrt(n)
    factor = 1.0 + 2.0 / (n * (n - 1) * (n - 2)) * float((weights * correlation)[counted].sum())
    return factor if factor > 0 else 1.0


def step_of(values: Array) -> Step:
    """Returns Pettitt's (1979) change point. values: (n,)."""
    n = len(values)
    if n < FEWEST:
        return Step(0, 1.0)
    _, place, tied = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(tied) - (tied - 1) / 2)[place]  # equal values get their mean rank
    before = np.arange(1, n)
    statistic = np.abs(2.0 * np.cumsum(ranks)[:-1] - before * (n + 1))
    at = int(np.argmax(statistic))
    largest = float(statistic[at])
    p_value = 2.0 * math.exp(-6.0 * largest**2 / (n**3 + n**2))
    return Step(at + 1 if largest > 0 else 0, min(1.0, p_value))


def end_to_end(values: Array) -> float:
    """Returns the change of the fitted line from the first to the last value, as a share of the median."""
    n = len(values)
    time = np.arange(n) - (n - 1) / 2
    squares = float(time @ time)
    slope = float(time @ values) / squares if squares else 0.0
    return slope * (n - 1) / (float(np.median(values)) or 1e-9)


def variation(values: Array) -> float:
    """Returns the population's coefficient of variation; 0 for fewer than two values."""
    mean = float(values.mean()) if len(values) > 1 else 0.0
    return float(values.std()) / abs(mean) if mean else 0.0


def mean_interval(means: Sequence[float] | Array) -> tuple[float, float]:
    """Returns Student's 95 % interval for the mean of independent values. For one value, both ends are this value."""
    values = np.asarray(means, np.float64)
    k, mean = len(values), float(values.mean()) if len(values) else 0.0
    if k < 2:
        return mean, mean
    bound = _T_95[k - 2] if k - 1 <= len(_T_95) else _Z_95
    half = bound * float(values.std(ddof=1)) / math.sqrt(k)
    return mean - half, mean + half
