"""Sizes of changes and intervals of means, tested on generated series whose true values are known."""

import math

import numpy as np
import pytest

from harness.core.stats import LEVEL
from harness.results.steady.levels import FEWEST, levels_of, upper_tail
from harness.types import Array

BATCHES = 64
TIME = (np.arange(BATCHES) + 0.5) / BATCHES


def noise(seed: int, deviation: float = 0.01, batches: int = BATCHES) -> Array:
    values: Array = deviation * np.random.default_rng(seed).normal(size=batches)
    return values


@pytest.mark.parametrize(
    ("level", "kind", "begin", "change"),
    [
        (0.2 * (TIME > 0.6), "step", 0.6, 0.2),
        (-0.2 * (TIME > 0.3), "step", 0.3, -0.2),
        (0.2 * TIME, "ramp", 0.0, 0.2),
        (0.2 * np.clip((TIME - 0.5) / 0.5, 0, 1), "ramp", 0.5, 0.2),
        (0.2 * ((TIME > 0.25) & (TIME < 0.5)), "phase", 0.25, 0.2),
        (0.1 * np.sin(2 * math.pi * 3 * TIME), "wave", 0.0, 0.2),
    ],
)
def test_the_form_and_the_size_of_a_change_are_found(
    level: Array, kind: str, begin: float, change: float
) -> None:
    found = levels_of(level + noise(1))
    assert found.shape.kind == kind
    assert found.shape.begin == pytest.approx(begin, abs=0.03)
    size = abs(found.change) if kind == "wave" else found.change
    assert size == pytest.approx(abs(change) if kind == "wave" else change, abs=0.02)
    assert found.beyond(0.1) > 0.999
    assert found.beyond(0.4) < 0.001


def test_a_flat_series_excludes_a_change() -> None:
    found = levels_of(noise(2))
    assert found.beyond(0.05) < 0.001
    low, high = found.mean_interval(LEVEL)
    assert low < 0 < high
    assert high - low == pytest.approx(2 * 2 * 0.01 / math.sqrt(BATCHES), rel=0.5)


def test_constant_values_have_no_change() -> None:
    found = levels_of(np.full(BATCHES, 7.0))
    assert found.beyond(0.01) < 1e-6
    assert found.mean_interval(LEVEL) == pytest.approx((7, 7), rel=1e-4)


def test_the_fewest_batches_are_enough_for_a_large_step() -> None:
    level = 1.0 * (np.arange(FEWEST) >= FEWEST // 2)
    assert levels_of(level + noise(3, 0.05, FEWEST)).beyond(0.5) > 0.99


def test_correlated_noise_is_not_a_certain_change() -> None:
    certain = 0
    for seed in range(50):
        shocks = np.random.default_rng(seed).normal(size=BATCHES)
        level = np.empty(BATCHES)
        value = 0.0
        for i, shock in enumerate(shocks):
            value = 0.8 * value + 0.6 * shock
            level[i] = 0.05 * value
        certain += 1 - levels_of(level).beyond(math.log1p(0.05)) < 0.005
    assert certain <= 1


@pytest.mark.parametrize(
    ("t", "freedom", "tail"),
    [
        (0.0, 5, 0.5),
        (2.0, 60, 0.02501),
        (2.998, 8, 0.00854),
        (-2.0, 10, 0.96331),
        (5.0, 30, 1.2e-5),
    ],
)
def test_the_tail_is_students(t: float, freedom: int, tail: float) -> None:
    assert float(upper_tail(np.array([t]), freedom)[0]) == pytest.approx(tail, rel=0.03)
