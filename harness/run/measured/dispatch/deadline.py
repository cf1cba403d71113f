"""Plans Server's batches if the batches wait for more samples (--batch-wait) or are sized for the SLO (--dispatch
deadline).

Without these options, Server uses the dispatchers in threads.py and shared.py, and `core/batch_rule.py` determines the
size of a batch.
"""

from bisect import bisect_right
from collections.abc import Sequence
from queue import Empty

import numpy as np

from harness.core.batch_rule import WAITED_SHARE
from harness.core.clock import wall_ns
from harness.core.units import NS_PER_S
from harness.run.journal import Issuer
from harness.run.measured.dispatch.instance import Instance
from harness.run.measured.dispatch.threads import QueuedDispatcher
from harness.types import Array


class Deadlines:
    """Decides how many waiting samples form one batch, so that as few samples as possible are late.

    All samples of a batch are completed when the batch ends, so the oldest sample limits the batch's duration. Samples
    that will be late in any case do not limit this duration. Other samples do not overtake late samples, because late
    samples would then wait forever under load. Only one thread at a time may call the methods.

    bound_ns: the SLO's bound, counted from the callback, because the scheduled time is not known during the run. curve:
    times of batches; index n contains the time of a batch of n samples.
    """

    def __init__(self, bound_ns: int, curve: Sequence[int], instances: int) -> None:
        self._bound_ns = bound_ns
        self._waited_ns = int(WAITED_SHARE * bound_ns)
        self._curve = curve
        self._free_ns = [0] * instances

    def latest_start_ns(self, entry_ns: int, samples: int) -> int:
        """Returns the latest start of a batch of `samples` that waits, if its oldest sample arrived at `entry_ns`."""
        return entry_ns + self._waited_ns - self._curve[samples]

    def size(self, entry_ns: Array, now_ns: int, instance: int) -> int:
        """Returns the size of the batch that `instance` begins now.

        entry_ns: (n,) arrival time of each waiting sample, oldest first; 1 <= n <= largest batch.
        """
        count = len(entry_ns)
        chosen = count
        if now_ns + self._curve[count] > int(entry_ns[0]) + self._bound_ns:
            chosen = self._cut(entry_ns + (self._bound_ns - now_ns), now_ns, instance)
        self._free_ns[instance] = now_ns + self._curve[chosen]
        return chosen

    def _cut(self, left_ns: Array, now_ns: int, instance: int) -> int:
        """Returns the batch size if some samples would be late.

        left_ns: (n,) time until each sample is late, ascending.
        """
        count, curve = len(left_ns), self._curve
        # The samples before `first` will be late in any case.
        first = int(np.searchsorted(left_ns, curve[1]))
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
    """A QueuedDispatcher whose batches wait for more samples, and meet the SLO if possible.

    wait_ns: maximum time for which a sample waits for other samples, counted from the sample's callback. entry_ns: the
    journal's column. deadlines: sizes the batches for the SLO; None if a batch takes every waiting sample.
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
        """Takes a batch; returns None when closed. number: the instance's number."""
        with self._turn:
            if self._next == len(self._ids) and not self._wait():
                return None
            self._wait_for_more()
            size = min(len(self._ids) - self._next, self._max_batch)
            if self._deadlines is not None:
                entries = self._entry_ns[self._taken : self._taken + size]
                size = self._deadlines.size(entries, wall_ns(), number)
            return self._cut(size)

    def _wait_for_more(self) -> None:
        """Adds waiting samples, and samples that arrive while the batch may still wait.

        The batch stops waiting when it is full, when its oldest sample has waited for `wait_ns`, or when waiting longer
        could make this sample late.
        """
        oldest_ns = int(self._entry_ns[self._taken])
        while (waiting := len(self._ids) - self._next) < self._max_batch:
            until_ns = oldest_ns + self._wait_ns
            if self._deadlines is not None:
                latest_ns = self._deadlines.latest_start_ns(oldest_ns, waiting + 1)
                until_ns = min(until_ns, latest_ns)
            left_ns = max(0, until_ns - wall_ns())
            try:
                more = self._queue.get(timeout=left_ns / NS_PER_S)
            except Empty:
                return
            if more is None:
                self._queue.put(None)  # passes the end marker on to the next worker
                return
            self._ids += more[0]
            self._indices += more[1]
