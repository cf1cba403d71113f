"""Decides whether a run was steady, not steady or undecided. Has no side effects.

A series is *steady* if a change of CHANGED or more is improbable, and *not steady* if a change below TOLERATED is
improbable. If neither kind of change is improbable enough, the run is undecided, and the referee estimates how much
longer the run must be. A series of rare events, such as the tail, can show that something changed but never prove that
nothing did.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from harness.core.stats import LEVEL
from harness.core.units import NS_PER_S
from harness.results.steady.levels import FEWEST, Levels, levels_of
from harness.results.steady.series import Series, Stream, series_of
from harness.types import Array

Verdict = Literal["steady", "not steady", "undecided"]

TOLERATED = 0.04
"""A run counts as not steady only if a change by less than this share is improbable."""

CHANGED = 0.10
"""A run is not steady if its level changes by this share or more. Between TOLERATED and CHANGED, both verdicts are
acceptable.
"""

WRONGLY_STEADY, WRONGLY_CHANGED = 0.005, 0.002
"""Largest accepted probabilities that the verdict `steady` or `not steady` is wrong."""

EVENTS_CHANGED = 1.5
"""A share of slow or failed samples counts as changed if it changes by at least this factor."""

MOST_WARM_UP = 3 / 16
"""Largest share of the run that a slow start may take. The limit for a fast start is MOST_FAST_START."""

MOST_FAST_START = 1 / 16

_START_BATCHES, _START_DEVIATIONS, _START_CHANGE = 2, 3.5, 0.02
"""Limits for dropping the start of a run. The start is dropped while the mean of _START_BATCHES batches differs from
the line through the remaining batches by more than _START_DEVIATIONS deviations and more than _START_CHANGE.
"""

_MOST_TIMES = 100.0
"""An estimate of the necessary length is limited to this multiple of the current length."""

_ENOUGH = 5.5
"""At the estimated length, the distance between the change and the limit is this many standard deviations of the
change. At this distance, about 9 out of 10 simulated runs were decided.
"""


class Judged(NamedTuple):
    """The verdict on one series."""

    name: str
    verdict: Verdict
    change: float
    """Most probable change from the lowest to the highest level, as a share; negative if the level fell."""
    shape: str
    """Form of the most probable change: step, ramp, wave or phase."""
    at_ns: int
    """Time at which the most probable change begins."""
    end_change: float
    """Level of the last quarter minus the mean level, as a share of the mean."""
    half_width: float
    """Half width of the interval for the mean level, as a share, at confidence LEVEL."""
    correlation_s: float
    """Time over which the level is correlated; 0 if batches are independent."""
    times_longer: float
    """Estimated length at which a run would be decided, as a multiple of the actual length; 1 if the run is decided."""


class Refereed(NamedTuple):
    """The verdict on a run."""

    verdict: Verdict
    series: Sequence[Judged]
    """Verdicts on the series, in the order of importance: latency, rate, TTFT, TPOT, tail, failures."""
    warm_up_s: float
    """Time left out at the start, because the run had not reached its level yet."""
    warm_up_change: float
    """Change in the whole run's mean latency, as a share, that the time in `warm_up_s` causes."""
    judged_s: float
    """Length of the remaining part of the run, which was judged."""
    needed_s: float | None
    """Estimated length at which a run would be decided; None for a decided run."""

    @property
    def cause(self) -> Judged | None:
        """The first series that changed; None if the run is steady or undecided."""
        return next((one for one in self.series if one.verdict == "not steady"), None)


def referee(stream: Stream) -> Refereed | None:
    """Returns the verdict; None if the run has too few samples for any verdict."""
    found = series_of(stream)
    if "latency" not in found:
        return None
    latency = found["latency"]
    left_out = _warm_up(latency.values)
    added = float(latency.values.mean() - latency.values[left_out:].mean())
    begin_ns = int(stream.issued_ns[0])
    from_ns = int(latency.begins_ns[left_out]) if left_out else begin_ns
    end_ns = int(stream.issued_ns[-1] + stream.latency_ns[-1])
    scale = (end_ns - begin_ns) / max(1, end_ns - from_ns)
    judged = [
        one for each in found.values() if (one := _judged(each, from_ns, end_ns, scale)) is not None
    ]
    verdict = _verdict(judged)
    times = max((one.times_longer for one in judged), default=1.0)
    return Refereed(
        verdict=verdict,
        series=judged,
        warm_up_s=(from_ns - begin_ns) / NS_PER_S,
        warm_up_change=math.expm1(added),
        judged_s=(end_ns - from_ns) / NS_PER_S,
        needed_s=times * (end_ns - begin_ns) / NS_PER_S if verdict == "undecided" else None,
    )


def _verdict(judged: Sequence[Judged]) -> Verdict:
    verdicts = {one.verdict for one in judged}
    if "not steady" in verdicts:
        return "not steady"
    return "undecided" if "undecided" in verdicts else "steady"


def _warm_up(values: Array) -> int:
    """Returns the number of batches at the start that lie off the line through the remaining batches.

    A line fits a ramp as well as a constant level, so a ramp never counts as a warm-up. If the start does not end
    within its limit, nothing is left out, because the run never reached a level.
    """
    n = len(values)
    noise = 1.4826 * float(np.median(np.abs(np.diff(values)))) / math.sqrt(2)
    limit = max(_START_CHANGE, _START_DEVIATIONS * noise * math.sqrt(1 / _START_BATCHES + 4 / n))
    first = 0.0
    for begin in range(int(n * MOST_WARM_UP) + 1):
        off = _off_the_line(values[begin:])
        first = off if begin == 0 else first
        if abs(off) <= limit or off * first < 0:
            most = MOST_WARM_UP if first > 0 else MOST_FAST_START
            fits = begin <= n * most and n - begin >= FEWEST
            return begin if fits else 0
    return 0


def _off_the_line(values: Array) -> float:
    """Returns how far the first batches lie above the line through the remaining batches."""
    rest = values[_START_BATCHES:]
    time = np.arange(len(rest)) - (len(rest) - 1) / 2
    slope = float(time @ rest) / float(time @ time)
    line = float(rest.mean()) + slope * (float(time[0]) - (_START_BATCHES + 1) / 2)
    return float(values[:_START_BATCHES].mean()) - line


def _judged(series: Series, from_ns: int, end_ns: int, scale: float) -> Judged | None:
    """Judges one series. scale: the run's length divided by the judged length. The scale matters because a ramp also
    grew in the part that was left out.
    """
    kept = series.begins_ns >= from_ns
    values, begins_ns = series.values[kept], series.begins_ns[kept]
    if len(values) < FEWEST:
        return None
    levels = levels_of(values)
    verdict, times = _decided(levels, scale, counts=series.counts)
    low, high = levels.mean_interval(LEVEL)
    shape = levels.shape
    return Judged(
        name=series.name,
        verdict=verdict,
        change=math.expm1(levels.change),
        shape=shape.kind,
        at_ns=int(begins_ns[min(len(values) - 1, round(shape.begin * len(values)))]),
        end_change=math.expm1(float(values[-(len(values) // 4) :].mean()) - levels.mean),
        half_width=math.expm1((high - low) / 2),
        correlation_s=levels.correlation * (end_ns - from_ns) / NS_PER_S,
        times_longer=times,
    )


def _decided(levels: Levels, scale: float, *, counts: bool) -> tuple[Verdict, float]:
    """Returns the verdict, and the necessary length of the run as a multiple of its actual length."""
    least = math.log(EVENTS_CHANGED) if counts else math.log1p(TOLERATED)
    if 1 - levels.beyond(least) < WRONGLY_CHANGED:
        return "not steady", 1.0
    if counts:
        return "steady", 1.0
    most = math.log1p(CHANGED) / scale
    if levels.beyond(most) < WRONGLY_STEADY:
        return "steady", 1.0
    size, deviation = abs(levels.change), levels.change_deviation
    # Two deviations are subtracted, because the likeliest of many possible changes has about this size even in pure noise.
    to_steady = (most - max(0.0, size - 2 * deviation)) / _ENOUGH
    to_changed = (size - least) / _ENOUGH
    precise = max(to_steady, to_changed)
    times = (deviation / precise) ** 2 if precise > 0 else _MOST_TIMES
    return "undecided", min(_MOST_TIMES, max(1.25, times))
