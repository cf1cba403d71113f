"""Computes the energy of a run from the readings of meters within LoadGen's window.

LoadGen logs `power_begin` and `power_end` in UTC at the beginning and the end of the measured part. The meters are read
from the time before the measured process starts until after the process ends.
"""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.core.shown import cells
from harness.core.units import NS_PER_MS, NS_PER_S, show_ns
from harness.types import Array, PowerSource

POWER_CSV = "power.csv"

END_NS = 200 * NS_PER_MS
"""The energy is unknown unless a reading lies within this time of each end of the window."""

GAP_NS = NS_PER_S
"""The energy is unknown if the time between two successive readings exceeds this limit. peak_watts is a mean over
approximately this time.
"""

MOST_JOULES = 1e4
"""A larger increase of a processor's or board's counter within GAP_NS counts as a reset.
"""

MOST_WATTS = 1e6
"""If the mean power of a source over one second exceeds this limit, the source's energy is unknown. A rack full of
accelerators draws one fifth of this power.
"""

_HEADER = ("wall_ns", "source", "joules", "watts")


class Energy(NamedTuple):
    """Energy and power of one source during a window."""

    joules: float
    mean_watts: float
    peak_watts: float
    """The highest mean power over any span of one to two seconds."""
    readings: int
    """Number of readings from which the energy was computed."""


class NoReading(NamedTuple):
    """A window whose energy is unknown, and the reason."""

    reason: str


@dataclass(slots=True)
class PowerLog:
    """The readings of all meters."""

    sources: tuple[PowerSource, ...] = ()
    series: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    """Readings by source name, in the order of reading: wall clock in ns, and joules or watts."""
    idle_ns: tuple[int, int] | None = None
    """Beginning and end of the idle baseline, in ns on the wall clock."""
    faults: dict[str, str] = field(default_factory=dict)
    """The last error of each source, by source name."""

    def energy(self, source: PowerSource, window_ns: tuple[int, int]) -> Energy | NoReading:
        energy = cut(source, self.series.get(source.name, ()), *window_ns)
        fault = self.faults.get(source.name)
        if isinstance(energy, NoReading) and fault:
            return NoReading(f"{energy.reason} ({fault})")
        return energy

    def to_json(self) -> dict[str, Any]:
        """Returns everything except the readings, which are in power.csv."""
        return {
            "sources": [s._asdict() for s in self.sources],
            "idle_ns": self.idle_ns,
            "faults": self.faults,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "PowerLog":
        """Creates a log without readings from the result of `to_json`. Raises the errors in
        harness.core.files.WRONG_CONTENT.
        """
        sources = tuple(PowerSource(**s) for s in values["sources"])
        idle = values["idle_ns"]
        return cls(
            sources,
            {s.name: [] for s in sources},
            (idle[0], idle[1]) if idle else None,
            dict(values["faults"]),
        )

    def read(self, path: Path) -> None:
        """Reads the file that `write` wrote. Raises OSError, or the errors in WRONG_CONTENT."""
        names = {cells.cell(source.name): source.name for source in self.sources}
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                value = float(row["joules"] or row["watts"])
                self.series[names[row["source"]]].append((int(row["wall_ns"]), value))

    def write(self, path: Path) -> None:
        """Writes one row per reading, in chronological order. The unit determines the column of the value."""
        rows = sorted(
            (at_ns, s.name, *((value, "") if s.unit == "J" else ("", value)))
            for s in self.sources
            for at_ns, value in self.series.get(s.name, ())
        )
        with path.open("w", newline="", encoding="utf-8") as file:
            cells.write_rows(file, _HEADER, rows)


def window_ns(log: Mapping[str, Any]) -> tuple[int, int] | None:
    """Returns LoadGen's power_begin and power_end on the wall clock, exact to 1 ms, or None if they are not logged."""
    try:
        begin, end = (utc_ns(log[key]) for key in ("power_begin", "power_end"))
    except (KeyError, TypeError, ValueError):
        return None
    return (begin, end) if begin < end else None


def utc_ns(text: str) -> int:
    """Parses a UTC time as LoadGen and PTDaemon write it: '11-21-2026 03:47:25.453'."""
    at = datetime.strptime(text, "%m-%d-%Y %H:%M:%S.%f").replace(tzinfo=UTC)
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000


def cut(
    source: PowerSource, readings: Sequence[tuple[int, float]], begin_ns: int, end_ns: int
) -> Energy | NoReading:
    """Returns the energy between begin_ns and end_ns. Readings are needed before and after each of these two times.

    Counters are interpolated at both times. The trapezoidal rule integrates power readings. readings: (wall clock
    in ns, joules or watts).
    """
    at = np.array([t for t, _ in readings], np.int64)
    value = np.array([v for _, v in readings], np.float64)
    first = int(np.searchsorted(at, begin_ns, "right")) - 1
    last = int(np.searchsorted(at, end_ns, "left"))
    reason = _unusable(at, first, last, begin_ns, end_ns)
    if reason:
        return NoReading(reason)
    at, value = at[first : last + 1], value[first : last + 1]
    seconds = (at - begin_ns) / 1e9
    if source.unit == "J":
        joules = counted(source, value)
        if isinstance(joules, NoReading):
            return joules
        steps = np.diff(joules)
    else:
        seconds, value = _with_ends(seconds, value, (end_ns - begin_ns) / 1e9)
        steps = (value[1:] + value[:-1]) / 2 * np.diff(seconds)
    total = np.concatenate([[0.0], np.cumsum(steps)])
    return _energy(seconds, total, (end_ns - begin_ns) / 1e9, last - first + 1)


def counted(source: PowerSource, joules: Array) -> Array | NoReading:
    """Returns the counter's readings, starting at 0 and with wrap-arounds removed."""
    steps = np.diff(joules)
    back = steps < 0
    if back.any() and source.wraps_at_joules is None:
        return NoReading("the counter went back, and the value at which it wraps is unknown")
    steps[back] += source.wraps_at_joules or 0.0
    if (steps[back] > MOST_JOULES).any():
        return NoReading("the counter was reset before it was full")
    total: Array = np.concatenate([[0.0], np.cumsum(steps)])
    return total


def _unusable(at: Array, first: int, last: int, begin_ns: int, end_ns: int) -> str:
    """Returns the reason why the readings do not cover the window, or ''.

    first, last: positions of the readings around the window.
    """
    if not len(at):
        return "the meter returned no value"
    if (np.diff(at) <= 0).any():
        return "the wall clock went back between readings"
    if first < 0 or last == len(at):
        late = f"began {show_ns(int(at[0]) - begin_ns)} after the run began"
        short = f"ended {show_ns(end_ns - int(at[-1]))} before the run ended"
        return f"its readings {late if first < 0 else short}"
    for name, end in (("begin", begin_ns), ("end", end_ns)):
        away_ns = int(np.abs(at - end).min())
        if away_ns > END_NS:
            return f"no reading within {show_ns(END_NS)} of the run's {name}: the nearest is {show_ns(away_ns)} away"
    gap_ns = int(np.diff(at[first : last + 1]).max(initial=0))
    if gap_ns > GAP_NS:
        return f"no reading for {show_ns(gap_ns)} in the run; at most {show_ns(GAP_NS)} is allowed"
    return ""


def _with_ends(seconds: Array, watts: Array, length_s: float) -> tuple[Array, Array]:
    """Returns times and powers, with interpolated points added at both ends of the window."""
    inside = seconds[(seconds > 0) & (seconds < length_s)]
    points = np.concatenate([[0.0], inside, [length_s]])
    return points, np.interp(points, seconds, watts)


def _energy(seconds: Array, total: Array, length_s: float, readings: int) -> Energy | NoReading:
    """Returns the energy in the window from 0 to length_s. total: cumulative joules at each time in `seconds`."""

    def until(when: Array | float) -> Any:
        return np.interp(when, seconds, total)

    joules = float(until(length_s) - until(0.0))
    if joules <= 0:
        return NoReading("the counter did not change during the whole run: it does not work here")
    # Equal spans fill the window exactly, so that the highest mean over a span is at least the mean of the window.
    span_s = length_s / max(1, int(length_s * NS_PER_S // GAP_NS))
    ends = np.concatenate([seconds, seconds - span_s, np.arange(0, length_s, span_s)])
    begins = ends[(ends >= 0) & (ends <= length_s - span_s * (1 - 1e-9))].clip(0, length_s - span_s)
    peak = float((until(begins + span_s) - until(begins)).max() / span_s)
    if peak > MOST_WATTS:
        return NoReading(
            f"it read {peak:.2g} W over a second: one source draws at most {MOST_WATTS:.0e} W"
        )
    return Energy(joules, joules / length_s, peak, readings)


def unique(sources: Iterable[PowerSource]) -> list[PowerSource]:
    """Makes the names of sources unique by appending '#2', '#3', ... to repeated names."""
    renamed: list[PowerSource] = []
    for source in sources:
        same = sum(s.name.partition("#")[0] == source.name for s in renamed)
        renamed.append(source._replace(name=f"{source.name}#{same + 1}") if same else source)
    return renamed
