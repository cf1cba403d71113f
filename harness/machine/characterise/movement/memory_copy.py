"""The benchmark `memory-copy`, which measures the bandwidth of memory copies for several sizes, with warm and cold
caches.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from operator import setitem

import numpy as np

from harness.machine.characterise.buffers import evictor, touched
from harness.types import Array, Benchmark, Point, Ready

EXPONENTS = range(12, 27)
WARM, EVICTED = "warm", "evicted"


class MemoryCopy:
    """Measures copies. The work at each point is the number of copied bytes. A copy reads each byte once and writes it
    once.
    """

    about = "a copy in memory, by size, warm and evicted"

    def points(self, threads: int) -> Iterator[Point]:
        for exponent in EXPONENTS:
            for state in (WARM, EVICTED):
                yield copy_point(2**exponent, state, 1)
        if threads > 1:
            yield copy_point(2 ** EXPONENTS[-1], WARM, threads)


def copy_point(size: int, state: str, threads: int) -> Point:
    return Point(
        settings={"bytes": size, "state": state, "threads": threads},
        open=partial(_ready, size, state, threads),
        work=size,
        unit="B",
        threads=threads,
    )


@contextmanager
def _ready(size: int, state: str, threads: int) -> Iterator[Ready]:
    source, target = touched(size), touched(size)
    if threads == 1:
        between = evictor() if state == EVICTED else None
        # `target[...] = source` is used because it has the least overhead: 60 ns less than `target[:]` or `copyto`
        yield Ready(partial(setitem, target, ..., source), between)
        return
    parts = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))
    with ThreadPoolExecutor(threads) as pool:
        yield Ready(lambda: list(pool.map(_copy, parts)))


def _copy(pair: tuple[Array, Array]) -> None:
    np.copyto(*pair)


_: type[Benchmark] = MemoryCopy
