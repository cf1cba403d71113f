"""The benchmark `convolution`, which measures the rate of 3x3 convolutions by library, precision and threads."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from harness.machine.characterise.arithmetic.libraries.operations import (
    LIBRARIES,
    PRECISIONS,
    Filter,
    library,
)
from harness.types import Benchmark, Point, Ready

FILTERS = (Filter(1, 256, 28), Filter(8, 64, 56))
"""The first layer is deep inside ResNet-50 and processes one image; the second layer is near the input and processes
eight images.
"""


class Convolution:
    """Measures convolutions. The work at each point is 2 FLOP per multiply-add of the direct convolution."""

    about = "a 3x3 convolution, by library and precision"

    def points(self, threads: int) -> Iterator[Point]:
        for name in LIBRARIES[1:]:  # all libraries except NumPy, which cannot compute convolutions
            for count in sorted({1, threads}):
                for precision in PRECISIONS:
                    for shape in FILTERS:
                        yield _point(name, precision, shape, count)


def _point(name: str, precision: str, shape: Filter, threads: int) -> Point:
    return Point(
        settings={
            "library": name,
            "precision": precision,
            "input": str(shape),
            "threads": threads,
        },
        open=partial(_ready, name, precision, shape, threads),
        work=shape.flop,
        unit="FLOP",
        threads=threads,
    )


@contextmanager
def _ready(name: str, precision: str, shape: Filter, threads: int) -> Iterator[Ready]:
    yield library(name).convolution(shape, precision, threads)


_: type[Benchmark] = Convolution
