"""How far each percentile of one run could have come out otherwise, told in three ways.

estimate          the percentile itself, of the journal's latencies, as the intervals are: LoadGen, whose
                  percentiles are quoted, stamps with a clock reading of its own some us away
order_statistic   between which samples the true percentile lies, whatever the distribution; right
                  where samples are independent, too narrow where neighbours are alike
block_bootstrap   from blocks of neighbouring samples drawn again: it sees stalls and bursts, but
                  never further than the slowest sample
early_stopping    LoadGen's: with 99 % confidence the true percentile is not above it
"""

from typing import cast

import numpy as np

from harness.core.stats import early_stopping_ns, interval_ranks, percentile_ns
from harness.results.evidence import bootstrap
from harness.results.evidence.stages import (
    PERCENTILES,
    Completions,
    query_completed_ns,
    query_latency_ns,
)
from harness.results.schema import Intervals, PercentileInterval
from harness.types import Array


def latency_intervals(done: Completions, samples_per_query: int) -> Intervals | None:
    """percentile -> its intervals in ns, of queries; None without a whole query.

    An end is None where no sample lies far enough out: the run is too short to tell it.
    """
    latency_ns = query_latency_ns(done, samples_per_query)
    if not len(latency_ns):
        return None
    block = bootstrap.blocks(query_completed_ns(done, samples_per_query))
    drawn = bootstrap.drawn_percentiles(latency_ns, block, PERCENTILES)
    ordered_ns = np.sort(latency_ns)
    by_percentile: dict[str, PercentileInterval] = {
        name: {
            "estimate": percentile_ns(ordered_ns, fraction),
            "order_statistic": _order_statistic(ordered_ns, fraction),
            "block_bootstrap": [round(end) for end in bootstrap.interval(drawn[name])],
            "early_stopping": early_stopping_ns(ordered_ns, fraction),
        }
        for name, fraction in PERCENTILES.items()
    }
    return cast("Intervals", {**by_percentile, "level": bootstrap.LEVEL, "source": "journal"})


def _order_statistic(ordered_ns: Array, fraction: float) -> list[int | None]:
    ranks = interval_ranks(len(ordered_ns), fraction, bootstrap.LEVEL)
    return [None if rank is None else int(ordered_ns[rank]) for rank in ranks]
