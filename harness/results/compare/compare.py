"""Compares two sides and judges whether the changes exceed the noise.

A side is one finished run, or several runs of one configuration. Several runs show the noise between runs.
"""

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from harness.core.stats import LEVEL, student_t
from harness.results.agreement import Agreement, agreement, limits
from harness.results.compare import comparable
from harness.results.compare.comparable import Difference, Refusal
from harness.results.compare.finished import FinishedRun
from harness.results.compare.noise import Noise, noise_of
from harness.results.evidence.between_runs import (
    EXTREME,
    LEAST_FREEDOM,
    between_runs,
    pooled_variance,
)
from harness.results.evidence.stages import STAGES
from harness.results.numbers import SPEEDS, Number, deciding_number
from harness.types import Array

BETTER, WORSE, SAME, MIXED = "better", "worse", "no difference", "better and worse"
UNDECIDED = "undecided"

UNDECIDED_LIMIT = "undecided"
"""Name of the limit of `--fail-on` that is broken if the whole comparison is undecided."""

ALIKE = 0.05
"""Two sides count as equal if the whole interval of the change lies within this share."""

_MOST_RUNS = 100
"""The comparison never recommends more runs per side than this."""

_APART = frozenset((*STAGES, "throughput_per_core", "throughput_per_watt", "samples_per_price"))


class Change(NamedTuple):
    """Change in one number between the sides. Shares are relative to `before`, so 0.05 means 5 % more."""

    name: str
    unit: str
    before: float
    """Geometric mean over the runs of the first side."""
    after: float
    """Geometric mean over the runs of the second side."""
    change: float
    """Change as a share."""
    low: float | None
    """Lower end of the interval of `change`, as a share; None if this end is unknown or open."""
    high: float | None
    """Upper end of the interval of `change`, as a share; None if this end is unknown or open."""
    noise: float
    """Share that a change must exceed to get a verdict. If the sides' runs alternated, the change itself must exceed
    this share; otherwise, the change's whole interval must.
    """
    higher_is_better: bool
    verdict: str | None
    """Verdict on the change; None if the sides must not be ranked."""
    is_scheduled: bool = False
    """Whether the schedule sets the number on both sides, so that only an overload changes it."""

    @property
    def has_ratio(self) -> bool:
        """Whether `change` and its interval are meaningful, which requires both sides to differ from 0."""
        return self.before != 0 and self.after != 0

    @property
    def is_speed(self) -> bool:
        """Whether the number is a latency or the rate of the whole run."""
        return self.name in SPEEDS

    @property
    def is_whole(self) -> bool:
        """Whether the number covers the whole run and is not divided by cores, watts or the price."""
        return self.name.partition(".")[0] not in _APART


class Comparison(NamedTuple):
    before: Sequence[FinishedRun]
    after: Sequence[FinishedRun]
    changes: Sequence[Change]
    refusals: Sequence[Refusal]
    """Reasons why the sides must not be ranked; [] if they may be."""
    differences: Sequence[Difference]
    answers: Agreement | None
    """Comparison of the answers; None if either side lacks an accuracy run."""
    noise: Noise
    headline: Change | None
    """Change in the scenario's main number; None if either side did not measure it."""
    with_own_level: Sequence[str]
    """Numbers that each get a 95 % interval: the headline and the numbers that the user chose in advance."""
    runs_needed: int | None
    """Runs per side, alternating between the sides, that would decide the headline if the noise stays the same; None if
    the headline is decided, or if too many runs would be needed.
    """
    optimised: bool = False
    """Whether the second side is a faster version of the first. A loss of accuracy then counts as the price of the
    speed.
    """
    missing: Sequence[FinishedRun] | None = None
    """The side that misses its SLO while the other side meets it."""

    @property
    def accuracy(self) -> Change | None:
        """Change in the accuracy; None if either side did not measure it."""
        return next((change for change in self.changes if change.name == "accuracy"), None)

    @property
    def verdict(self) -> str | None:
        """The headline's verdict, unless a missed SLO, a changed accuracy, or a contradicting latency or rate replaces
        it.
        """
        if self.refusals or self.headline is None:
            return None
        if self.missing is not None:
            return BETTER if self.missing is self.before else WORSE
        verdicts = {self.headline.verdict}
        if self.accuracy is not None and not self.optimised:
            verdicts.add(self.accuracy.verdict)
        if verdicts & {BETTER, WORSE}:
            verdicts |= {c.verdict for c in self.changes if c.is_speed}
        if {BETTER, WORSE} <= verdicts:
            return MIXED
        return next((v for v in (WORSE, BETTER) if v in verdicts), self.headline.verdict)


def compare(
    before: Sequence[FinishedRun],
    after: Sequence[FinishedRun],
    noise: float | None = None,
    chosen: Collection[str] = (),
    *,
    optimised: bool = False,
) -> Comparison:
    """Compares the sides and returns the interval and the verdict of each change.

    noise: share that replaces the noise between the runs. chosen: numbers that the user chose in advance. The chosen
    numbers and the scenario's main number get 95 % confidence each; all other numbers share 95 %. optimised: whether
    the second side is a faster version of the first. The accuracy of a faster version must be known, unless the user's
    chosen numbers leave out the accuracy.
    """
    far = limits(comparable.precision_of(before[0])).far
    answers = agreement(before[0].folder, after[0].folder, far)
    refusals = list(
        comparable.refusals(
            before,
            after,
            answers,
            optimised=optimised,
            only_speed=is_only_speed(chosen),
        )
    )
    shown = noise_of(before, after, noise)
    headline = headline_name(before[0])
    names = [n for n in before[0].numbers if all(n in r.numbers for r in (*before, *after))]
    own = [name for name in dict.fromkeys((headline, *chosen)) if name in names]
    others = len([n for n in names if n not in own and before[0].numbers[n].kind != "exact"])
    changes = []
    for name in names:
        ours, theirs = ([run.numbers[name] for run in side] for side in (before, after))
        if ours[0].kind == "exact":
            change = _exact(name, ours, theirs)
        else:
            level = LEVEL if name in own else 1 - (1 - LEVEL) / others
            change = _change(name, ours, theirs, shown, level)
        scheduled = name == "throughput" and _has_equal_schedules((*before, *after))
        change = change._replace(is_scheduled=scheduled)
        changes.append(change._replace(verdict=None) if refusals else change)
    own_number = next((c for c in changes if c.name == headline), None)
    return Comparison(
        before=before,
        after=after,
        changes=changes,
        refusals=refusals,
        differences=list(comparable.differences(before, after)),
        answers=answers,
        noise=shown,
        headline=own_number,
        with_own_level=own,
        runs_needed=_runs_needed(before, after, own_number) if own_number else None,
        optimised=optimised,
        missing=comparable.one_misses(before, after),
    )


def _has_equal_schedules(runs: Sequence[FinishedRun]) -> bool:
    """Returns whether all runs issued their queries at one fixed rate."""
    rates = {run.config.get("target_qps") if comparable.has_schedule(run) else None for run in runs}
    return len(rates) == 1 and None not in rates


def is_only_speed(chosen: Collection[str]) -> bool:
    """Returns whether the user chose numbers and left out the accuracy."""
    return any(name != UNDECIDED_LIMIT for name in chosen) and "accuracy" not in chosen


class Deciding(NamedTuple):
    """Verdict on the scenario's main number alone."""

    change: Change
    runs_needed: int | None
    """Runs per side that would decide the number; None if the number is decided, or if too many runs would be needed.
    """


def deciding(before: Sequence[FinishedRun], after: Sequence[FinishedRun]) -> Deciding | None:
    """Judges the scenario's main number as `compare` does, but does not check whether the sides may be ranked.

    Returns None if a run lacks this number.
    """
    name = headline_name(before[0])
    if any(name not in run.numbers for run in (*before, *after)):
        return None
    ours, theirs = ([run.numbers[name] for run in side] for side in (before, after))
    change = _change(name, ours, theirs, noise_of(before, after, None), LEVEL)
    return Deciding(change, _runs_needed(before, after, change))


def headline_name(run: FinishedRun) -> str:
    """Returns the name of the number that decides the verdict."""
    return deciding_number(run.result, run.numbers)


def _change(
    name: str, before: Sequence[Number], after: Sequence[Number], noise: Noise, level: float
) -> Change:
    """Computes the change from logarithms, because noise factors then add up, and gains and losses are symmetric."""
    first = before[0]
    log_before, log_after = (_logs([n.value for n in side], first.unit) for side in (before, after))
    change = float(log_after.mean() - log_before.mean())
    between = noise.half_width(name, log_before.tolist(), log_after.tolist(), level)
    within = _within(before, after) if noise.counts_within or between is None else None
    low = high = None
    if within is not None or between is not None:
        least, most = within or (0.0, 0.0)
        low = change + min(least, -(between or 0.0))
        high = change + max(most, between or 0.0)
    share = noise.smallest[first.kind]
    if between is None and (noise.apart is not None or any(map(_is_open, (*before, *after)))):
        share = max(share, EXTREME[first.kind])  # because one run per side does not show the noise
    margin = math.log1p(share)
    is_whole = noise.is_given or not noise.in_turns
    verdict = _verdict(
        change if low is None else low,
        change if high is None else high,
        margin if is_whole else 0.0,
        higher_is_better=first.higher_is_better,
    )
    if abs(change) <= margin:
        verdict = SAME
    is_judged = noise.is_given and share == noise.smallest[first.kind]
    if verdict == SAME and not (is_judged or _is_alike(low, high, between)):
        verdict = UNDECIDED
    return Change(
        name=name,
        unit=first.unit,
        before=_mean(before),
        after=_mean(after),
        change=math.expm1(change),
        low=_end(low),
        high=_end(high),
        noise=share,
        higher_is_better=first.higher_is_better,
        verdict=verdict,
    )


def _is_alike(low: float | None, high: float | None, between: float | None) -> bool:
    """Returns whether the noise between runs is known and the whole interval lies within ALIKE."""
    if low is None or high is None or between is None:
        return False
    return max(-low, high) <= math.log1p(ALIKE)


def _end(log_change: float | None) -> float | None:
    """Converts a change in the logarithm to a share."""
    return None if log_change is None else math.expm1(log_change)


def _exact(name: str, before: Sequence[Number], after: Sequence[Number]) -> Change:
    """Computes the change in a score. A score may be 0 or negative, so no logarithm is used. A score has no noise
    within a run, so its interval comes only from the spread between the runs of a side.
    """
    ours, theirs = ([n.value for n in side] for side in (before, after))
    size = abs(float(np.mean(ours))) or 1.0
    change = float(np.mean(theirs) - np.mean(ours)) / size
    between = (between_runs(ours, theirs) or 0.0) / size
    low, high = change - between, change + between
    higher = before[0].higher_is_better
    return Change(
        name=name,
        unit=before[0].unit,
        before=float(np.mean(ours)),
        after=float(np.mean(theirs)),
        change=change,
        low=low,
        high=high,
        noise=0.0,
        higher_is_better=higher,
        verdict=_verdict(low, high, 0.0, higher_is_better=higher),
    )


def _runs_needed(
    before: Sequence[FinishedRun], after: Sequence[FinishedRun], change: Change
) -> int | None:
    """Returns the runs per side that would confirm or rule out a change of this size if the noise stays the same."""
    freedom = len(before) + len(after) - 2
    if change.verdict != UNDECIDED or freedom < LEAST_FREEDOM:
        return None
    ours, theirs = ([r.numbers[change.name].value for r in side] for side in (before, after))
    log_before, log_after = (_logs(values, change.unit) for values in (ours, theirs))
    deviation = math.sqrt(pooled_variance(log_before, log_after))
    size = abs(math.log1p(change.change))
    enough = max(size if size > math.log1p(change.noise) else 0.0, math.log1p(ALIKE) - size)
    for runs in range(2, _MOST_RUNS + 1):
        if student_t(2 * runs - 2) * deviation * math.sqrt(2 / runs) <= enough:
            return runs
    return None


def _verdict(low: float, high: float, margin: float, *, higher_is_better: bool) -> str:
    """Returns BETTER or WORSE if the whole interval lies beyond the margin, otherwise SAME."""
    if low > margin:
        return BETTER if higher_is_better else WORSE
    if high < -margin:
        return WORSE if higher_is_better else BETTER
    return SAME


def _within(before: Sequence[Number], after: Sequence[Number]) -> tuple[float, float] | None:
    """Combines the intervals within the runs into the ends of the change's interval, in logarithms.

    The distances from the means to the ends combine like standard errors. Source: Zou and Donner, Construction of
    confidence limits about effect measures, Statistics in Medicine 27 (2008).
    """
    ends_before, ends_after = _distances(before), _distances(after)
    if ends_before is None or ends_after is None:
        return None
    below_before, above_before = ends_before
    below_after, above_after = ends_after
    return -math.hypot(below_after, above_before), math.hypot(above_after, below_before)


def _distances(side: Sequence[Number]) -> tuple[float, float] | None:
    """Returns the distances from the mean over the runs to the ends of its interval, in logarithms; None without an
    interval.
    """
    below, above = [], []
    for number in side:
        if number.low is None or number.high is None or _is_open(number):
            return None
        low, value, high = _logs([number.low, number.value, number.high], number.unit)
        below.append(value - low)
        above.append(high - value)
    return math.hypot(*below) / len(side), math.hypot(*above) / len(side)


def _is_open(number: Number) -> bool:
    """Returns whether the run was too short for the number to get an interval."""
    return number.high is not None and math.isinf(number.high)


def _logs(values: object, unit: str) -> Array:
    least = 1.0 if unit == "ns" else 1e-12
    logs: Array = np.log(np.maximum(np.asarray(values, np.float64), least))
    return logs


def _mean(numbers: Sequence[Number]) -> float:
    """Returns the geometric mean; 0 if all numbers are 0, because logarithms cannot express 0."""
    if len(numbers) == 1 or not any(number.value for number in numbers):
        return numbers[0].value
    return math.exp(_logs([n.value for n in numbers], numbers[0].unit).mean())
