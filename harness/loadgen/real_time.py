"""Computes when each frame of a real-time sequence is due, and how many frames a run has.

N streams play one sequence after the other. A frame of each stream is due in every period; each stream begins at a random
moment of the first period. So query q is frame q // N of its stream, and streams are numbered in the order of their
beginnings.
"""

from math import ceil

import numpy as np

from harness.core.stats import queries_needed
from harness.core.units import NS_PER_S
from harness.loadgen.scenario import LATE_ALLOWED, Load
from harness.types import Array


def due_ns(queries: int, streams: int, period_ns: int, seed: int) -> Array:
    """Returns (queries,) int64 ns after the start when each frame is due, ascending, the first 0.

    seed: LoadGen's schedule seed, which draws the beginnings of the streams.
    """
    random = np.random.RandomState(seed & 0xFFFFFFFF)
    begins_ns = np.sort((random.random_sample(streams) * period_ns).astype(np.int64))
    number = np.arange(queries, dtype=np.int64)
    due: Array = number // streams * period_ns + begins_ns[number % streams] - begins_ns[0]
    return due


def load(
    queries: int | None, duration_ns: int, streams: int, period_ns: int, percentile: float
) -> Load:
    """Returns the length of a run. queries: the user's frames of all streams; None: as the duration needs.

    percentile: of the SLO; a run has enough frames to judge it.
    """
    least = queries_needed(LATE_ALLOWED, percentile)
    count = queries or max(least, ceil(duration_ns / period_ns) * streams)
    rate_per_s = streams * NS_PER_S / period_ns
    return Load(count, count / rate_per_s)
