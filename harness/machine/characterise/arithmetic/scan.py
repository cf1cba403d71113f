"""The benchmark `scan`, which computes prefix sums of segments by matrix products and by NumPy's cumsum, for several
segment sizes.

Source: Dakkak et al., Accelerating Reduction and Scan Using Tensor Core Units, ICS 2019 (TOPS). If U is upper
triangular and contains only ones, A U contains the prefix sums of each block. The sum of all earlier blocks is then
added to each block.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np

from harness.machine.characterise.arithmetic import segments as sg
from harness.types import Array, Benchmark, Point, Ready

MOST_BLOCK = 64
"""Longer segments are split into blocks of this many elements, because the product needs n times as many additions as
the native scan for a block of n elements.
"""


class Scan:
    about = "prefix sums of segments: as matrix products, and native"

    def points(self, threads: int) -> Iterator[Point]:
        del threads
        return sg.points(_ready)


@contextmanager
def _ready(way: str, segment: int) -> Iterator[Ready]:
    rows = sg.data(segment)
    out = np.empty_like(rows)
    native = partial(np.cumsum, rows, axis=1, out=out)
    call = products(rows, out) if way == sg.PRODUCT else native
    call()
    error = sg.largest_error(out, rows.cumsum(axis=1, dtype=np.float64))
    yield Ready(call, facts={"relative_error": error})


def products(rows: Array, out: Array) -> Callable[[], object]:
    """Returns a function that computes the scan by products. rows, out: (segments, elements per segment) float32,
    contiguous.
    """
    count, segment = rows.shape
    block = min(segment, MOST_BLOCK)
    blocks = segment // block
    upper = np.triu(np.ones((block, block), np.float32))
    before = np.triu(np.ones((blocks, blocks), np.float32), 1)
    flat, sums = rows.reshape(-1, block), out.reshape(-1, block)
    by_segment = out.reshape(count, blocks, block)

    def scan() -> None:
        np.matmul(flat, upper, out=sums)
        if blocks > 1:
            offsets = by_segment[:, :, -1] @ before
            np.add(by_segment, offsets[:, :, None], out=by_segment)

    return scan


_: type[Benchmark] = Scan
