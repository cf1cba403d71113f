"""Estimates how much the sum of a run's values varies. Neighbouring values may be correlated. Has no side effects.

Slow changes, such as a queue that fills and empties, affect the sum the most. Such changes appear as power at the
lowest frequencies in the spectrum of the values over time. A constant plus a peak at frequency 0 is fitted to the power
spectrum, for several widths and heights of the peak. The fits are weighted by their likelihood. The power at frequency
0 is the variance of the sum, and the spread between the fits shows how uncertain this variance is.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from harness.types import Array

BLOCKS = 1024
"""Number of blocks of neighbouring values whose sums are the input. If the run has fewer values, each value is a block.
"""

LEAST_BLOCKS = 32
"""With fewer blocks, no spectrum is fitted and the spread is unknown."""

_FREQUENCIES = 256
"""Number of low frequencies to fit. Frequency k has k half periods per run."""

_WIDTHS = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Half widths of a peak, in frequencies. A narrower peak spans too few frequencies to be recognised."""

_HEIGHTS = tuple(2.0**power for power in range(-2, 11))
"""Heights of a peak, as multiples of the constant."""

_FLAT = 0.9
"""Prior probability that values in different blocks are independent."""

_FEWEST_GROUPS, _MOST_GROUPS = 16, 512
"""Limits on the number of groups of blocks. The sums of these groups reveal rare events."""


class Spread(NamedTuple):
    """How much the sum of a run's values varies."""

    variance: float
    """Variance of the sum."""
    freedom: float
    """Degrees of freedom of the estimated variance."""
    events: float
    """Number of equal events at random times that would cause the same variation between stretches of the run; infinite
    if no stretch stands out.
    """


def spread_of(sums: Array) -> Spread | None:
    """Estimates the spread; None with fewer than LEAST_BLOCKS sums. sums: (m,) block sums of the deviations from the
    mean, in time order.

    First removes a linear trend over time, because a steady drift of the machine repeats in every run.
    """
    if len(sums) < LEAST_BLOCKS:
        return None
    rest = _without_trend(np.asarray(sums, np.float64))
    if not np.any(rest):
        return Spread(0.0, math.inf, math.inf)
    power = _power(rest)
    shapes = _shapes(len(power))
    means = shapes.inverse @ power / len(power)
    log_weights = shapes.log_weights - len(power) / 2 * np.log(means)
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    log_variances = np.log(means * shapes.at_zero)
    log_variance = float(weights @ log_variances)
    unsure = float(weights @ (log_variances - log_variance) ** 2) + 2 / len(power)
    events = _events(rest, math.exp(float(weights @ shapes.log_widths)))
    # `unsure` and 1 / events are relative variances of the estimated variance. A relative variance is 2 / freedom.
    return Spread(math.exp(log_variance), 2 / (unsure + 1 / events), events)


def _without_trend(sums: Array) -> Array:
    time = np.arange(len(sums)) - (len(sums) - 1) / 2
    rest: Array = sums - (sums @ time) / (time @ time) * time
    # A residual as small as a rounding error counts as 0.
    return rest if np.abs(rest).max() > 1e-9 * np.abs(sums).max() else np.zeros_like(rest)


def _power(sums: Array) -> Array:
    """Returns (k,) squared cosine coefficients for frequencies 1 to k. For a flat spectrum, the expected value of each
    coefficient is the variance of the sum.
    """
    blocks = len(sums)
    frequency = np.arange(1, min(_FREQUENCIES, blocks // 2) + 1)
    waves = np.fft.rfft(np.concatenate([sums, sums[::-1]]))[frequency]
    cosines = (waves * np.exp(-0.5j * np.pi * frequency / blocks)).real / 2
    power: Array = 2 * cosines**2
    return power


class _Shapes(NamedTuple):
    """Candidate shapes of spectra, each without its scale factor."""

    inverse: Array
    """(shapes, frequencies) 1 / power."""
    at_zero: Array
    """(shapes,) power at frequency 0."""
    log_weights: Array
    """(shapes,) log of the prior plus the part of the likelihood that does not depend on the data."""
    log_widths: Array
    """(shapes,) log of the half width of the peak."""


@lru_cache(maxsize=16)
def _shapes(frequencies: int) -> _Shapes:
    frequency = np.arange(1, frequencies + 1)
    peaks = [(height, width) for width in _WIDTHS if width <= frequencies for height in _HEIGHTS]
    powers = np.array(
        [np.ones(frequencies)]
        + [1 + height / (1 + (frequency / width) ** 2) for height, width in peaks]
    )
    prior = np.array([_FLAT] + [(1 - _FLAT) / len(peaks)] * len(peaks))
    return _Shapes(
        inverse=1 / powers,
        at_zero=np.array([1.0] + [1 + height for height, _ in peaks]),
        log_weights=np.log(prior) - np.log(powers).sum(axis=1) / 2,
        log_widths=np.log([frequencies] + [width for _, width in peaks]),
    )


def _events(sums: Array, width: float) -> float:
    """Estimates the number of events from the excess kurtosis of sums over stretches, with two stretches per frequency
    below `width`. The kurtosis for n events in m stretches is m / n.
    """
    groups = min(max(2 ** round(math.log2(2 * width)), _FEWEST_GROUPS), _MOST_GROUPS)
    groups = min(groups, len(sums))
    grouped = np.add.reduceat(sums, np.arange(groups) * len(sums) // groups)
    squares = grouped**2
    excess = float(np.mean(squares**2) / np.mean(squares) ** 2) - 3
    return groups / excess if excess > 0 else math.inf
