"""Data and right answers of sums over segments, which `reduction` and `scan` have in common."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial

import numpy as np

from harness.types import Array, Point, Ready

ELEMENTS = 2**22
SEGMENTS = (16, 64, 256, 1024, 4096)
PRODUCT, NATIVE = WAYS = ("matrix product", "native")


def points(ready: Callable[[str, int], AbstractContextManager[Ready]]) -> Iterator[Point]:
    """Each way at each segment. ready: opens a way at a segment. Work: an element."""
    for segment in SEGMENTS:
        for way in WAYS:
            yield Point(
                settings={"way": way, "segment": segment},
                open=partial(ready, way, segment),
                work=ELEMENTS,
                unit="element",
            )


def data(segment: int) -> Array:
    """(ELEMENTS / segment, segment) float32 in [0, 1), seeded."""
    flat = np.random.default_rng(0).random(ELEMENTS, dtype=np.float32)
    return flat.reshape(-1, segment)


def largest_error(answer: Array, right: Array) -> float:
    """Largest relative error; right: float64, no zeros."""
    return float((np.abs(answer - right) / right).max())
