"""The highest load that passes: bracketed by doubling, closed in on with short probes, then with
full-length runs, of which the last word is one's that passed. Pure: it only asks.

A probe may be wrong, both ways, and loads need not be monotone: what a probe said is never taken
for the result, full-length runs go up as well as down from it, by steps that grow, but not above
doubling and halving: a run at a thousandth of the rate takes a thousand times as long. A machine's
stall can spoil a run but not mend one, so the failure that bounds the result is asked once more.
"""

from collections.abc import Callable
from math import sqrt
from typing import NamedTuple

Ask = Callable[[float, bool], bool]
"""(load, full) -> whether a short probe, or a full-length run, passed at that load."""

DOUBLING = 2.0
TOLERANCE = 0.02
"""The lowest load known to fail is at most so far above the highest that passed."""

PROBE_TOLERANCE = 0.10
"""Short probes end here: they know no better. Of simulated queues (tests/search/peak/test_peak.py, 36 seeds) 36
were found within 5 % so, 35 where probes went on to 5 % and left fewer full-length runs."""

KEPT_FOR_FULL = 4
"""Of all runs; the probes before them end in time for that."""

MOST_FAILURES = 8
"""Full-length runs beyond the number asked for, while none has passed."""


class Limits(NamedTuple):
    """least, most: of the load. whole: it is a whole number. runs: of all, short and full-length."""

    least: float
    most: float
    runs: int
    whole: bool = False


class Found(NamedTuple):
    """load: the highest that a full-length run passed, None where none did. above: the lowest load
    above it at which a full-length run failed; where none did, at which a probe failed, None without.
    """

    load: float | None
    above: float | None


def search(ask: Ask, start: float, limits: Limits) -> Found:
    """start: the first load to try; from there by doubling or halving."""
    looking = _Search(ask, limits)
    low, high = looking.close_in(start, full=False)
    first = low if low is not None else (high or start) / DOUBLING
    load, above = looking.close_in(first, full=True)
    if load is not None and above is None and high is not None and high > load:
        above = high
    return Found(load, above)


class _Search:
    def __init__(self, ask: Ask, limits: Limits) -> None:
        self._ask = ask
        self._limits = limits
        self._left = limits.runs

    def close_in(self, start: float, *, full: bool) -> tuple[float | None, float | None]:
        """The highest load that passed and the lowest above it that failed, as near as may be.

        In simulated searches where 5 % of the full-length runs and 2 % of the probes failed by accident
        3.2 % missed by 5 % or more; 6.1 % did without asking the bound once more.
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
            else:
                failed.add(load)
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
        """None once nothing is left to try."""
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
        """Four digits, or whole, within the limits."""
        limits = self._limits
        near = round(load) if limits.whole else float(f"{load:.4g}")
        return min(max(near, limits.least), limits.most)
