"""Which of the plans that LoadGen has judged is the one to take, and how sure that is. Pure.

In every round each plan is run once, with the same seeds. So plans are compared round by round, and
what the machine did meanwhile, faster or slower for all, is in no difference.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from harness.results.evidence.bootstrap import over_runs
from harness.search.tune.candidates import Aim, Plan

ROUNDS_TO_DROP = 3
"""After so many a plan that is surely worse than the best one is judged no further."""


@dataclass(slots=True)
class Finalist:
    """values: round -> what LoadGen measured, in the aim's unit. failed: why it has no more of them."""

    plan: Plan
    predicted: float
    is_default: bool
    values: dict[int, float] = field(default_factory=dict)
    failed: str = ""
    dropped: bool = False

    @property
    def mean(self) -> float | None:
        """Geometric, of all rounds; None before the first."""
        values = self.values.values()
        return math.exp(sum(map(math.log, values)) / len(values)) if values else None


class Gain(NamedTuple):
    """How many times as good one plan is as another, and the interval of that over the rounds."""

    ratio: float
    low: float
    high: float
    rounds: int


class Decision(NamedTuple):
    """best: by its mean. taken: the simplest of those that no difference to it is seen from,
    if it meets the SLO as that does. second: the next best, None where there is one plan; gain: of
    `best` over it; second_is_beaten: a third plan is surely better than that.
    """

    best: Finalist
    taken: Finalist
    second: Finalist | None
    gain: Gain | None
    second_is_beaten: bool


def gain(aim: Aim, a: Finalist, b: Finalist) -> Gain | None:
    """Over the rounds that both have; None with too few for an interval (LEAST_RUNS)."""
    both = sorted(a.values.keys() & b.values.keys())
    found = over_runs([aim.gain(a.values[n], b.values[n]) for n in both])
    ratio, interval = found or (0.0, None)
    return Gain(ratio, *interval, len(both)) if interval else None


def best_of(aim: Aim, finalists: Sequence[Finalist]) -> Finalist | None:
    """Among those with the most rounds."""
    most = max((len(one.values) for one in finalists), default=0)
    full = [one for one in finalists if most and len(one.values) == most and not one.failed]
    return max(full, key=lambda one: aim.gain(one.mean or 0.0, 1.0), default=None)


def to_drop(aim: Aim, finalists: Sequence[Finalist]) -> Iterator[Finalist]:
    """Those that are surely worse than the best one; two always go on."""
    best = best_of(aim, finalists)
    running = [one for one in finalists if not (one.dropped or one.failed)]
    if best is None or len(best.values) < ROUNDS_TO_DROP:
        return
    others = sorted(
        (one for one in running if one is not best), key=lambda one: _behind(aim, best, one)
    )
    for one in others[1:]:
        if _surely_better(aim, best, one):
            yield one


def decide(
    aim: Aim, finalists: Sequence[Finalist], bound_ns: float | None = None
) -> Decision | None:
    """None where no plan has two rounds.

    To look like the best one is no order: where two plans do, one may still be surely worse than the
    other, as it is than a third. So none is taken that is surely worse than any, or was dropped for
    that; of those only where all others failed.

    bound_ns: of the SLO, where it is its percentile that is judged: where the best plan meets it, so
    does the one that is taken.
    """
    sound = [one for one in finalists if not one.failed]
    running = [one for one in sound if not one.dropped] or sound
    unbeaten = [
        one for one in running if not any(_surely_better(aim, other, one) for other in running)
    ]
    best = best_of(aim, unbeaten or running)
    if best is None or len(best.values) < 2:
        return None
    others = [one for one in sound if one is not best and gain(aim, best, one)]
    others.sort(key=lambda one: (one not in unbeaten, _behind(aim, best, one)))
    alike = [one for one in others if one in unbeaten]
    if bound_ns is not None and _meets(best, bound_ns):
        alike = [one for one in alike if _meets(one, bound_ns)]
    taken = min([best, *alike], key=lambda one: (not one.is_default, one.plan.effort))
    second = others[0] if others else None
    over = gain(aim, best, second) if second else None
    return Decision(best, taken, second, over, second is not None and second not in unbeaten)


def _meets(one: Finalist, bound_ns: float) -> bool:
    return one.mean is not None and one.mean <= bound_ns


def _surely_better(aim: Aim, a: Finalist, b: Finalist) -> bool:
    found = gain(aim, a, b)
    return found is not None and found.low > 1


def _behind(aim: Aim, best: Finalist, one: Finalist) -> float:
    found = gain(aim, best, one)
    return found.ratio if found else math.inf
