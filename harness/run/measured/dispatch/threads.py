"""Hands queries to the instances: inline (streams), sliced (Offline) or queued (Server).

The hot path takes no lock beyond the queue's and makes no object per sample.
"""

import threading
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from typing import Protocol

from harness.core.clock import wall_ns
from harness.machine.threads import run_on
from harness.run.journal import Issuer
from harness.run.measured.dispatch.by_length import Lengths, by_length
from harness.run.measured.dispatch.instance import Instance

WORKER = "instance-"
"""How the names of worker threads begin."""


class Dispatcher(Protocol):
    """issue: LoadGen's callback, on its issuing thread; it must not raise.

    stop: returns when every worker has ended.
    """

    def issue(self, ids: list[int], indices: list[int]) -> None: ...

    def stop(self) -> None: ...


class InlineDispatcher:
    """The callback itself answers: a hop to another thread costs 25 us, a direct call 1 us."""

    def __init__(self, instances: Sequence[Instance], max_batch: int, issuer: Issuer) -> None:
        self._answer = instances[0].answer
        self._max_batch = max_batch
        self._issued = issuer.issued

    def issue(self, ids: list[int], indices: list[int]) -> None:
        count = len(ids)
        entry_ns = wall_ns()
        first = self._issued(count, entry_ns)
        if count <= self._max_batch:
            self._answer(ids, indices, first, entry_ns)
            return
        for start in range(0, count, self._max_batch):
            end = start + self._max_batch
            self._answer(ids[start:end], indices[start:end], first + start, wall_ns())

    def stop(self) -> None:
        """There is no thread to stop."""


class _Workers:
    """One thread for each instance. All threads take jobs from one queue; None ends a worker."""

    def __init__(self, instances: Sequence[Instance]) -> None:
        self._threads = [
            threading.Thread(target=self._start, args=(i,), name=f"{WORKER}{n}", daemon=True)
            for n, i in enumerate(instances)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def __len__(self) -> int:
        return len(self._threads)

    def _start(self, instance: Instance) -> None:
        run_on(instance.cpus)
        self._work(instance)

    def _work(self, instance: Instance) -> None:
        raise NotImplementedError


_Slices = tuple[list[int], list[int], int, Iterator[int]]


class SlicedDispatcher(_Workers):
    """Offline: all samples come in one call, and workers take slices by a shared counter.

    The counter is a range iterator: taking the next value is one step under the GIL. Samples that
    differ in length are first sorted into batches of similar length; that time is measured too.
    """

    def __init__(
        self,
        instances: Sequence[Instance],
        max_batch: int,
        issuer: Issuer,
        lengths: Lengths | None = None,
    ) -> None:
        super().__init__(instances)
        self._max_batch = max_batch
        self._issued = issuer.issued
        self._lengths = lengths if max_batch > 1 else None
        self._jobs: SimpleQueue[_Slices | None] = SimpleQueue()
        self.start()

    def issue(self, ids: list[int], indices: list[int]) -> None:
        first = self._issued(len(ids), wall_ns())
        if self._lengths is not None:
            ids, indices = by_length(ids, indices, self._lengths(indices), self._max_batch)
        starts = iter(range(0, len(ids), self._max_batch))
        for _ in range(len(self)):
            self._jobs.put((ids, indices, first, starts))

    def _work(self, instance: Instance) -> None:
        while (job := self._jobs.get()) is not None:
            ids, indices, first, starts = job
            for start in starts:
                end = start + self._max_batch
                instance.answer(ids[start:end], indices[start:end], first + start, wall_ns())

    def stop(self) -> None:
        for _ in range(len(self)):
            self._jobs.put(None)
        self.join()


class QueuedDispatcher(_Workers):
    """Server: the callback enqueues LoadGen's two lists as one item; a worker takes all that waits.

    Batches grow by themselves under load and never wait when idle. One worker takes at a time, so
    that a batch is contiguous in issue order; the others wait for their turn. An item may be larger
    than a batch: only the batch is copied, because copying the rest each time would be quadratic.
    """

    def __init__(self, instances: Sequence[Instance], max_batch: int, issuer: Issuer) -> None:
        super().__init__(instances)
        self._max_batch = max_batch
        self._issued = issuer.issued
        self._queue: SimpleQueue[tuple[list[int], list[int]] | None] = SimpleQueue()
        self._turn = threading.Lock()
        self._rest: tuple[list[int], list[int], int] | None = None  # ids, indices, first index left
        self._taken = 0
        self.start()

    def issue(self, ids: list[int], indices: list[int]) -> None:
        self._issued(len(ids), wall_ns())
        self._queue.put((ids, indices))

    def _work(self, instance: Instance) -> None:
        answer = instance.answer
        while (batch := self._take()) is not None:
            answer(*batch, wall_ns())

    def _take(self) -> tuple[list[int], list[int], int] | None:
        """Up to max_batch waiting samples; blocks for the first one. None when closed."""
        with self._turn:
            queue, limit, first = self._queue, self._max_batch, self._taken
            if self._rest is None:
                item = queue.get()
                if item is None:
                    return None
                ids, indices = item
            else:
                ids, indices, start = self._rest
                if len(ids) - start > limit:
                    self._taken, end = first + limit, start + limit
                    self._rest = ids, indices, end
                    return ids[start:end], indices[start:end], first
                ids, indices = ids[start:], indices[start:]
                self._rest = None
            while len(ids) < limit and not queue.empty():
                more = queue.get()
                if more is None:
                    queue.put(None)  # for the next worker: this batch goes first
                    break
                ids += more[0]
                indices += more[1]
            if len(ids) > limit:
                self._rest = ids, indices, limit
                ids, indices = ids[:limit], indices[:limit]
            self._taken = first + len(ids)
            return ids, indices, first

    def stop(self) -> None:
        for _ in range(len(self)):
            self._queue.put(None)
        self.join()
