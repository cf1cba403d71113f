"""Defines the points, data and errors for sums over segments, for `reduction` and `scan`."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial

import numpy as np

from harness.types import Array, Point, Ready

ELEMENTS = 2**22
SEGMENTS = (16, 64, 256, 1024, 4096)
PRODUCT, NATIVE = WAYS = ("matrix product", "native")


def points(ready: Callable[[str, int], AbstractContextManager[Ready]]) -> Iterator[Point]:
    """Yields one point per method and segment size.

    The work at each point is the number of elements. ready: prepares a method for a segment size.
    """
    for segment in SEGMENTS:
        for way in WAYS:
            yield Point(
                settings={"way": way, "segment": segment},
                open=partial(ready, way, segment),
                work=ELEMENTS,
                unit="element",
            )


def data(segment: int) -> Array:
    """Returns seeded float32 numbers in [0, 1), of shape (ELEMENTS / segment, segment)."""
    flat = np.random.default_rng(0).random(ELEMENTS, dtype=np.float32)
    return flat.reshape(-1, segment)


def largest_error(answer: Array, right: Array) -> float:
    """Returns the largest relative error. right: float64 without zeros."""
    return float((np.abs(answer - right) / right).max())
