"""Hands queries to the model: inline (streams), sliced (Offline) or queued (Server).

Every sample of a batch is answered, whatever happens in the batch: LoadGen waits for ever for a
lost sample. The hot path does no logging, takes no lock beyond the queue's and makes no object per
sample.
"""

import threading
import traceback
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from typing import Any, Protocol

from harness.core.clock import wall_ns
from harness.loadgen.answers import AnswerRow, Answers
from harness.machine.threads import run_on
from harness.models.steps.postprocess import Postprocess
from harness.run.journal import Issuer, Writer
from harness.run.measured.dispatch.by_length import Lengths, by_length
from harness.types import Backend, Dataset

WORKER = "instance-"
"""How the names of worker threads begin."""


class Failures:
    """Counts the samples of failed batches and holds the first traceback. Any thread may add."""

    def __init__(self) -> None:
        self.samples = 0
        self.first = ""
        self._lock = threading.Lock()

    def add(self, error: BaseException, samples: int) -> None:
        with self._lock:
            self.first = self.first or "".join(traceback.format_exception(error))
            self.samples += samples


class Responder(Protocol):
    """Completes a batch in LoadGen, with answers or without. Returns the wall clock at the call."""

    def complete(self, ids: Sequence[int], answers: Any, /) -> int: ...

    def complete_empty(self, ids: Sequence[int], /) -> int: ...


class Instance:
    """One copy of the model with all it needs to answer. Used by one thread at a time.

    cpus: the logical processors of that thread, () for any.
    """

    __slots__ = (
        "_failures",
        "_has_nan",
        "_infer",
        "_postprocess",
        "_responder",
        "_row_dtype",
        "_row_shape",
        "_to_batch",
        "_write",
        "cpus",
    )

    def __init__(
        self,
        backend: Backend,
        dataset: Dataset,
        postprocess: Postprocess,
        responder: Responder,
        writer: Writer,
        row: AnswerRow,
        failures: Failures,
        cpus: Sequence[int] = (),
    ) -> None:
        self.cpus = cpus
        self._infer = backend.infer
        self._to_batch = dataset.batch
        self._postprocess, self._has_nan = postprocess
        self._responder = responder
        self._write = writer.batch
        self._row_shape, self._row_dtype = row.shape, row.dtype
        self._failures = failures

    def answer(self, ids: Sequence[int], indices: Sequence[int], first: int, taken_ns: int) -> None:
        """Answers one batch. first: issue order of its first sample. taken_ns: wall clock."""
        gathered = inferred = taken_ns
        try:
            batch = self._to_batch(indices)
            gathered = inferred = wall_ns()
            outputs = self._infer(batch)
            inferred = wall_ns()
            answers = self._postprocess(outputs, indices)
            # Assignment into the buffer would broadcast a wrong shape silently.
            if answers.shape != (len(ids), *self._row_shape) or answers.dtype != self._row_dtype:
                raise ValueError(self._mismatch(answers, len(ids)))
            postprocessed = wall_ns()
            completed = self._responder.complete(ids, answers)
        except BaseException as e:  # noqa: BLE001 - a failed batch is a result: counted, INVALID
            failed = 1
            self._failures.add(e, len(ids))
            postprocessed = wall_ns()
            completed = self._responder.complete_empty(ids)
        else:  # after the answer: the check is no part of the latency
            failed = int(self._has_nan(outputs, answers))
            if failed:
                self._failures.add(ValueError("the model's outputs hold NaN"), len(ids))
        self._write(first, indices, failed, taken_ns, gathered, inferred, postprocessed, completed)

    def _mismatch(self, answers: Answers, count: int) -> str:
        return (
            f"the backend's answers are {answers.dtype} of shape {answers.shape}, "
            f"expected {self._row_dtype} of shape {(count, *self._row_shape)}"
        )


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
