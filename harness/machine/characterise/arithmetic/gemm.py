"""The benchmark `gemm`, which measures the rate of square matrix products by library, precision and threads."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from harness.machine.characterise.arithmetic.libraries.operations import (
    LIBRARIES,
    PRECISIONS,
    library,
)
from harness.types import Benchmark, Point, Ready

SIDES = (256, 512, 1024)
"""Sizes of the matrices. The smallest matrices fit into one core's cache, and the largest keep many threads busy."""


class Gemm:
    """Measures products of square matrices. The work at each point is 2 side^3 FLOP, because a product takes side^3
    multiply-adds.
    """

    about = "products of square matrices, by library and precision"

    def points(self, threads: int) -> Iterator[Point]:
        for name in LIBRARIES:
            for count in sorted({1, threads}):
                for precision in PRECISIONS:
                    for side in SIDES:
                        yield product_point(name, precision, side, count)


def product_point(name: str, precision: str, side: int, threads: int) -> Point:
    return Point(
        settings={"library": name, "precision": precision, "side": side, "threads": threads},
        open=partial(_ready, name, precision, side, threads),
        work=2 * side**3,
        unit="FLOP",
        threads=threads,
    )


@contextmanager
def _ready(name: str, precision: str, side: int, threads: int) -> Iterator[Ready]:
    yield library(name).product(side, precision, threads)


_: type[Benchmark] = Gemm
