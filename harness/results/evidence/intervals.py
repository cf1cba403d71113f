"""Computes confidence intervals of each latency percentile of one run, in three ways.

estimate          the percentile of the journal's latencies, which all intervals use; LoadGen, whose
                  percentiles are quoted, reads the clock itself, some us apart
order_statistic   the samples between which the true percentile lies, for any distribution; valid for
                  independent samples, too narrow where neighbours are correlated
block_interval    the same for as many samples as the spread between blocks of neighbouring samples shows
                  to be independent: valid for correlated samples, too
early_stopping    LoadGen's bound: with 99 % confidence the true percentile is not above it
"""

from typing import cast

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


def latency_intervals(done: Completions, samples_per_query: int) -> Intervals | None:
    """Intervals in ns of the latencies of queries; None without a whole query.

    An end is None where the run is too short: no sample lies far enough out.
    """
    latency_ns = query_latency_ns(done, samples_per_query)
    if not len(latency_ns):
        return None
    block = blocks(query_completed_ns(done, samples_per_query))
    intervals = percentile_intervals(latency_ns, block, PERCENTILES)
    ordered_ns = np.sort(latency_ns)
    by_percentile: dict[str, PercentileInterval] = {
        name: {
            "estimate": percentile_ns(ordered_ns, fraction),
            "order_statistic": _order_statistic(ordered_ns, fraction),
            "block_interval": [intervals[name].low, intervals[name].high],
            "effective_samples": intervals[name].effective_samples,
            "early_stopping": early_stopping_ns(ordered_ns, fraction),
        }
        for name, fraction in PERCENTILES.items()
    }
    return cast("Intervals", {**by_percentile, "level": LEVEL, "source": "journal"})


def _order_statistic(ordered_ns: Array, fraction: float) -> list[int | None]:
    ranks = interval_ranks(len(ordered_ns), fraction, LEVEL)
    return [None if rank is None else int(ordered_ns[rank]) for rank in ranks]
