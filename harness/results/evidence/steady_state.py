"""Judges whether a run was in a steady state, i.e. as fast at its end as at its start."""

from typing import NamedTuple

import numpy as np

from harness.loadgen.plan import LoadPlan
from harness.loadgen.scenario import scenario_named
from harness.results.evidence.stages import Completions
from harness.results.schema import performance
from harness.types import Array

DRIFT_SHARE = 0.10
DRIFT_SPREADS = 3.0
"""A run is not steady if its last third differs from its first by more than 10 % and by more than three times the
noise within a third."""

_BLOCKS = 8
"""Number of blocks in each third. The spread of their medians is the noise."""


class SteadyState(NamedTuple):
    """Medians of the first and the last third of a run."""

    what: str
    """Name of the time."""
    first_third_ns: float
    last_third_ns: float
    spread_ns: float
    """Noise within a third: median |block median - third's median|, the larger of the two thirds."""

    @property
    def is_steady(self) -> bool:
        change = abs(self.last_third_ns - self.first_third_ns)
        return change <= max(DRIFT_SHARE * self.first_third_ns, DRIFT_SPREADS * self.spread_ns)

    def to_json(self) -> performance.SteadyState:
        return {
            "what": self.what,
            "first_third_ns": self.first_third_ns,
            "last_third_ns": self.last_third_ns,
            "spread_ns": self.spread_ns,
            "is_steady": self.is_steady,
        }


def steady_state(done: Completions, plan: LoadPlan) -> SteadyState | None:
    """Returns None with too few samples, or if replayed arrivals changed their rate."""
    spent, what = done.latency_ns, "latency"
    # Latency grows with the queue, so use the batches.
    if scenario_named(plan.scenario).all_at_once:
        in_batch_ns = done.columns["completed_ns"] - done.columns["taken_ns"]
        spent = in_batch_ns // done.batch_size
        what = "time a sample in its batch"
    third = len(spent) // 3
    if third < 4 * _BLOCKS or (plan.schedule is not None and _load_changed(done, third)):
        return None
    first, spread_first = _median_and_spread(spent[:third])
    last, spread_last = _median_and_spread(spent[-third:])
    return SteadyState(what, first, last, max(spread_first, spread_last))


def _load_changed(done: Completions, third: int) -> bool:
    """Returns whether a replayed schedule changed its rate, which may change the latency."""
    due_ns = done.columns["scheduled_ns"]
    first_ns, last_ns = int(due_ns[third] - due_ns[0]), int(due_ns[-1] - due_ns[-1 - third])
    return abs(last_ns - first_ns) > DRIFT_SHARE * max(first_ns, last_ns)


def _median_and_spread(values: Array) -> tuple[float, float]:
    """Returns the median, and the median distance of the blocks' medians from it."""
    median = float(np.median(values))
    blocks = [float(np.median(b)) for b in np.array_split(values, _BLOCKS)]
    return median, float(np.median([abs(b - median) for b in blocks]))
