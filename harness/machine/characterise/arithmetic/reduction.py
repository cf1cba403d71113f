"""The benchmark `reduction`, which sums segments by a matrix product and by NumPy's sum, for several segment sizes.

Source: Dakkak et al., Accelerating Reduction and Scan Using Tensor Core Units, ICS 2019 (TOPS).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np

from harness.machine.characterise.arithmetic import segments as sg
from harness.types import Benchmark, Point, Ready


class Reduction:
    """Computes sums on one thread.

    The matrix product multiplies the segments by a vector of ones. The work at each point is one addition per element.
    """

    about = "sums of segments: as a matrix product, and native"

    def points(self, threads: int) -> Iterator[Point]:
        del threads
        return sg.points(_ready)


@contextmanager
def _ready(way: str, segment: int) -> Iterator[Ready]:
    rows = sg.data(segment)
    out = np.empty(len(rows), np.float32)
    ones = np.ones(segment, np.float32)
    product = partial(np.matmul, rows, ones, out=out)
    native = partial(np.sum, rows, axis=1, out=out)
    call = product if way == sg.PRODUCT else native
    call()
    error = sg.largest_error(out, rows.sum(axis=1, dtype=np.float64))
    yield Ready(call, facts={"relative_error": error})


_: type[Benchmark] = Reduction
