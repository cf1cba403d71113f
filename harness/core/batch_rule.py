"""Chooses how many waiting samples form the next batch, based on the measured time for each batch size.

A larger batch clears a backlog sooner if it reduces the cost per sample. Otherwise a larger batch only delays its first
samples. The rule therefore chooses the smallest batch that clears the backlog almost as soon as the best size does. The
rule was selected by simulations with loads between 20 and 90 %, and with models whose fixed cost is zero to ten times
the cost of a sample (docs/decisions/run.md).
"""

from collections.abc import Sequence

import numpy as np

from harness.types import Array

NEARLY = 0.05
"""A smaller batch is preferred if it clears a long backlog in at most (1 + NEARLY) times the best size's time."""

NEARLY_SHORT = 0.15
"""Share for a backlog of one sample per instance. This share is larger, because another instance soon takes a sample
that a smaller batch leaves, and because measured times are uncertain by several percent. For other backlogs, the
share is inversely proportional to the backlog, but at least NEARLY.
"""

BUSY_COUNTS = 0.5
"""Share of the backlog that a busy instance serves, relative to an idle instance. The share is below 1 because, on
average, a busy instance starts half a batch later.
"""

MOST_WAITING = 1024
"""Maximum number of waiting samples for which the table contains a batch size. Idle instances divide a longer backlog
equally, up to a full batch each.
"""

WAITED_SHARE = 0.9
"""With --dispatch deadline, a batch waits for more samples only if its predicted end is within this share of the SLO's
bound. One batch in ten takes longer than the prediction, so without this margin a tenth of the waiting samples would be
late.
"""

FULL = 0.02
"""If a full batch waits for every instance, the rule chooses the smallest size whose cost per sample is at most (1 +
FULL) times the lowest cost.
"""


class BatchRule:
    """Looks up the batch size in a table, by the number of idle instances and the number of waiting samples."""

    def __init__(self, batch_ns: Sequence[float] | Array, instances: int) -> None:
        """batch_ns: result of `batch_times`, in which index n contains the time for a batch of n samples. Index 0 is
        not used.
        """
        sizes = _candidates(len(batch_ns) - 1)
        times_ns: Array = np.asarray(batch_ns, np.float64)[sizes]
        each_ns = times_ns / sizes
        self._full = int(sizes[np.argmax(each_ns <= (1 + FULL) * each_ns.min())])
        waiting = np.arange(1, min(self._full * instances, MOST_WAITING) + 1)
        sizes, times_ns = sizes[sizes <= waiting[-1]], times_ns[sizes <= waiting[-1]]
        self._sizes = [
            _chosen(sizes, times_ns, waiting, idle, instances) for idle in range(1, instances + 1)
        ]

    def size(self, waiting: int, idle: int) -> int:
        """Returns the size of the next batch. idle: number of idle instances, including the caller, at least 1."""
        of_idle = self._sizes[idle - 1]
        if waiting <= len(of_idle):
            return of_idle[waiting - 1]
        return min(self._full, -(-waiting // idle))


SHRINK = 0.1
"""Offline prefers a batch size below the largest measured size only if the smaller size cuts the time per sample by at
least this fraction. If this fraction were lower, identical runs would choose different sizes.
"""


def offline_batch(points: Sequence[tuple[int, float]]) -> int:
    """Returns the batch size for Offline. Chooses the largest measured size, unless a smaller size is clearly cheaper
    per sample.

    points: measured pairs (samples, ns), in any order.
    """
    largest, largest_ns = max(points)
    cheapest, cheapest_ns = min(points, key=lambda point: point[1] / point[0])
    is_cheaper = cheapest_ns / cheapest <= (1 - SHRINK) * largest_ns / largest
    return cheapest if is_cheaper else largest


def batch_times(points: Sequence[tuple[int, float]], max_batch: int) -> Array:
    """Returns an array of shape (max_batch + 1,) and type float64, in which index n contains the time in ns for a batch
    of n samples. Times never decrease as n grows.

    points: measured pairs (samples, ns), in any order. Times between measured sizes are interpolated linearly. Beyond
    the largest measured size, the time is proportional to the size.
    """
    sizes, times = zip(*sorted(points), strict=True)
    rising = np.maximum.accumulate(np.asarray(times, np.float64))
    wanted = np.arange(max_batch + 1)
    within: Array = np.interp(wanted, sizes, rising)
    within[0] = 0.0
    beyond = wanted > sizes[-1]
    within[beyond] = rising[-1] * wanted[beyond] / sizes[-1]
    return within


def _candidates(max_batch: int) -> Array:
    """Returns all sizes up to 64, larger powers of two, and max_batch."""
    sizes: Array = np.arange(1, max_batch + 1)
    kept: Array = sizes[(sizes <= 64) | (sizes & (sizes - 1) == 0) | (sizes == max_batch)]
    return kept


def _chosen(sizes: Array, times_ns: Array, waiting: Array, idle: int, instances: int) -> list[int]:
    """Returns the batch size for each number of waiting samples."""
    serving = idle + BUSY_COUNTS * (instances - idle)
    rounds = np.ceil(waiting[:, None] / (sizes * serving) - 1e-9)
    took_ns = np.where(sizes <= waiting[:, None], rounds * times_ns, np.inf)
    nearly = np.maximum(NEARLY, NEARLY_SHORT * instances / waiting)[:, None]
    enough = took_ns <= (1 + nearly) * took_ns.min(axis=1, keepdims=True)
    # One instance's share: the other idle instances take the remaining samples.
    share = -(-waiting // idle)
    chosen: list[int] = np.minimum(sizes[np.argmax(enough, axis=1)], share).tolist()
    return chosen
