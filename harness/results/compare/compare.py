"""Compares two sides of finished runs and judges whether changes exceed noise.

A side is one run, or several of one configuration, which show the noise between runs.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from harness.core.codes import About, Kind, codes
from harness.core.config.parse import leading, parse_slos
from harness.loadgen.scenario import scenario_named
from harness.results.agreement import Agreement, agreement, limits
from harness.results.compare import comparable
from harness.results.compare.comparable import Difference
from harness.results.compare.finished import FinishedRun, Number
from harness.results.evidence.between_runs import LEAST_FREEDOM, between_runs
from harness.results.evidence.stages import STAGES
from harness.types import Array

BETTER, WORSE, SAME, MIXED = "better", "worse", "no difference", "better and worse"

CALM_NOISE: Mapping[str, float] = {"rate": 0.05, "body": 0.05, "tail": 0.20}
BUSY_NOISE: Mapping[str, float] = {"rate": 0.30, "body": 1.0, "tail": 4.0}
"""Assumed noise between two runs of one configuration, as shares by kind of number. Busy: a run has a
doubt about its machine. docs/compare.md has the measurements.
"""

MEASURED_NOISE = 0.02
"""Share added for all kinds where several runs a side show noise: consecutive runs do not show all."""

_MACHINE_DOUBTS = codes(Kind.DOUBT, About.MACHINE)

_APART = frozenset((*STAGES, "throughput_per_core", "throughput_per_watt", "samples_per_price"))


class Change(NamedTuple):
    """One number on both sides. Shares are of `before`: 0.05 is 5 % more."""

    name: str
    unit: str
    before: float
    """Geometric mean over the runs of the first side."""
    after: float
    """Geometric mean over the runs of the second side."""
    change: float
    """Share."""
    low: float | None
    """Lower end of the interval of `change`, as a share; None where it is unknown or open."""
    high: float | None
    """Upper end."""
    noise: float
    """Share that the whole interval must exceed; noise between several runs a side is in the interval."""
    higher_is_better: bool
    verdict: str | None
    """None where the sides must not be ranked."""

    @property
    def has_ratio(self) -> bool:
        """Whether `change` and its interval mean something: neither side is 0."""
        return self.before != 0 and self.after != 0

    @property
    def is_whole(self) -> bool:
        """Whether the number is the whole run's: not a stage's, not divided by cores, watts or price."""
        return self.name.partition(".")[0] not in _APART


class Comparison(NamedTuple):
    before: Sequence[FinishedRun]
    after: Sequence[FinishedRun]
    changes: Sequence[Change]
    refusals: Sequence[str]
    """Why the sides must not be ranked; [] where they may be."""
    differences: Sequence[Difference]
    answers: Agreement | None
    """None where a side has no accuracy run."""
    noise: str
    """Origin of the margins."""
    margins: Mapping[str, float]
    """Share that counts as no difference, by kind of number."""
    headline: Change | None
    """The scenario's own number; None where a side did not measure it."""

    @property
    def verdict(self) -> str | None:
        """The headline's verdict, unless other numbers of the whole run differ."""
        if self.refusals or self.headline is None:
            return None
        verdicts = {c.verdict for c in self.changes if c.is_whole}
        if {BETTER, WORSE} <= verdicts:
            return MIXED
        return next((v for v in (WORSE, BETTER) if v in verdicts), SAME)


def compare(
    before: Sequence[FinishedRun], after: Sequence[FinishedRun], noise: float | None = None
) -> Comparison:
    """noise: share in place of the assumed noise between single runs."""
    far = limits(comparable.precision_of(before[0])).far
    answers = agreement(before[0].folder, after[0].folder, far)
    refusals = list(comparable.refusals(before, after, answers))
    margins, origin = _noise(before, after, noise)
    names = [n for n in before[0].numbers if all(n in r.numbers for r in (*before, *after))]
    changes = []
    for name in names:
        ours, theirs = ([run.numbers[name] for run in side] for side in (before, after))
        change = _exact if ours[0].kind == "exact" else _change
        changes.append(change(name, ours, theirs, margins, ranked=not refusals))
    headline = _headline(before[0])
    return Comparison(
        before=before,
        after=after,
        changes=changes,
        refusals=refusals,
        differences=list(comparable.differences(before, after)),
        answers=answers,
        noise=origin,
        margins=margins,
        headline=next((c for c in changes if c.name == headline), None),
    )


def _noise(
    before: Sequence[FinishedRun], after: Sequence[FinishedRun], option: float | None
) -> tuple[Mapping[str, float], str]:
    """Noise by kind of number, and its origin. option: the share of --noise."""
    if option is not None:
        return dict.fromkeys(CALM_NOISE, option), "from --noise"
    runs = len(before) + len(after)
    if runs - 2 >= LEAST_FREEDOM:
        return dict.fromkeys(CALM_NOISE, MEASURED_NOISE), "measured, from several runs a side"
    doubts = {doubt["code"] for run in (*before, *after) for doubt in run.result["doubts"]}
    busy = not doubts.isdisjoint(_MACHINE_DOUBTS)
    few = "one run a side" if runs == 2 else "two runs of one side"
    origin = (
        f"assumed for a {'busy' if busy else 'calm'} machine: {few} cannot show it (two a side can)"
    )
    return BUSY_NOISE if busy else CALM_NOISE, origin


def _headline(run: FinishedRun) -> str:
    """Name of the number that decides the verdict; Server's is the percentile of its SLO."""
    scenario = scenario_named(run.result["scenario"])
    if scenario.scheduled and run.result.get("slo"):
        slo = leading(parse_slos(str(run.result["slo"])))
        if slo is not None and slo.name in run.numbers:
            return slo.name
    if run.result["throughput_per_s"] is None:
        return "accuracy"
    return "throughput" if scenario.all_at_once else f"p{scenario.percentile * 100:.10g}"


def _change(
    name: str,
    before: Sequence[Number],
    after: Sequence[Number],
    noise: Mapping[str, float],
    *,
    ranked: bool,
) -> Change:
    """Computed in logarithms: noise multiplies, and a change is symmetric there."""
    first = before[0]
    log_before, log_after = (_logs([n.value for n in side], first.unit) for side in (before, after))
    change = float(log_after.mean() - log_before.mean())
    within = _within(before, after)
    between = between_runs(log_before.tolist(), log_after.tolist())
    low = high = None
    if within is not None or between is not None:
        least, most = within or (0.0, 0.0)
        low = change + min(least, -(between or 0.0))
        high = change + max(most, between or 0.0)
    margin = math.log1p(noise[first.kind])
    verdict = _verdict(
        change if low is None else low,
        change if high is None else high,
        margin,
        higher_is_better=first.higher_is_better,
    )
    return Change(
        name=name,
        unit=first.unit,
        before=_mean(before),
        after=_mean(after),
        change=math.expm1(change),
        low=_end(low),
        high=_end(high),
        noise=noise[first.kind],
        higher_is_better=first.higher_is_better,
        verdict=verdict if ranked else None,
    )


def _end(log_change: float | None) -> float | None:
    """As a share; None for an open end."""
    return math.expm1(log_change) if log_change is not None and math.isfinite(log_change) else None


def _exact(
    name: str,
    before: Sequence[Number],
    after: Sequence[Number],
    _noise: Mapping[str, float],
    *,
    ranked: bool,
) -> Change:
    """The change of a score, which may be 0 or negative. Its only noise is between the runs of a side."""
    ours, theirs = ([n.value for n in side] for side in (before, after))
    size = abs(float(np.mean(ours))) or 1.0
    change = float(np.mean(theirs) - np.mean(ours)) / size
    between = (between_runs(ours, theirs) or 0.0) / size
    low, high = change - between, change + between
    higher = before[0].higher_is_better
    verdict = _verdict(low, high, 0.0, higher_is_better=higher)
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
        verdict=verdict if ranked else None,
    )


def _verdict(low: float, high: float, margin: float, *, higher_is_better: bool) -> str:
    """A change is a difference where its whole interval lies beyond the margin."""
    if low > margin:
        return BETTER if higher_is_better else WORSE
    if high < -margin:
        return WORSE if higher_is_better else BETTER
    return SAME


def _within(before: Sequence[Number], after: Sequence[Number]) -> tuple[float, float] | None:
    """Ends of the interval around the change, in logarithms, from the intervals within the runs.

    Source: Zou and Donner, Construction of confidence limits about effect measures, Statistics in
    Medicine 27 (2008): the distances of the ends add up as standard errors do.
    """
    ends_before, ends_after = _distances(before), _distances(after)
    if ends_before is None or ends_after is None:
        return None
    below_before, above_before = ends_before
    below_after, above_after = ends_after
    return -math.hypot(below_after, above_before), math.hypot(above_after, below_before)


def _distances(side: Sequence[Number]) -> tuple[float, float] | None:
    """From the mean over the runs down and up to the ends of its interval, in logarithms; infinite where an
    end is open, which is 0 or infinity.
    """
    below, above = [], []
    for number in side:
        if number.low is None or number.high is None:
            return None
        low, value, high = _logs([number.low, number.value, number.high], number.unit)
        below.append(value - low if number.low > 0 else math.inf)
        above.append(high - value)
    return math.hypot(*below) / len(side), math.hypot(*above) / len(side)


def _logs(values: object, unit: str) -> Array:
    least = 1.0 if unit == "ns" else 1e-12
    logs: Array = np.log(np.maximum(np.asarray(values, np.float64), least))
    return logs


def _mean(numbers: Sequence[Number]) -> float:
    if len(numbers) == 1:
        return numbers[0].value
    return math.exp(_logs([n.value for n in numbers], numbers[0].unit).mean())
