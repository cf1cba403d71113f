"""Lets Server's issuing thread answer queries, too, if the model is fast.

Passing the GIL from LoadGen's thread to a worker and back takes longer than a model that needs only microseconds per
query. Therefore, the callback processes the waiting samples on the first instance, and wakes other instances only if
there is enough work to share. LoadGen cannot issue queries during the callback, but issues all due queries in one call
afterwards (`server_coalesce_queries`). With a slow model, idle instances would wait for that call, so slow models get a
QueuedDispatcher.
"""

import threading
from collections.abc import Sequence
from queue import SimpleQueue

from harness.core.clock import wall_ns
from harness.core.units import NS_PER_MS
from harness.machine.threads import run_on
from harness.run.journal import Issuer
from harness.run.measured.dispatch.instance import Instance
from harness.run.measured.dispatch.threads import WORKER

LARGEST_BATCH_NS = 2 * NS_PER_MS
"""The issuing thread answers queries only if the slowest warm-up batch takes at most this long, so that no query waits
longer than this for LoadGen's thread.
"""

SPLIT_FROM = 8
"""Another instance is woken only if at least this many samples wait. This number was chosen by comparing interleaved
runs with 1, 2 and 8 samples, and without a second instance (docs/decisions/run.md).
"""

_Batch = tuple[list[int], list[int], int]


class SharedDispatcher:
    """Runs the first instance on the issuing thread, and every other instance on a worker thread.

    One lock guards the waiting samples. A batch takes the oldest waiting samples, so it is contiguous in issue order.
    Only the batch is copied, because copying the remaining samples each time would take quadratic time. A worker that
    finds no sample is idle until the issuing thread wakes it.
    """

    def __init__(self, instances: Sequence[Instance], max_batch: int, issuer: Issuer) -> None:
        self._own = instances[0].answer
        self._max_batch = max_batch
        self._issued = issuer.issued
        self._lock = threading.Lock()
        self._ids: list[int] = []
        self._indices: list[int] = []
        self._waiting = 0  # number of waiting samples, which are the last ones in both lists
        self._first = 0
        self._idle = 0
        self._woken = 0
        self._closed = False
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, args=(i,), name=f"{WORKER}{n}", daemon=True)
            for n, i in enumerate(instances[1:], 1)
        ]
        for thread in self._threads:
            thread.start()

    def issue(self, ids: list[int], indices: list[int]) -> None:
        self._issued(len(ids), wall_ns())
        # The lists are empty at this point, because only this thread adds samples, and its previous call ended after
        # all samples were taken.
        with self._lock:
            self._ids, self._indices, self._waiting = ids, indices, len(ids)
        while (batch := self._take_own()) is not None:
            self._own(*batch, wall_ns())

    def _take_own(self) -> _Batch | None:
        """Takes the issuing thread's share of the waiting samples, and wakes idle workers for the remaining samples."""
        with self._lock:
            waiting = self._waiting
            if not waiting:
                return None
            share = waiting
            if waiting > SPLIT_FROM and self._idle:
                share = -(-waiting // (self._idle + 1))
            batch = self._cut(min(share, self._max_batch))
            wakes = self._idle if self._waiting else 0
            self._idle -= wakes
            self._woken += wakes
        for _ in range(wakes):
            self._wake.put(None)
        return batch

    def _cut(self, count: int) -> _Batch:
        """Takes the first `count` waiting samples. The caller must hold the lock."""
        ids, indices, first, waiting = self._ids, self._indices, self._first, self._waiting
        self._first, self._waiting = first + count, waiting - count
        start = len(ids) - waiting
        if count == waiting:
            self._ids, self._indices = [], []
            if not start:
                return ids, indices, first
        end = start + count
        return ids[start:end], indices[start:end], first

    def _work(self, instance: Instance) -> None:
        run_on(instance.cpus)
        woken = 0
        while True:
            batch = None
            with self._lock:
                self._woken -= woken
                woken = 0
                # This worker takes only a share, because other workers were woken at the same time.
                if self._waiting:
                    share = -(-self._waiting // (self._woken + 1))
                    batch = self._cut(min(share, self._max_batch))
                elif self._closed:
                    return
                else:
                    self._idle += 1
            if batch is None:
                self._wake.get()
                woken = 1
            else:
                instance.answer(*batch, wall_ns())

    def stop(self) -> None:
        with self._lock:
            self._closed = True
        for _ in self._threads:
            self._wake.put(None)
        for thread in self._threads:
            thread.join()
