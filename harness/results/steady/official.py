"""Finds the steady-state window according to MLPerf Endpoints, with the constants of its detector. Has no side effects.

A *pass* (a super-pass in the rules) is a block of samples in the order of issue, usually one pass over the dataset.
First, the warm-up passes are dropped. A window then grows to the right as long as TPOT has no trend and varies little.
The first window that is long enough is reported. docs/steady.md shows what this rule misses.

Source: mlcommons/endpoints, src/inference_endpoint/metrics/steady_state_diagnostics.py at commit
40b78bf (Apache-2.0), profiles `concurrency` and `poisson`: `build_super_pass_series`, `adaptive_warmup`,
`segment_plateaus`, `min_steady_duration`, `detect_level_shift`, `build_steady_state`.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from harness.core.units import NS_PER_S
from harness.results.steady.rank_tests import (
    FEWEST,
    Trend,
    end_to_end,
    mean_interval,
    step_of,
    trend_of,
    variation,
)
from harness.types import Array

GATED = (("tpot_p50", 0.5), ("tpot_p90", 0.9))
"""Series that determine the window. TTFT and latency do not affect the window."""

WATCHED = (("tpot_p50", 0.5), ("tpot_p90", 0.9), ("ttft_p50", 0.5), ("ttft_p90", 0.9))
"""Series whose trend, from the window to the end of the run, is reported."""

LARGEST_CHANGE = 0.05
"""A significant trend ends a window if the fitted line changes by at least this share of the median."""

LARGEST_VARIATION = 0.08
"""A window ends if the coefficient of variation of any of its series exceeds this value."""

WARM_UP_BAND = 0.05
"""Leading passes are dropped while their tpot_p50 differs from the level of the second half by more than this share."""

MOST_WARM_UP = 0.5
"""The warm-up takes at most this share of the passes. At least one pass is always dropped."""

SHIFT = 0.05
"""A later window counts as an anomaly if its mean TPOT differs from the reported window's by more than this share, and
if Pettitt's test is significant.
"""

PRECISION = 0.05
"""A window needs enough passes for the half width of its 95 % interval to reach this value."""

RELAXATIONS = 5.0
"""A window must last at least this multiple of the p90 latency."""

FLOOR_S = 600.0
"""A window must last at least this many seconds."""

Status = Literal["windowable", "insufficient_duration", "insufficient_passes", "partial_dataset"]
"""Values of `steady_state.status` in point.yaml."""

_Z_95 = 1.96


class Samples(NamedTuple):
    """A run's samples in the order of issue. Every array is (n,), with NaN for a missing time."""

    issued_ns: Array
    ttft_ns: Array
    """Time from issue to the first chunk."""
    tpot_ns: Array
    """Time after the first chunk, divided by the number of later tokens; NaN for a sample without later tokens."""
    latency_ns: Array
    """Time from issue to completion."""
    tokens: Array
    """Output tokens after the first chunk."""


class Duration(NamedTuple):
    """The duration that a window needs, which is the largest of three terms."""

    window_s: float
    """Time from the first to the last issue of the window."""
    precision_s: float
    """Duration that precision requires; 0 if the minimum number of passes is precise enough."""
    relaxation_s: float
    floor_s: float

    @property
    def needed_s(self) -> float:
        return max(self.precision_s, self.relaxation_s, self.floor_s)

    @property
    def dominant(self) -> str:
        """The largest term: precision, relaxation or floor."""
        terms = {"precision": self.precision_s, "relaxation": self.relaxation_s}
        return next((name for name, s in terms.items() if s == self.needed_s), "floor")

    @property
    def is_short(self) -> bool:
        return self.window_s < self.needed_s


class Window(NamedTuple):
    """The steady-state window. Passes count from 0 at the start of the run."""

    first_pass: int
    end_pass: int
    """The first pass after the window."""
    samples: int
    """Number of samples in the window with a TTFT."""
    duration: Duration
    skipped_short: int
    """Number of earlier windows that were too short."""
    plateaus: int
    """Number of windows of any duration."""
    per_user_tps: float
    """1 / mean TPOT."""
    per_user_interval: tuple[float, float]
    system_tps: float
    """Tokens after the first chunk, divided by the window's duration."""
    system_interval: tuple[float, float]


class Shift(NamedTuple):
    """A later window at a different level, called an anomaly in the rules."""

    at_pass: int
    """The first pass after the change, from 0 at the start of the run."""
    change: float
    """Change in the mean TPOT, as a share of the reported window's mean TPOT."""


class Official(NamedTuple):
    """The rule's result."""

    is_found: bool
    reason: str | None
    """Why no window was found; None if a window was found."""
    passes: int
    """Number of passes in the run. The last pass may be incomplete."""
    warm_up_passes: int
    """Number of passes that were dropped at the start."""
    window: Window | None
    """The window, or, if all candidates are too short, the longest one; None without a candidate."""
    trends: Mapping[str, Trend]
    """Maps each series of WATCHED to its trend from the window to the end of the run."""
    shift: Shift | None
    status: Status | None
    """Value of `status` for point.yaml; None if there are enough passes but no window, because the rules define no
    status for this case.
    """

    @property
    def drifts_up(self) -> Sequence[str]:
        return [name for name, trend in self.trends.items() if trend == "up"]

    @property
    def is_clean(self) -> bool:
        """Whether a window was found, without an anomaly and without a drift warning."""
        return self.is_found and self.shift is None and not self.drifts_up


def judge(samples: Samples, pass_samples: int) -> Official:
    """Returns the official verdict. pass_samples: number of samples per pass, usually the size of the dataset; must be
    at least 1.
    """
    if pass_samples < 1:
        raise ValueError(f"a pass has at least 1 sample, got {pass_samples}")
    run = _Passes(samples, pass_samples)
    warm_up = min(_warm_up(run.series["tpot_p50"]), len(run))
    rest = run.since(warm_up)
    plateaus = _plateaus(rest)
    durations = [rest.duration(*plateau) for plateau in plateaus]
    chosen = next((i for i, one in enumerate(durations) if not one.is_short), None)
    found = chosen is not None
    if chosen is None and plateaus:
        chosen = max(range(len(plateaus)), key=lambda i: durations[i].window_s)
    trends = rest.trends(plateaus[chosen][0] if chosen is not None else 0)
    window, shift, reason = None, None, "no admissible steady plateau"
    if chosen is not None:
        window = _window(rest, plateaus, durations, chosen, warm_up)
        shift = _shift(rest, plateaus, chosen, warm_up)
        reason = _too_short(durations, chosen)
    return Official(
        is_found=found,
        reason=None if found else reason,
        passes=len(run),
        warm_up_passes=warm_up,
        window=window,
        trends=trends,
        shift=shift,
        status=_status(len(samples.issued_ns), pass_samples, window, found=found),
    )


class _Passes:
    """A run's passes and their series."""

    def __init__(self, samples: Samples, size: int, first: int = 0) -> None:
        """Divides the samples into passes of `size` samples. first: the first pass to use."""
        self._all, self._size = samples, size
        self._samples = Samples(*(one[first * size :] for one in samples))
        self._begins = range(0, len(self._samples.issued_ns), size)

    def __len__(self) -> int:
        return len(self._begins)

    def since(self, first: int) -> "_Passes":
        return _Passes(self._all, self._size, first)

    def pooled(self, name: str, low: int, high: int) -> Array:
        """Returns the values in passes low to high, without missing values."""
        values = getattr(self._samples, name)[low * self._size : high * self._size]
        present: Array = values[np.isfinite(values)]
        return present

    @cached_property
    def series(self) -> Mapping[str, Array]:
        """Maps each series of WATCHED to its (passes,) percentiles, with NaN for a pass without values."""
        sorted_by_kind = {
            kind: [np.sort(self.pooled(f"{kind}_ns", i, i + 1)) for i in range(len(self))]
            for kind in ("tpot", "ttft")
        }
        return {
            name: np.array([_lower(v, share) for v in sorted_by_kind[name.partition("_")[0]]])
            for name, share in WATCHED
        }

    @cached_property
    def tpot_means(self) -> Array:
        """(passes,) mean TPOT of each pass; 0 for a pass without tokens."""
        pooled = (self.pooled("tpot_ns", i, i + 1) for i in range(len(self)))
        return np.array([float(one.mean()) if len(one) else 0.0 for one in pooled])

    def issue_s(self, low: int, high: int) -> float:
        """Returns the time from the first to the last issue in passes low to high."""
        issued = self._samples.issued_ns[low * self._size : high * self._size]
        return float(issued.max() - issued[0]) / NS_PER_S if len(issued) else 0.0

    def tokens(self, low: int, high: int) -> int:
        return int(self._samples.tokens[low * self._size : high * self._size].sum())

    def rate(self, low: int, high: int) -> float:
        """Returns the tokens per second in passes low to high; 0 if they take no time."""
        spent_s = self.issue_s(low, high)
        return self.tokens(low, high) / spent_s if spent_s > 0 else 0.0

    def trends(self, first: int) -> Mapping[str, Trend]:
        return {
            name: trend_of(values[first:][np.isfinite(values[first:])])
            for name, values in self.series.items()
        }

    def duration(self, low: int, high: int) -> Duration:
        """Returns the duration that the window needs."""
        tpot = self.series["tpot_p50"][low:high]
        spans_s = [span for i in range(low, high) if (span := self.issue_s(i, i + 1)) > 0]
        passes = max(math.ceil((_Z_95 * variation(tpot) / PRECISION) ** 2), FEWEST)
        latency_ns = _lower(np.sort(self.pooled("latency_ns", low, high)), 0.9)
        return Duration(
            window_s=self.issue_s(low, high),
            precision_s=passes * float(np.median(spans_s)) if passes > FEWEST and spans_s else 0.0,
            relaxation_s=RELAXATIONS * latency_ns / NS_PER_S if math.isfinite(latency_ns) else 0.0,
            floor_s=FLOOR_S,
        )


def _lower(ordered: Array, share: float) -> float:
    """Returns the percentile of ascending values without interpolation; NaN without values."""
    return float(ordered[int(share * (len(ordered) - 1))]) if len(ordered) else math.nan


def _warm_up(tpot: Array) -> int:
    """Returns the number of leading passes to drop. tpot: (passes,)."""
    values = tpot[np.isfinite(tpot)]
    n = len(values)
    if n < FEWEST:
        return 1
    level = float(np.median(values[n // 2 :])) or 1e-9
    most = max(1, int(n * MOST_WARM_UP))
    off = np.abs(values - level) / level > WARM_UP_BAND
    leading = n if off.all() else int(np.argmin(off))
    return max(1, min(most, leading))


def _plateaus(passes: _Passes) -> list[tuple[int, int]]:
    """Returns all windows. Each window grows from its start for as long as the rule permits. The search for the next
    window starts at the end of the previous window.
    """
    found, start = [], 0
    while start <= len(passes) - FEWEST:
        end = start + FEWEST - 1
        while end < len(passes) and _is_admissible(passes, start, end + 1):
            end += 1
        if end >= start + FEWEST:
            found.append((start, end))
            start = end
        else:
            start += 1
    return found


def _is_admissible(passes: _Passes, low: int, high: int) -> bool:
    for name, _ in GATED:
        values = passes.series[name][low:high]
        if not np.isfinite(values).all() or variation(values) > LARGEST_VARIATION:
            return False
        if abs(end_to_end(values)) >= LARGEST_CHANGE and trend_of(values) != "steady":
            return False
    return True


def _window(
    passes: _Passes,
    plateaus: Sequence[tuple[int, int]],
    durations: Sequence[Duration],
    chosen: int,
    warm_up: int,
) -> Window:
    low, high = plateaus[chosen]
    mean_ns = float(passes.pooled("tpot_ns", low, high).mean())
    fast_ns, slow_ns = mean_interval(passes.tpot_means[low:high])
    rate = passes.rate(low, high)
    rates = [one for i in range(low, high) if (one := passes.rate(i, i + 1))]
    slowest, fastest = mean_interval(rates)
    half = (fastest - slowest) / 2
    return Window(
        first_pass=warm_up + low,
        end_pass=warm_up + high,
        samples=len(passes.pooled("ttft_ns", low, high)),
        duration=durations[chosen],
        skipped_short=sum(one.is_short for one in durations[:chosen]),
        plateaus=len(plateaus),
        per_user_tps=_per_second(mean_ns),
        per_user_interval=(_per_second(slow_ns), _per_second(fast_ns)),
        system_tps=rate,
        system_interval=(rate - half, rate + half),
    )


def _per_second(each_ns: float) -> float:
    return NS_PER_S / each_ns if each_ns > 0 else 0.0


def _shift(
    passes: _Passes, plateaus: Sequence[tuple[int, int]], chosen: int, warm_up: int
) -> Shift | None:
    """Returns the first later window at a different level,
    provided that the means of all passes have a significant step.
    """
    level = float(passes.pooled("tpot_ns", *plateaus[chosen]).mean())
    step = step_of(passes.tpot_means)
    if level <= 0 or not step.is_significant:
        return None
    for plateau in plateaus[chosen + 1 :]:
        change = float(passes.pooled("tpot_ns", *plateau).mean()) / level - 1
        if abs(change) > SHIFT:
            return Shift(warm_up + step.at, change)
    return None


def _too_short(durations: Sequence[Duration], chosen: int) -> str:
    one = durations[chosen]
    return (
        f"all {len(durations)} plateaus are too short: the longest has {one.window_s:.0f} s, and "
        f"{one.needed_s:.0f} s are needed ({one.dominant})"
    )


def _status(samples: int, size: int, window: Window | None, *, found: bool) -> Status | None:
    if samples < size:
        return "partial_dataset"
    if found:
        return "windowable"
    if samples // size < FEWEST + 1:
        return "insufficient_passes"
    return "insufficient_duration" if window is not None else None
