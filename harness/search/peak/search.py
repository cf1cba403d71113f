"""Finds the highest load that passes. Doubles the load until a run fails, narrows the bracket by bisection with probes,
and confirms the result with full runs.

The search has no side effects except its calls to `ask`. A probe can be wrong in both directions, and a higher load can
pass although a lower one failed. The result is therefore always the load of a full run that passed. Full runs start at
the load that the probes found, and go up or down in growing steps of at most a factor of two, because a run at a
thousandth of the rate takes a thousand times as long. A stall of the machine can make a run fail but never make it
pass, so the failed run that bounds the result is repeated once.
"""

from collections.abc import Callable
from math import sqrt
from typing import NamedTuple

Ask = Callable[[float, bool], bool]
"""Returns whether a short probe (or, if the second argument is True, a full run) passed at the given load."""

DOUBLING = 2.0
TOLERANCE = 0.02
"""The search ends when the highest load that passed and the lowest load that failed differ by at most this share."""

PROBE_TOLERANCE = 0.10
"""The probes end when the two loads differ by at most this share, because probes cannot resolve a smaller difference.
In simulated queues (tests/search/peak/test_peak.py, 36 seeds), all 36 searches came within 5 % of the true load. When
probes continued to 5 %, fewer full runs remained, and only 35 searches came as close.
"""

RUNS = 12
"""A search makes at most this many runs, including calibration, probes and full runs."""

KEPT_FOR_FULL = 4
"""Number of runs that the probes must leave for the full runs."""

MOST_FAILURES = 8
"""At most this many full runs beyond `Limits.runs` are made until one passes."""


class Limits(NamedTuple):
    least: float
    """Lowest load to try."""
    most: float
    """Highest load to try."""
    runs: int
    """Maximum number of probes and full runs together."""
    whole: bool = False
    """Whether the load must be a whole number."""


class Found(NamedTuple):
    load: float | None
    """Highest load at which a full run passed."""
    above: float | None
    """Lowest load above `load` at which a full run failed or, if none failed, at which a probe failed."""


def search(ask: Ask, start: float, limits: Limits) -> Found:
    """Searches for the highest load that passes. start: the first load to try. The following loads are found by doubling
    or halving this load.
    """
    looking = _Search(ask, limits)
    low, high = looking.close_in(start, full=False)
    first = low if low is not None else (high or start) / DOUBLING
    load, above = looking.close_in(first, full=True)
    if load is not None and above is None:
        above = min((at for at in looking.failed if at > load), default=None)
    return Found(load, above)


class _Search:
    def __init__(self, ask: Ask, limits: Limits) -> None:
        self._ask = ask
        self._limits = limits
        self._left = limits.runs
        self.failed: set[float] = set()
        """Loads whose latest run failed."""

    def close_in(self, start: float, *, full: bool) -> tuple[float | None, float | None]:
        """Returns the highest load that passed, and the lowest load above it that failed.

        In simulated searches, 5 % of the full runs and 2 % of the probes failed by accident. Because of these failures,
        3.2 % of the results were wrong by 5 % or more. If the run that bounds the result had not been repeated, 6.1 %
        of the results would have been wrong.
        """
        low = high = None
        failed: set[float] = set()
        twice: set[float] = set()
        step = 1 + TOLERANCE if full else DOUBLING
        load: float | None = self._rounded(start)
        while load is not None and self._may(full=full, passed=low is not None):
            self._left -= 1
            if self._ask(load, full):
                low = load
                failed.discard(load)
                self.failed.discard(load)
            else:
                failed.add(load)
                self.failed.add(load)
            high = min((at for at in failed if low is None or at > low), default=None)
            load = self._next(low, high, step, TOLERANCE if full else PROBE_TOLERANCE)
            step = min(step**2, DOUBLING) if full else step
            if full and load is None and high is not None and high not in twice:
                twice.add(high)
                load, step = high, 1 + TOLERANCE
        return low, high

    def _may(self, *, full: bool, passed: bool) -> bool:
        if not full:
            return self._left > KEPT_FOR_FULL
        return self._left > 0 or (not passed and self._left > -MOST_FAILURES)

    def _next(
        self, low: float | None, high: float | None, step: float, tolerance: float
    ) -> float | None:
        """Returns the next load to try; None if the bracket is narrow enough."""
        limits = self._limits
        if high is None:
            assert low is not None
            up = self._rounded(max(low * step, low + 1 if limits.whole else 0))
            return up if up > low else None
        if low is None:
            down = self._rounded(min(high / step, high - 1 if limits.whole else high))
            return down if down < high else None
        if high <= low * (1 + tolerance):
            return None
        middle = self._rounded(sqrt(low * high))
        return middle if low < middle < high else None

    def _rounded(self, load: float) -> float:
        """Returns the load within the limits, rounded to four digits or to a whole number."""
        limits = self._limits
        near = round(load) if limits.whole else float(f"{load:.4g}")
        return min(max(near, limits.least), limits.most)
