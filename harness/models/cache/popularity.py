"""Computes the share of requests that each model gets: Zipf, Pareto or measured counts."""

from collections.abc import Sequence

import numpy as np

from harness.types import Array

TOP = 0.2
"""Share of the models whose requests `top_share` adds up."""

DRAWN_BY_PARETO = 0x7_1245
"""Separates Pareto's draws from other draws with the run's seed."""


def zipf(models: int, exponent: float) -> Array:
    """Returns (models,) float64 that add up to 1: the share of rank r is proportional to r ** -exponent."""
    return _shares(np.arange(1, models + 1, dtype=np.float64) ** -exponent)


def pareto(models: int, alpha: float, seed: int) -> Array:
    """Returns (models,) float64, descending, that add up to 1: proportional to draws from Pareto's distribution.

    alpha: its exponent, above 0; at 1.16 the top 20 % of many draws have about 80 % of the sum.
    """
    draws = np.random.default_rng([DRAWN_BY_PARETO, seed]).pareto(alpha, models) + 1
    return _shares(np.sort(draws)[::-1])


def measured(counts: Sequence[int]) -> Array:
    """Returns (models,) float64 that add up to 1. counts: requests per model, not all 0."""
    return _shares(np.asarray(counts, np.float64))


def top_share(shares: Array) -> float:
    """Returns the share of requests that the most popular 20 % of the models (at least one model) get."""
    top = max(1, round(TOP * len(shares)))
    return float(np.sort(shares)[::-1][:top].sum())


def allotted(shares: Array, slots: int) -> Array:
    """Returns (models,) int64 that add up to `slots`, as proportional to the shares as whole numbers can be.

    Rounds by largest remainders; if two are equal, the earlier model gets the slot.
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
