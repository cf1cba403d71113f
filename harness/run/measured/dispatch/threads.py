"""Passes queries to the instances. Dispatch is inline for streams, sliced for Offline and queued for Server.

The hot path takes no lock except the queue's lock, and creates no object per sample.
"""

import threading
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from typing import Protocol

from harness.core.batch_rule import BatchRule
from harness.core.clock import wall_ns
from harness.machine.threads import run_on
from harness.run.journal import Issuer
from harness.run.measured.dispatch.by_length import Lengths, by_length
from harness.run.measured.dispatch.instance import Instance

WORKER = "instance-"
"""Prefix of the names of worker threads."""


class Dispatcher(Protocol):
    """Passes queries to instances.

    LoadGen calls `issue` on its issuing thread; `issue` must not raise an error. `stop` returns when every worker has
    ended.
    """

    def issue(self, ids: list[int], indices: list[int]) -> None: ...

    def stop(self) -> None: ...


class InlineDispatcher:
    """Answers within the callback, because a thread switch costs 25 us and a direct call costs 1 us."""

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
        """Does nothing, because this dispatcher has no thread."""


class _Workers:
    """Runs one thread per instance. All threads take jobs from one queue; the job None ends a thread."""

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
    """Dispatches Offline's samples, which all arrive in one call. Workers claim slices through a shared counter.

    The counter is a range iterator, because taking its next value is atomic under the GIL. If samples differ in length,
    the samples are first sorted into batches of similar length. The sorting is part of the measured time.
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
    """Dispatches Server's queries. The callback enqueues LoadGen's two lists, and a worker takes a batch of the waiting
    samples.

    Batches grow under load, but an idle worker never waits for a larger batch. Only one worker takes samples at a time,
    so that a batch is contiguous in issue order; the other workers wait for their turn. To avoid quadratic time, only
    the batch is copied from the lists, and taken samples are deleted only when they fill half of a list.
    """

    def __init__(
        self,
        instances: Sequence[Instance],
        max_batch: int,
        issuer: Issuer,
        rule: BatchRule | None = None,
    ) -> None:
        """rule: decides the size of a batch; if None, a batch takes all waiting samples, up to max_batch."""
        super().__init__(instances)
        self._max_batch = max_batch
        self._issued = issuer.issued
        self._rule = rule
        self._queue: SimpleQueue[tuple[list[int], list[int]] | None] = SimpleQueue()
        self._turn = threading.Lock()
        self._ids: list[int] = []
        self._indices: list[int] = []
        self._next = 0  # position of the first waiting sample in both lists
        self._taken = 0
        self._answering = dict.fromkeys(map(id, instances), False)
        self.start()

    def issue(self, ids: list[int], indices: list[int]) -> None:
        self._issued(len(ids), wall_ns())
        self._queue.put((ids, indices))

    def _work(self, instance: Instance) -> None:
        answer, mine, answering = instance.answer, id(instance), self._answering
        while (batch := self._take(mine)) is not None:
            answer(*batch, wall_ns())
            answering[mine] = False

    def _take(self, mine: int) -> tuple[list[int], list[int], int] | None:
        """Blocks until a sample waits, then takes a batch of the waiting samples. Returns None when the dispatcher is
        closed.

        mine: the instance's number.
        """
        with self._turn:
            return self._sized(mine) if self._some_wait() else None

    def _sized(self, mine: int) -> tuple[list[int], list[int], int]:
        """Takes the next batch with the size that the rule sets. Some samples must be waiting."""
        waiting = len(self._ids) - self._next
        if self._rule is None:
            size = min(waiting, self._max_batch)
        else:
            idle = len(self._answering) - sum(self._answering.values())
            size = self._rule.size(waiting, idle)
        self._answering[mine] = True
        return self._cut(size)

    def _some_wait(self) -> bool:
        """Blocks until a sample waits, and then adds all issued samples to the waiting samples. Returns False when the
        dispatcher is closed.
        """
        if self._next == len(self._ids) and not self._wait():
            return False
        self._gather()
        return True

    def _wait(self) -> bool:
        """Blocks until the next samples are issued. Returns False when the dispatcher is closed."""
        item = self._queue.get()
        if item is None:
            return False
        self._ids, self._indices = item
        self._next = 0
        return True

    def _gather(self) -> None:
        """Adds all samples that were issued since the last call to the waiting samples."""
        queue = self._queue
        while not queue.empty():
            more = queue.get()
            if more is None:
                queue.put(None)  # passes the end marker on to the next worker
                return
            self._ids += more[0]
            self._indices += more[1]

    def _cut(self, size: int) -> tuple[list[int], list[int], int]:
        """Takes the first `size` waiting samples."""
        ids, indices, start, first = self._ids, self._indices, self._next, self._taken
        end = start + size
        self._taken = first + size
        if not start and end == len(ids):
            self._ids, self._indices = [], []
            return ids, indices, first
        batch = ids[start:end], indices[start:end], first
        if 2 * end >= len(ids):
            del ids[:end], indices[:end]
            end = 0
        self._next = end
        return batch

    def stop(self) -> None:
        for _ in range(len(self)):
            self._queue.put(None)
        self.join()
