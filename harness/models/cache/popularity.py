"""Computes each model's share of the requests from Zipf's law, a Pareto distribution or measured counts."""

from collections.abc import Sequence

import numpy as np

from harness.types import Array

TOP = 0.2
"""Fraction of the set that counts as its most popular models in `top_share`."""

DRAWN_BY_PARETO = 0x7_1245
"""A constant that is combined with the run's seed, so that the Pareto draws are independent of other draws from this
seed.
"""


def zipf(models: int, exponent: float) -> Array:
    """Returns shares that sum to 1, (models,) float64. The share of rank r is proportional to r ** -exponent."""
    return _shares(np.arange(1, models + 1, dtype=np.float64) ** -exponent)


def pareto(models: int, alpha: float, seed: int) -> Array:
    """Returns descending shares that sum to 1, (models,) float64, proportional to draws from a Pareto distribution.
    alpha: the exponent of the distribution, above 0. At alpha = 1.16, the largest 20 % of many draws make up about 80 %
    of the sum.
    """
    draws = np.random.default_rng([DRAWN_BY_PARETO, seed]).pareto(alpha, models) + 1
    return _shares(np.sort(draws)[::-1])


def measured(counts: Sequence[int]) -> Array:
    """Returns shares that sum to 1, (models,) float64. counts: requests per model, not all 0."""
    return _shares(np.asarray(counts, np.float64))


def top_share(shares: Array) -> float:
    """Returns the fraction of requests for the most popular 20 % of the models (at least one model)."""
    top = max(1, round(TOP * len(shares)))
    return float(np.sort(shares)[::-1][:top].sum())


def allotted(shares: Array, slots: int) -> Array:
    """Divides `slots` among the models in proportion to the shares, (models,) int64. Rounds by the largest-remainder
    method. If two remainders are equal, the earlier model gets the slot.
    """
    exact = shares * slots
    whole: Array = np.floor(exact).astype(np.int64)
    most = np.argsort(-(exact - whole), kind="stable")
    whole[most[: slots - int(whole.sum())]] += 1
    return whole


def _shares(weights: Array) -> Array:
    total = float(weights.sum())
    if not total > 0 or (weights < 0).any():
        raise ValueError("popularity: the weights must not be negative, and one must be above 0")
    shares: Array = weights / total
    return shares
