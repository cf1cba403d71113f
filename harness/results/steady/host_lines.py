"""Finds the lines of host.csv around a change of the level, and the columns that changed at the same time. Pure."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from harness.core.units import NS_PER_S

_AROUND = 5
"""Number of rows on each side over which the means are compared."""

_FEWEST = 2
"""Minimum number of rows on each side."""

_CHANGED = 0.10
"""Smallest change of a column, as a share of the larger mean."""

_MOST = 4
"""Largest number of listed columns."""

_GROWING = ("cpu_", "measured_cpu_s", "cgroup_throttled_s", "thermal_throttles")
_GROWING_ENDS = ("_switches", "_faults")
"""Endings of columns that only grow. Their growth per second is compared."""

_FIRST_LINE = 2
"""Line number of the first row. The column names are above it."""

Row = Mapping[str, float]


class Column(NamedTuple):
    """A column that changed."""

    name: str
    before: float
    """Mean of the rows before the change. A counter has the mean growth per second."""
    after: float

    @property
    def size(self) -> float:
        return abs(self.after - self.before) / max(abs(self.before), abs(self.after))


class HostLines(NamedTuple):
    """Lines of host.csv near a time."""

    lines: Sequence[int]
    """Line numbers of the last row before the time and the first row after it."""
    columns: Sequence[Column]
    """Columns that changed most."""


def host_lines(rows: Sequence[Row], at_ns: int) -> HostLines | None:
    """Returns the lines around a time; None with too few rows before or after it. rows: all rows of the log."""
    first = next((i for i, row in enumerate(rows) if row["wall_ns"] > at_ns), len(rows))
    before, after = rows[max(0, first - _AROUND) : first], rows[first : first + _AROUND]
    if min(len(before), len(after)) < _FEWEST:
        return None
    found = [_column(name, before, after) for name in before[-1] if name != "wall_ns"]
    changed = [one for one in found if one is not None and one.size >= _CHANGED]
    changed.sort(key=lambda one: -one.size)
    return HostLines((first - 1 + _FIRST_LINE, first + _FIRST_LINE), changed[:_MOST])


def _column(name: str, before: Sequence[Row], after: Sequence[Row]) -> Column | None:
    mean = _growth if name.startswith(_GROWING) or name.endswith(_GROWING_ENDS) else _mean
    values = mean(name, before), mean(name, after)
    if any(math.isnan(value) for value in values) or max(map(abs, values)) == 0:
        return None
    return Column(name, *values)


def _mean(name: str, rows: Sequence[Row]) -> float:
    values = [row[name] for row in rows if name in row]
    return fmean(values) if values else math.nan


def _growth(name: str, rows: Sequence[Row]) -> float:
    span_ns = rows[-1]["wall_ns"] - rows[0]["wall_ns"]
    if name not in rows[0] or name not in rows[-1] or span_ns <= 0:  # the clock was set back
        return math.nan
    return (rows[-1][name] - rows[0][name]) * NS_PER_S / span_ns
