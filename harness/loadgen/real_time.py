"""Computes when each frame of a real-time sequence is due, and how many frames a run has.

Each of N streams plays one sequence after another. In every period, one frame of each stream is due. Each stream
begins at a random time in the first period. Query q is therefore frame q // N of its stream; streams are numbered
by start time.
"""

from math import ceil

import numpy as np

from harness.core.stats import queries_needed
from harness.core.units import NS_PER_S
from harness.loadgen.scenario import LATE_ALLOWED, Load
from harness.types import Array


def due_ns(queries: int, streams: int, period_ns: int, seed: int) -> Array:
    """Returns (queries,) int64 due times of the frames in ns after the start, ascending; the first is 0.

    seed: LoadGen's schedule seed, which draws the start times of the streams.
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

    queries: the user's number of frames over all streams; None if the duration sets their number.
    percentile: percentile of the SLO; a run has enough frames to judge it.
    """
    least = queries_needed(LATE_ALLOWED, percentile)
    count = queries or max(least, ceil(duration_ns / period_ns) * streams)
    rate_per_s = streams * NS_PER_S / period_ns
    return Load(count, count / rate_per_s)
