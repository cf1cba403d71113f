"""When LoadGen's Server scenario scheduled each query, recomputed from its seed.

The callback is told ids and indices but not the scheduled time, from which LoadGen counts latency.
"""

import numpy as np

from harness.types import Array
from harness.units import NS_PER_S


def server_schedule_ns(queries: int, qps: float, seed: int) -> Array:
    """(queries,) int64 ns after the start of the run, ascending, the first 0.

    qps: target rate in queries/s. seed: LoadGen's schedule seed.
    Source: loadgen.cc, ScheduleDistribution<Server>: std::exponential_distribution over
    std::mt19937 as libstdc++ implements them (two 32-bit draws a gap); equal to the ns to LoadGen's
    own trace, which a test repeats.
    """
    if queries < 1:
        return np.zeros(0, np.int64)
    random = np.random.RandomState(seed & 0xFFFFFFFF)
    draws = random.randint(0, 2**32, 2 * (queries - 1), dtype=np.uint64).astype(float)
    gaps_s = -np.log1p(-(draws[0::2] + draws[1::2] * 2.0**32) / 2.0**64) / qps
    after_ns = np.cumsum((gaps_s * NS_PER_S).astype(np.int64))
    return np.concatenate([np.zeros(1, np.int64), after_ns])
