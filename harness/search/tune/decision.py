"""Chooses one of the judged placements, and states how certain the choice is.

In every round, each placement runs once with the same seeds. Placements are compared only within a round. Changes in
the machine's speed that affect all placements therefore do not change the differences.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from harness.results.evidence.between_runs import over_runs
from harness.search.tune.candidates import Aim, Placement

LEAST_ROUNDS = 3
"""After this many rounds, placements that are significantly worse are dropped, and the search may end."""

ALIKE_PLANS = 0.03
"""Two placements count as alike if the whole interval of their gain lies within this share."""


@dataclass(slots=True)
class Finalist:
    """A placement that LoadGen runs judge."""

    plan: Placement
    predicted: float
    is_default: bool
    values: dict[int, float] = field(default_factory=dict)
    """Measured values by round, in the unit of the aim."""
    failed: str = ""
    """Reason why the placement could not be judged further; '' if it could."""
    dropped: bool = False

    @property
    def mean(self) -> float | None:
        """Geometric mean over all rounds; None before the first round."""
        values = self.values.values()
        return math.exp(sum(map(math.log, values)) / len(values)) if values else None


class Gain(NamedTuple):
    """One placement's gain over another, as a factor with its interval over the rounds."""

    ratio: float
    low: float
    high: float
    rounds: int


class Decision(NamedTuple):
    best: Finalist
    """Placement with the best mean."""
    taken: Finalist
    """The simplest placement among `best` and the placements that are alike. `taken` meets the SLO if `best` does."""
    second: Finalist | None
    """The next best placement; None if there is only one placement."""
    gain: Gain | None
    """Gain of `best` over `second`."""
    second_is_beaten: bool
    """Whether a third placement is significantly better than `second`."""


def gain(aim: Aim, a: Finalist, b: Finalist) -> Gain | None:
    """Returns the gain of a over b in the rounds that both placements ran; None if there are too few rounds for an
    interval (LEAST_RUNS).
    """
    both = sorted(a.values.keys() & b.values.keys())
    gains = over_runs([aim.gain(a.values[n], b.values[n]) for n in both])
    ratio, interval = gains or (0.0, None)
    return Gain(ratio, *interval, len(both)) if interval else None


def best_of(aim: Aim, finalists: Sequence[Finalist]) -> Finalist | None:
    """Returns the finalist with the best mean among the finalists with the most rounds."""
    most = max((len(one.values) for one in finalists), default=0)
    full = [one for one in finalists if most and len(one.values) == most and not one.failed]
    return max(full, key=lambda one: aim.gain(one.mean or 0.0, 1.0), default=None)


def to_drop(aim: Aim, finalists: Sequence[Finalist]) -> Iterator[Finalist]:
    """Yields the finalists that are significantly worse than the best finalist. At least two always continue."""
    best = best_of(aim, finalists)
    running = [one for one in finalists if not (one.dropped or one.failed)]
    if best is None or len(best.values) < LEAST_ROUNDS:
        return
    others = sorted(
        (one for one in running if one is not best), key=lambda one: _behind(aim, best, one)
    )
    for one in others[1:]:
        if _significantly_better(aim, best, one):
            yield one


def is_settled(aim: Aim, finalists: Sequence[Finalist]) -> bool:
    """Returns whether the decision is final because every other placement is significantly worse or alike."""
    running = [one for one in finalists if not (one.dropped or one.failed)]
    best = best_of(aim, running)
    if best is None or len(best.values) < LEAST_ROUNDS:
        return False
    others = (one for one in running if one is not best)
    return all(_significantly_better(aim, best, one) or _is_alike(aim, best, one) for one in others)


def decide(
    aim: Aim, finalists: Sequence[Finalist], bound_ns: float | None = None
) -> Decision | None:
    """Returns the decision; None if no placement has two rounds.

    If a placement is neither significantly worse than the best placement nor alike, the placement with the better mean
    wins. Being alike is not transitive: two placements may both be alike to the best placement although one of them is
    significantly worse than the other. A placement that is significantly worse than any other placement, or that was
    dropped for being worse, is therefore taken only if all others failed.

    bound_ns: the SLO's bound, if its percentile is judged. If the best placement meets the bound, the chosen placement
    also meets the bound.
    """
    sound = [one for one in finalists if not one.failed]
    running = [one for one in sound if not one.dropped] or sound
    unbeaten = [
        one
        for one in running
        if not any(_significantly_better(aim, other, one) for other in running)
    ]
    best = best_of(aim, unbeaten or running)
    if best is None or len(best.values) < 2:
        return None
    others = [one for one in sound if one is not best and gain(aim, best, one)]
    others.sort(key=lambda one: (one not in unbeaten, _behind(aim, best, one)))
    alike = [one for one in others if one in unbeaten and _is_alike(aim, best, one)]
    if bound_ns is not None and _meets(best, bound_ns):
        alike = [one for one in alike if _meets(one, bound_ns)]
    taken = min([best, *alike], key=lambda one: one.plan.effort)
    second = others[0] if others else None
    over = gain(aim, best, second) if second else None
    return Decision(best, taken, second, over, second is not None and second not in unbeaten)


def _meets(one: Finalist, bound_ns: float) -> bool:
    return one.mean is not None and one.mean <= bound_ns


def _significantly_better(aim: Aim, a: Finalist, b: Finalist) -> bool:
    over = gain(aim, a, b)
    return over is not None and over.low > 1


def _is_alike(aim: Aim, best: Finalist, one: Finalist) -> bool:
    over = gain(aim, best, one)
    return over is not None and over.low >= 1 - ALIKE_PLANS and over.high <= 1 + ALIKE_PLANS


def _behind(aim: Aim, best: Finalist, one: Finalist) -> float:
    over = gain(aim, best, one)
    return over.ratio if over else math.inf
