"""Estimates how much a series' level changed during a run, and how precisely its mean is known. Has no side effects.

The series consists of batch means. The cosine transform of the series is compared with every pair of a *change* and a
*noise*. A change is a step, a ramp, a wave or a phase of any size. A noise is a constant power spectrum plus a peak at
frequency 0, whose width and height represent correlation over any length. Each pair is weighted by its likelihood. The
result is a distribution for the size of the change. Noise that is correlated over a tenth of the run widens this
distribution; a clean step does not.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from harness.types import Array

FEWEST = 16
"""Minimum number of batches."""

_WIDTHS = (1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Half widths of the peak, in half periods per run. The correlation then lasts for about 0.3 / width of the run."""

_NARROW = (0.2, 0.35, 0.5, 0.7, 1)
"""Additional half widths, used only for the interval of the mean. Around a change, such slow noise looks like the
change itself.
"""

_HEIGHTS = tuple(4.0**power for power in range(-1, 7))
"""Heights of the peak, as multiples of the constant."""

_WHITE = 0.5
"""Prior probability that batches are independent."""

_WHITE_OF_MEAN = 0.8
"""Prior probability that batches are independent, used for the interval of the mean. This value is chosen so that the
interval contains the true mean often enough (benchmarks/steady.py), because independent batches cannot rule out a
narrow peak.
"""

_EDGE = 0.1
"""Share of the run at each end in which no step is searched for."""

_LEAST_NOISE = 1e-4
"""A batch mean's standard deviation counts as at least this value, because real clocks and loads are never steadier.
"""


class Levels(NamedTuple):
    """The level of one series, and its change."""

    changes: Array
    """(m,) centres of the distributions for the change. Positive if the level rose."""
    scales: Array
    """(m,) widths of these distributions."""
    weights: Array
    """(m,) probabilities of these distributions."""
    freedom: int
    """Degrees of freedom of Student's t, the form of each distribution."""
    change: float
    """Most probable change."""
    shape: "Shape"
    """Most probable shape."""
    mean: float
    mean_deviations: Array
    """(noises,) standard deviation of the mean for each noise."""
    noise_weights: Array
    """(noises,) probability of each noise."""
    correlation: float
    """Correlation time, as a share of the run; 0 if the batches are independent."""

    def beyond(self, size: float) -> float:
        """Returns the probability that the change has at least this size."""
        t = np.array([(size - self.changes) / self.scales, (size + self.changes) / self.scales])
        return float(self.weights @ upper_tail(t, self.freedom).sum(axis=0))

    def mean_interval(self, level: float) -> tuple[float, float]:
        """Returns the interval that contains the true mean with probability `level`."""
        half = _quantile(self.mean_deviations, self.noise_weights, self.freedom, (1 - level) / 2)
        return self.mean - half, self.mean + half

    @property
    def change_deviation(self) -> float:
        """Standard deviation of the change, given its most probable shape."""
        return math.sqrt(float(self.weights @ self.scales**2))


class Shape(NamedTuple):
    """A form of change, scaled to size 1 over the run."""

    kind: str
    """step, ramp, wave or phase."""
    begin: float
    """Share of the run at which the change begins."""
    end: float
    """Share of the run at which the change ends."""


def levels_of(values: Array) -> Levels:
    """Estimates the level. values: (n,) batch means in the order of time, n >= FEWEST."""
    n = len(values)
    basis, shapes, forms, noises, of_mean = _model(n)
    z = basis @ np.asarray(values, np.float64)
    floor = _LEAST_NOISE**2 * (n - 1)
    free = n - 2
    inverse = 1 / noises.powers
    curvature = inverse @ (forms**2).T  # (noises, shapes)
    sizes = (inverse * z) @ forms.T / curvature
    total = inverse @ z**2
    rest = np.maximum(total[:, None] - sizes**2 * curvature, 0.0) + floor
    log = noises.log_priors[:, None] + shapes.log_priors
    log = log - np.log(curvature) / 2 - free / 2 * np.log(rest)
    weights = np.exp(log - log.max())
    weights /= weights.sum()
    best = int(np.argmax(weights.sum(axis=0)))
    of_best = weights[:, best] / weights[:, best].sum()
    deviations, flat = _of_mean(z, of_mean)
    correlation = float(flat @ of_mean.correlations)
    return Levels(
        changes=sizes.ravel(),
        scales=np.sqrt(rest / free / curvature).ravel(),
        weights=weights.ravel(),
        freedom=free,
        change=float(of_best @ sizes[:, best]),
        shape=shapes.shapes[best],
        mean=float(np.mean(values)),
        mean_deviations=deviations,
        noise_weights=flat,
        correlation=correlation,
    )


def _of_mean(z: Array, noises: "_Noises") -> tuple[Array, Array]:
    """Returns two values per noise, assuming no change: the mean's standard deviation, and the noise's probability."""
    n = len(z) + 1
    total = (1 / noises.powers) @ z**2 + _LEAST_NOISE**2 * (n - 1)
    log = noises.log_priors - (n - 1) / 2 * np.log(total)
    weights = np.exp(log - log.max())
    return np.sqrt(total / (n - 1) * noises.at_zero / n), weights / weights.sum()


class _Shapes(NamedTuple):
    shapes: tuple[Shape, ...]
    log_priors: Array


class _Noises(NamedTuple):
    powers: Array
    """(noises, frequencies) power relative to the constant."""
    at_zero: Array
    """(noises,) power at frequency 0."""
    log_priors: Array
    """(noises,) log prior plus the part of the likelihood that does not depend on the data."""
    correlations: Array
    """(noises,) correlation time as a share of the run; 0 without a peak."""


@lru_cache(maxsize=16)
def _model(n: int) -> tuple[Array, _Shapes, Array, _Noises, _Noises]:
    """Returns the transform (n - 1, n), the shapes, their transforms (shapes, n - 1), the noises for judging a change,
    and the noises for the interval of the mean.
    """
    frequency = np.arange(1, n)[:, None]
    basis = math.sqrt(2 / n) * np.cos(math.pi * frequency * (np.arange(n) + 0.5) / n)
    groups = [_steps(n), _ramps(n), _waves(n), _phases(n)]
    priors = [np.full(len(one), -math.log(len(one))) for one in groups]
    pairs = [pair for one in groups for pair in one]
    forms = np.array([form for _, form in pairs]) @ basis.T
    shapes = _Shapes(tuple(shape for shape, _ in pairs), np.concatenate(priors))
    of_mean = _noises(n, _NARROW + _WIDTHS, _WHITE_OF_MEAN)
    return basis, shapes, forms, _noises(n, _WIDTHS, _WHITE), of_mean


_Pairs = list[tuple[Shape, Array]]


def _steps(n: int) -> _Pairs:
    first = math.ceil(_EDGE * n)
    return [
        (Shape("step", at / n, at / n), (np.arange(n) >= at).astype(np.float64))
        for at in range(first, n - first + 1)
    ]


def _ramps(n: int) -> _Pairs:
    time = (np.arange(n) + 0.5) / n
    ends = [(begin / 8, end / 8) for begin in range(7) for end in range(begin + 2, 9)]
    return [(Shape("ramp", b, e), np.clip((time - b) / (e - b), 0, 1)) for b, e in ends]


def _waves(n: int) -> _Pairs:
    """Returns waves of 0.5 to n / 8 periods. A wave's size is the difference between its highest and lowest level."""
    time = (np.arange(n) + 0.5) / n
    periods = [0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    return [
        (Shape("wave", 0.0, 1 / count), np.cos(2 * math.pi * (count * time + phase / 16)) / 2)
        for count in periods
        if count <= n / 8
        for phase in range(8)
    ]


def _phases(n: int) -> _Pairs:
    """Returns phases, which lie between two steps."""
    time = (np.arange(n) + 0.5) / n
    ends = [(begin / 8, end / 8) for begin in range(1, 7) for end in range(begin + 1, 8)]
    return [(Shape("phase", b, e), ((time >= b) & (time < e)).astype(float)) for b, e in ends]


def _noises(n: int, widths: Sequence[float], white: float) -> _Noises:
    """Returns the noises with these half widths. white: prior probability that batches are independent."""
    frequency = np.arange(1, n)
    peaks = [(h, w) for w in widths if w <= n / 2 for h in _HEIGHTS]
    powers = np.array([np.ones(n - 1), *(1 + h / (1 + (frequency / w) ** 2) for h, w in peaks)])
    prior = np.array([white] + [(1 - white) / len(peaks)] * len(peaks))
    return _Noises(
        powers=powers,
        at_zero=np.array([1.0] + [1 + h for h, _ in peaks]),
        log_priors=np.log(prior) - np.log(powers).sum(axis=1) / 2,
        correlations=np.array([0.0] + [1 / (math.pi * w) for _, w in peaks]),
    )


def upper_tail(t: Array, freedom: float) -> Array:
    """Returns the probability that Student's t exceeds `t`, with an error of about 1 %.

    Sources: Wallace, Annals of Mathematical Statistics 30 (1959); Abramowitz and Stegun, 26.2.17.
    """
    normal = np.sign(t) * (8 * freedom + 1) / (8 * freedom + 3)
    normal *= np.sqrt(freedom * np.log1p(t * t / freedom))
    x = np.abs(normal)
    k = 1 / (1 + 0.2316419 * x)
    terms = (0.319381530, -0.356563782, 1.781477937, -1.821255978, 1.330274429)
    series = k * (terms[0] + k * (terms[1] + k * (terms[2] + k * (terms[3] + k * terms[4]))))
    tail = np.exp(-x * x / 2) / math.sqrt(2 * math.pi) * series
    beyond: Array = np.where(normal >= 0, tail, 1 - tail)
    return beyond


def _quantile(deviations: Array, weights: Array, freedom: float, outside: float) -> float:
    """Returns the bound that a mixture of Student's t distributions exceeds with probability `outside`.
    Uses bisection.
    """
    low, high = 0.0, 100.0 * float(deviations.max())
    for _ in range(60):
        middle = (low + high) / 2
        if float(weights @ upper_tail(middle / deviations, freedom)) > outside:
            low = middle
        else:
            high = middle
    return high
