"""Computes confidence intervals for each latency percentile in one run, by three methods.

estimate          the percentile to quote: LoadGen's value if its log has one
order_statistic   the samples between which the true percentile lies; needs no assumption about the distribution, but
                  requires independent samples, and is too narrow if neighbours are correlated
block_interval    also an order statistic, but for the number of independent samples, which comes from the spread
between
                  blocks of neighbouring samples; valid for correlated samples; missing with too few of them
early_stopping    LoadGen's bound, which the true percentile does not exceed with 99 % confidence

All ranks come from the journal, which contains every sample. The times are converted to LoadGen's clock
(`_LoadGensClock`), so that each interval contains the reported percentile.
"""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from harness.core.stats import LEVEL, early_stopping_ns, interval_ranks, percentile_ns
from harness.results.evidence.block_intervals import blocks, percentile_intervals
from harness.results.evidence.stages import (
    PERCENTILES,
    Completions,
    query_completed_ns,
    query_latency_ns,
)
from harness.results.schema.performance import Intervals, PercentileInterval
from harness.types import Array


def latency_intervals(
    done: Completions, samples_per_query: int, logged: Mapping[str, Any] | None = None
) -> Intervals | None:
    """Returns the intervals of query latencies in ns; None without a complete query.

    logged: the percentiles, `min` and `max` from LoadGen's log; if None, the journal's latencies are not converted. One
    end of an order-statistic interval is None if the run has no sample at its rank. Both ends of a block interval are
    None if the run has too few independent parts; `block_interval_reason` then states the reason.
    """
    latency_ns = query_latency_ns(done, samples_per_query)
    if not len(latency_ns):
        return None
    block = blocks(query_completed_ns(done, samples_per_query))
    intervals = percentile_intervals(latency_ns, block, PERCENTILES)
    ordered_ns = np.sort(latency_ns)
    clock = _LoadGensClock(ordered_ns, logged or {})
    by_percentile: dict[str, PercentileInterval] = {
        name: {
            "estimate": clock.at(int(len(ordered_ns) * fraction)),
            "journal": percentile_ns(ordered_ns, fraction),
            "order_statistic": [
                None if rank is None else clock.at(rank)
                for rank in interval_ranks(len(ordered_ns), fraction, LEVEL)
            ],
            "block_interval": [clock.low(intervals[name].low), clock.high(intervals[name].high)],
            "block_interval_reason": intervals[name].reason,
            "effective_samples": intervals[name].effective_samples,
            "early_stopping": clock.high(early_stopping_ns(ordered_ns, fraction)),
        }
        for name, fraction in PERCENTILES.items()
    }
    return cast("Intervals", {**by_percentile, "level": LEVEL})


class _LoadGensClock:
    """Converts the journal's latencies to LoadGen's clock.

    LoadGen reads its clock before it calls the harness and again after the harness has answered, so its latencies are a
    few us longer than the journal's. The difference is known at the ranks in LoadGen's log: the percentiles, the
    shortest and the longest latency. Between these ranks, the difference is interpolated by rank. The result is limited
    to the range between LoadGen's latencies at the nearest known ranks.
    """

    def __init__(self, ordered_ns: Array, logged: Mapping[str, Any]) -> None:
        """Computes the difference between the clocks at each known rank.

        ordered_ns: (n,) ascending latencies of the journal, n >= 1. logged: see latency_intervals.
        """
        n = len(ordered_ns)
        ranks = {"min": 0, "max": n - 1} | {name: int(n * p) for name, p in PERCENTILES.items()}
        known = {
            rank: int(logged[name]) for name, rank in ranks.items() if logged.get(name) is not None
        }
        self._ordered_ns = ordered_ns
        self._ranks = sorted(known)
        self._known_ns = [known[rank] for rank in self._ranks]
        self._later_ns = [known[rank] - int(ordered_ns[rank]) for rank in self._ranks]

    def at(self, rank: int) -> int:
        """Returns the latency at a rank, counted from 0."""
        ns = int(self._ordered_ns[rank])
        if not self._ranks:
            return ns
        ns += round(float(np.interp(rank, self._ranks, self._later_ns)))
        above = int(np.searchsorted(self._ranks, rank))
        below = int(np.searchsorted(self._ranks, rank, side="right")) - 1
        if above < len(self._ranks):
            ns = min(ns, self._known_ns[above])
        return max(ns, self._known_ns[below]) if below >= 0 else ns

    def low(self, ns: int | None) -> int | None:
        """Converts a latency in the journal to the lower end of an interval."""
        return None if ns is None else self.at(int(np.searchsorted(self._ordered_ns, ns)))

    def high(self, ns: int | None) -> int | None:
        """Converts a latency in the journal to the upper end of an interval."""
        if ns is None:
            return None
        return self.at(int(np.searchsorted(self._ordered_ns, ns, side="right")) - 1)
