"""Reads the energy of a point's calls from the processor's energy counters, if the processor provides them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from harness.errors import HarnessError, one_line
from harness.machine.power.opening import Opened, open_meters
from harness.types import PowerSource

METER = "rapl"
"""The meter whose counters can be read before and after a point."""


def missing() -> str:
    """Returns the reason why energy cannot be read on this machine, or ''."""
    with ExitStack() as stack:
        try:
            open_meters([(METER, "")], stack)
        except HarnessError as e:
            return one_line(e)
    return ""


class Counter:
    """Counts the joules of all processor packages since the counter was created."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._packages = packages(opened.sources)
        self._before = opened.meter.read()

    def joules(self) -> float:
        """Returns the joules so far. Raises OSError, or the exception of a power source that could not be read."""
        after, total = self._opened.meter.read(), 0.0
        for place in self._packages:
            now, then = after[place], self._before[place]
            for reading in (then, now):
                if isinstance(reading, Exception):
                    raise reading
            if not isinstance(then, float) or not isinstance(now, float):
                raise OSError(f"{self._opened.sources[place].name} has no reading")
            total += used(then, now, self._opened.sources[place])
        return total


def packages(sources: Sequence[PowerSource]) -> list[int]:
    """Returns the positions of the processor packages in `sources`. The energy of a package includes the energy of its
    parts, such as the cores.
    """
    whole = [i for i, source in enumerate(sources) if "package" in source.name]
    return [i for i in whole if "/" not in sources[i].name]


def used(before: float, after: float, source: PowerSource) -> float:
    """Returns the joules between two readings of a counter that may have wrapped around to 0 once."""
    wrapped = source.wraps_at_joules or 0.0
    return after - before + (wrapped if after < before else 0.0)


@contextmanager
def counting() -> Iterator[Callable[[], Counter] | None]:
    """Yields a function that starts a counter, or None if no meter works."""
    with ExitStack() as stack:
        try:
            (opened,) = open_meters([(METER, "")], stack)
        except HarnessError:
            yield None
            return
        yield lambda: Counter(opened)
