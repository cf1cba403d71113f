"""Server, when asked for: samples wait for others (--batch-wait), batches keep the SLO (--dispatch
deadline). Without either, harness/run/measured/dispatch/threads.py and harness/run/measured/dispatch/shared.py take what waits.
"""

from bisect import bisect_right
from collections.abc import Sequence
from queue import Empty

import numpy as np

from harness.core.clock import wall_ns
from harness.core.units import NS_PER_S
from harness.run.journal import Issuer
from harness.run.measured.dispatch.threads import Instance, QueuedDispatcher
from harness.types import Array


def latency_curve(points: Sequence[tuple[int, int]], max_batch: int) -> list[int]:
    """(max_batch + 1,) ns a batch of that many samples takes, [0] for none; it never falls.

    points: (samples, ns) as measured, in any order; straight lines between them.
    """
    sizes, times = zip(*sorted(points), strict=True)
    rising = np.maximum.accumulate(np.asarray(times))
    return [0, *np.interp(range(1, max_batch + 1), sizes, rising).astype(int).tolist()]


class Deadlines:
    """How many of those that wait are one batch, so that none of them is late if that can be helped.

    All of a batch are answered at its end, so the longest that has waited decides. bound_ns: the
    SLO's, here from the callback on: when LoadGen wanted to issue is not known in the run. curve:
    ns of a batch by its size, as `latency_curve` gives it. A sample that is late whatever is done
    holds nobody back, and is not overtaken: under load it would wait for ever.
    Used by one thread at a time.
    """

    def __init__(self, bound_ns: int, curve: Sequence[int], instances: int) -> None:
        self._bound_ns = bound_ns
        self._curve = curve
        self._free_ns = [0] * instances

    def latest_start_ns(self, entry_ns: int, samples: int) -> int:
        """Until when a batch of `samples` may wait whose oldest one came at `entry_ns`."""
        return entry_ns + self._bound_ns - self._curve[samples]

    def size(self, entry_ns: Array, now_ns: int, instance: int) -> int:
        """Of the batch that `instance` begins now. entry_ns: (n,) when each came, oldest first,
        n at least 1 and at most the largest batch.
        """
        count = len(entry_ns)
        chosen = count
        if now_ns + self._curve[count] > int(entry_ns[0]) + self._bound_ns:
            chosen = self._cut(entry_ns + (self._bound_ns - now_ns), now_ns, instance)
        self._free_ns[instance] = now_ns + self._curve[chosen]
        return chosen

    def _cut(self, left_ns: Array, now_ns: int, instance: int) -> int:
        """left_ns: (n,) time until each one is late; it grows, as they came one after another."""
        count, curve = len(left_ns), self._curve
        first = int(np.searchsorted(left_ns, curve[1]))  # before it, all are lost
        if first == count:
            return count
        fitting = bisect_right(curve, int(left_ns[first]), 1, count + 1) - 1
        cut = max(first, fitting)
        if cut >= count:
            return count
        others = [ns - now_ns for i, ns in enumerate(self._free_ns) if i != instance]
        begin_ns = max(0, min([curve[cut], *others]))
        after_ns = begin_ns + curve[count - cut]
        late_if_cut = int(np.searchsorted(left_ns[cut:], after_ns))
        late_if_whole = int(np.searchsorted(left_ns, curve[count])) - first
        return cut if late_if_cut <= late_if_whole else count


class PlanningDispatcher(QueuedDispatcher):
    """A QueuedDispatcher whose batches wait for more samples, and keep the SLO where it can be kept.

    wait_ns: how long after it came a sample may be kept waiting for others. entry_ns: the
    journal's column. deadlines: None where batches are as large as what waits.
    """

    def __init__(
        self,
        instances: Sequence[Instance],
        max_batch: int,
        issuer: Issuer,
        entry_ns: Array,
        wait_ns: int,
        deadlines: Deadlines | None,
    ) -> None:
        self._entry_ns = entry_ns
        self._wait_ns = wait_ns
        self._deadlines = deadlines
        self._numbers = {id(instance): n for n, instance in enumerate(instances)}
        super().__init__(instances, max_batch, issuer)

    def _work(self, instance: Instance) -> None:
        answer, number = instance.answer, self._numbers[id(instance)]
        while (batch := self._take_planned(number)) is not None:
            answer(*batch, wall_ns())

    def _take_planned(self, number: int) -> tuple[list[int], list[int], int] | None:
        """As `_take`, for the instance of that number."""
        with self._turn:
            start = 0
            if self._rest is None:
                item = self._queue.get()
                if item is None:
                    return None
                ids, indices = item
            else:
                ids, indices, start = self._rest
                self._rest = None
            if len(ids) - start < self._max_batch:
                if start:
                    ids, indices, start = ids[start:], indices[start:], 0
                self._gather(ids, indices)
            first = self._taken
            size = min(len(ids) - start, self._max_batch)
            if self._deadlines is not None:
                entries = self._entry_ns[first : first + size]
                size = self._deadlines.size(entries, wall_ns(), number)
            self._taken, end = first + size, start + size
            if len(ids) > end:
                self._rest = ids, indices, end
            elif not start:
                return ids, indices, first
            return ids[start:end], indices[start:end], first

    def _gather(self, ids: list[int], indices: list[int]) -> None:
        """Adds what waits, and what comes until the batch is full, its oldest sample has waited, or
        waiting would make that one late.
        """
        oldest_ns = int(self._entry_ns[self._taken])
        while len(ids) < self._max_batch:
            until_ns = oldest_ns + self._wait_ns
            if self._deadlines is not None:
                latest_ns = self._deadlines.latest_start_ns(oldest_ns, len(ids) + 1)
                until_ns = min(until_ns, latest_ns)
            left_ns = max(0, until_ns - wall_ns())
            try:
                more = self._queue.get(timeout=left_ns / NS_PER_S)
            except Empty:
                return
            if more is None:
                self._queue.put(None)  # for the next to take: this batch goes first
                return
            ids += more[0]
            indices += more[1]
