"""Finds the lines in host.csv around a change in the level, and the columns that changed at the same time. Has no side
effects.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from harness.core.units import NS_PER_S

_AROUND = 5
"""Number of rows on each side of the change whose means are compared."""

_FEWEST = 2
"""With fewer rows on either side, no lines are reported."""

_CHANGED = 0.10
"""A column is listed only if its mean changed by at least this share of the larger mean."""

_DEVIATIONS = 3.0
"""A column is listed only if it changed by at least this many standard deviations of its rows around the change."""

_SMOOTHEST = 0.02
"""A column's standard deviation counts as at least this share of the larger mean, because otherwise a column that
hardly varies would always come first.
"""

_LEAST = {"cpu_": 0.05, "measured_cpu_s": 0.05, "_switches": 100.0, "_faults": 100.0}
"""A counter is not listed if it changes by less than this number per second, even from 0, because such a change does
not slow a run down. The keys are the beginnings or endings of column names.
"""

_MOST = 4
"""At most this many columns are listed."""

_GROWING = (
    "cpu_",
    "measured_cpu_s",
    "measured_run_queue_s",
    "cgroup_throttled_s",
    "thermal_throttles",
)
_GROWING_ENDS = ("_switches", "_faults")
"""Endings of the names of columns that only grow. For such columns, the growth per second is compared."""

_FIRST_LINE = 2
"""Line number of the first row, because the column names take the first line."""

Row = Mapping[str, float]


class Column(NamedTuple):
    """A column that changed."""

    name: str
    before: float
    """Mean of the rows before the change; for a counter, the mean growth per second.
    """
    after: float
    deviation: float
    """Standard deviation of the rows, each row relative to the mean on its side of the change."""

    @property
    def deviations(self) -> float:
        """Size of the change, in multiples of `deviation`."""
        smoothest = _SMOOTHEST * max(abs(self.before), abs(self.after))
        return abs(self.after - self.before) / max(self.deviation, smoothest)

    @property
    def is_change(self) -> bool:
        """Whether the change of the column is significant, and large enough to matter."""
        size = abs(self.after - self.before)
        least = (
            n for end, n in _LEAST.items() if self.name.startswith(end) or self.name.endswith(end)
        )
        is_large = size >= _CHANGED * max(abs(self.before), abs(self.after))
        return is_large and size >= max(least, default=0.0) and self.deviations >= _DEVIATIONS


class HostLines(NamedTuple):
    """Lines in host.csv near a point in time."""

    lines: Sequence[int]
    """Line numbers of the last row before the point in time and the first row after it."""
    columns: Sequence[Column]
    """Columns that changed most clearly."""


def host_lines(rows: Sequence[Row], at_ns: int) -> HostLines | None:
    """Returns the lines around a point in time; None with too few rows before or after it. rows: all rows of the log."""
    first = next((i for i, row in enumerate(rows) if row["wall_ns"] > at_ns), len(rows))
    before, after = rows[max(0, first - _AROUND) : first], rows[first : first + _AROUND]
    if min(len(before), len(after)) < _FEWEST:
        return None
    found = [_column(name, before, after) for name in before[-1] if name != "wall_ns"]
    changed = [one for one in found if one is not None and one.is_change]
    changed.sort(key=lambda one: -one.deviations)
    return HostLines((first - 1 + _FIRST_LINE, first + _FIRST_LINE), changed[:_MOST])


def _column(name: str, before: Sequence[Row], after: Sequence[Row]) -> Column | None:
    """Returns the column's levels; None if either side has fewer than two values, or if the column is always 0."""
    is_counter = name.startswith(_GROWING) or name.endswith(_GROWING_ENDS)
    sides = [
        _growths(name, rows) if is_counter else _values(name, rows) for rows in (before, after)
    ]
    if any(len(side) < _FEWEST - is_counter for side in sides):
        return None
    means = [fmean(side) for side in sides]
    if max(map(abs, means)) == 0:
        return None
    squares = [
        (value - mean) ** 2 for side, mean in zip(sides, means, strict=True) for value in side
    ]
    return Column(name, means[0], means[1], math.sqrt(sum(squares) / max(1, len(squares) - 2)))


def _values(name: str, rows: Sequence[Row]) -> list[float]:
    return [row[name] for row in rows if name in row]


def _growths(name: str, rows: Sequence[Row]) -> list[float]:
    """Returns the growth per second from each row to the next. Leaves out rows without the column, and rows at which
    the clock was set back.
    """
    return [
        (row[name] - last[name]) * NS_PER_S / (row["wall_ns"] - last["wall_ns"])
        for last, row in pairwise(rows)
        if name in last and name in row and row["wall_ns"] > last["wall_ns"]
    ]
