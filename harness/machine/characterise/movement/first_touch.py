"""The benchmark `first-touch`, which compares the cost of the first write to new pages with the cost of later writes."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from harness.machine.characterise.buffers import pages, touched
from harness.types import Array, Benchmark, Point, Ready

SIZES = (2**16, 2**20, 2**24, 2**26)
NEW, TOUCHED = "new", "touched"


class FirstTouch:
    about = "the first write to new pages, compared with later writes"

    def points(self, threads: int) -> Iterator[Point]:
        del threads
        for size in SIZES:
            for state in (NEW, TOUCHED):
                yield Point(
                    settings={"bytes": size, "pages": state},
                    open=partial(_ready, size, state),
                    work=size,
                    unit="B",
                )


@contextmanager
def _ready(size: int, state: str) -> Iterator[Ready]:
    if state == TOUCHED:
        array = touched(size)
        yield Ready(partial(array.fill, 1))
        return
    fresh = _Fresh(size)
    yield Ready(fresh.write, fresh.renew)


class _Fresh:
    """Pages that are mapped again before each write; neither mapping nor unmapping is timed."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._array: Array = pages(size)

    def renew(self) -> None:
        del self._array
        self._array = pages(self._size)

    def write(self) -> None:
        self._array.fill(1)


_: type[Benchmark] = FirstTouch
