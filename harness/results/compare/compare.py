"""`compare`: what changed between two sides of finished runs, and whether that is more than noise.

A side is one run, or several of one configuration: those tell how runs differ by themselves.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from harness.core.codes import About, Kind, codes
from harness.loadgen.scenario import scenario_named
from harness.results.agreement import Agreement, agreement, limits
from harness.results.compare import comparable
from harness.results.compare.comparable import Difference
from harness.results.compare.finished import FinishedRun, Number
from harness.results.evidence import bootstrap
from harness.results.evidence.stages import STAGES
from harness.types import Array

BETTER, WORSE, SAME, MIXED = "better", "worse", "no difference", "better and worse"

CALM_NOISE: Mapping[str, float] = {"rate": 0.05, "body": 0.05, "tail": 0.20}
BUSY_NOISE: Mapping[str, float] = {"rate": 0.30, "body": 1.0, "tail": 4.0}
"""By kind, shares: how far apart two runs of one configuration must be expected to lie where
nobody measured it; busy: where a run doubts its machine. docs/compare.md has the measurements.
"""

MEASURED_NOISE = 0.02
"""Of all kinds, where runs of one side tell how they differ: runs in a row do not show it all."""

_MACHINE_DOUBTS = codes(Kind.DOUBT, About.MACHINE)

_APART = frozenset((*STAGES, "throughput_per_core", "throughput_per_watt", "samples_per_price"))


class Change(NamedTuple):
    """One number on both sides. before, after: geometric means over the side's runs.

    change, low, high: shares of `before`, e.g. 0.05 for 5 % more; [low, high] is the interval,
    None where nothing tells it. noise: the share that the whole interval must exceed; where runs
    of one side tell how they differ, that is in the interval already. verdict: None where the
    sides must not be ranked.
    """

    name: str
    unit: str
    before: float
    after: float
    change: float
    low: float | None
    high: float | None
    noise: float
    higher_is_better: bool
    verdict: str | None

    @property
    def is_whole(self) -> bool:
        """Of the run: not of one stage, and not divided by what the machine has or costs."""
        return self.name.partition(".")[0] not in _APART


class Comparison(NamedTuple):
    """refusals: why the sides must not be ranked; [] where they may. noise: where it is from.
    margins: by kind of number, the share that counts as no difference.
    """

    before: Sequence[FinishedRun]
    after: Sequence[FinishedRun]
    changes: Sequence[Change]
    refusals: Sequence[str]
    differences: Sequence[Difference]
    answers: Agreement | None
    noise: str
    margins: Mapping[str, float]
    headline: Change | None

    @property
    def verdict(self) -> str | None:
        """The headline's, unless the run's other numbers (not the stages) say another thing."""
        if self.refusals or self.headline is None:
            return None
        found = {c.verdict for c in self.changes if c.is_whole}
        if {BETTER, WORSE} <= found:
            return MIXED
        return next((v for v in (WORSE, BETTER) if v in found), SAME)


def compare(
    before: Sequence[FinishedRun], after: Sequence[FinishedRun], noise: float | None = None
) -> Comparison:
    """noise: a share that takes the place of what is assumed between single runs."""
    far = limits(comparable.precision_of(before[0])).far
    answers = agreement(before[0].folder, after[0].folder, far)
    refused = list(comparable.refusals(before, after, answers))
    assumed, told = _noise(before, after, noise)
    names = [n for n in before[0].numbers if all(n in r.numbers for r in (*before, *after))]
    changes = [
        _change(
            name,
            [run.numbers[name] for run in before],
            [run.numbers[name] for run in after],
            assumed,
            ranked=not refused,
        )
        for name in names
    ]
    wanted = _headline(before[0])
    return Comparison(
        before=before,
        after=after,
        changes=changes,
        refusals=refused,
        differences=list(comparable.differences(before, after)),
        answers=answers,
        noise=told,
        margins=assumed,
        headline=next((c for c in changes if c.name == wanted), None),
    )


def _noise(
    before: Sequence[FinishedRun], after: Sequence[FinishedRun], given: float | None
) -> tuple[Mapping[str, float], str]:
    """By kind of number, and where it is from."""
    if given is not None:
        return dict.fromkeys(CALM_NOISE, given), "as given"
    runs = len(before) + len(after)
    if runs - 2 >= bootstrap.LEAST_FREEDOM:
        return dict.fromkeys(CALM_NOISE, MEASURED_NOISE), "measured, from several runs a side"
    busy = any(_machine_doubts(run) for run in (*before, *after))
    machine = f"assumed of a {'busy' if busy else 'calm'} machine"
    few = "one run a side" if runs == 2 else "two runs of one side"
    return (
        BUSY_NOISE if busy else CALM_NOISE,
        f"{machine}, because {few} cannot tell it (three a side can)",
    )


def _headline(run: FinishedRun) -> str:
    """The number that the verdict is given by; Server's is the percentile of its SLO."""
    scenario = scenario_named(run.result["scenario"])
    if scenario.scheduled and run.result.get("slo"):
        percentile = str(run.result["slo"]).partition("=")[0]
        if percentile in run.numbers:
            return percentile
    performed = run.result["throughput_per_s"] is not None
    if not performed:
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
    """In logarithms: noise multiplies, and a change there is the same in both directions.

    Not so scores (`exact`): they may be 0 or negative.
    """
    first = before[0]
    if first.kind == "exact":
        return _exact(name, before, after, ranked=ranked)
    log_before, log_after = (_logs([n.value for n in side], first.unit) for side in (before, after))
    change = float(log_after.mean() - log_before.mean())
    within = _within(before, after)
    between = bootstrap.between_runs(log_before.tolist(), log_after.tolist())
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
        low=None if low is None else math.expm1(low),
        high=None if high is None else math.expm1(high),
        noise=noise[first.kind],
        higher_is_better=first.higher_is_better,
        verdict=verdict if ranked else None,
    )


def _exact(name: str, before: Sequence[Number], after: Sequence[Number], *, ranked: bool) -> Change:
    """A score on the same samples: without noise, but for what runs of one side show."""
    ours, theirs = ([n.value for n in side] for side in (before, after))
    size = abs(float(np.mean(ours))) or 1.0
    change = float(np.mean(theirs) - np.mean(ours)) / size
    between = (bootstrap.between_runs(ours, theirs) or 0.0) / size
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
    """The whole interval lies beyond the margin, or there is no difference."""
    if low > margin:
        return BETTER if higher_is_better else WORSE
    if high < -margin:
        return WORSE if higher_is_better else BETTER
    return SAME


def _within(before: Sequence[Number], after: Sequence[Number]) -> tuple[float, float] | None:
    """The interval around the change that the samples inside the runs leave open."""
    if any(n.draws is None for n in (*before, *after)):
        return None
    drawn = [
        np.mean([_logs(n.draws, n.unit) - _logs([n.value], n.unit) for n in side], axis=0)
        for side in (before, after)
    ]
    # Both sides' draws are made of the same numbers: paired off, one would cancel the other.
    shuffled = np.random.default_rng(0).permutation(drawn[0])
    low, high = bootstrap.interval(drawn[1] - shuffled)
    return min(low, 0.0), max(high, 0.0)


def _logs(values: object, unit: str) -> Array:
    """A duration may be 0 ns: the clock could not tell it from one."""
    least = 1.0 if unit == "ns" else 1e-12
    made: Array = np.log(np.maximum(np.asarray(values, np.float64), least))
    return made


def _mean(numbers: Sequence[Number]) -> float:
    if len(numbers) == 1:
        return numbers[0].value
    return math.exp(_logs([n.value for n in numbers], numbers[0].unit).mean())


def _machine_doubts(run: FinishedRun) -> list[str]:
    return [d["code"] for d in run.result["doubts"] if d["code"] in _MACHINE_DOUBTS]
