"""Computes when each frame of a real-time sequence is due, and how many frames a run has.

Each of N streams plays one sequence after another. Each stream begins at a random time in the first period, and has one
frame in every period. Streams are numbered by start time, so query q is frame q // N of stream q % N.
"""

from math import ceil

import numpy as np

from harness.core.stats import queries_needed
from harness.core.units import NS_PER_S
from harness.loadgen.scenario import LATE_ALLOWED, Load
from harness.types import Array


def due_ns(queries: int, streams: int, period_ns: int, seed: int) -> Array:
    """Returns (queries,) int64 due times of the frames in ns after the start, ascending. The first due time is 0.

    seed: LoadGen's schedule seed, which determines the start times of the streams.
    """
    random = np.random.RandomState(seed & 0xFFFFFFFF)
    begins_ns = np.sort((random.random_sample(streams) * period_ns).astype(np.int64))
    number = np.arange(queries, dtype=np.int64)
    due: Array = number // streams * period_ns + begins_ns[number % streams] - begins_ns[0]
    return due


def load(
    queries: int | None, duration_ns: int, streams: int, period_ns: int, percentile: float
) -> Load:
    """Returns the size of a run.

    queries: number of frames of all streams together, as set by the user; None if the duration determines this number.
    percentile: percentile of the SLO. The run has enough frames to judge this percentile.
    """
    least = queries_needed(LATE_ALLOWED, percentile)
    count = queries or max(least, ceil(duration_ns / period_ns) * streams)
    rate_per_s = streams * NS_PER_S / period_ns
    return Load(count, count / rate_per_s)
