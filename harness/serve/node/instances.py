"""Processes requests with a node's instances, and stores the time stamps of every batch. Each instance runs on one
thread.
"""

import threading
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from time import time_ns
from typing import NamedTuple

import numpy as np

from harness.core.batch_rule import BatchRule
from harness.machine.threads import run_on
from harness.models.opened.node import ANSWER, INDICES
from harness.models.steps.postprocess import NOT_FINITE
from harness.run.measured.answerer import Answerer
from harness.serve.loop import Later
from harness.types import Array, Batch, Outputs

STAMPS = 6
"""Number of time stamps per row: received, taken, gathered, inferred, postprocessed and sent, each as wall-clock time
in ns.
"""

Work = Callable[[Answerer, Batch], "Done"]


class Done(NamedTuple):
    """A batch with its answers."""

    outputs: Mapping[str, Array]
    gathered_ns: int
    inferred_ns: int
    postprocessed_ns: int


def of_indices(each: Answerer, batch: Batch) -> Done:
    """Runs the samples whose indices are in the batch. Propagates any error from the plug-ins."""
    indices = batch.inputs[INDICES].tolist()
    inputs = each.dataset.batch(indices)
    gathered_ns = time_ns()
    outputs = each.backend.infer(inputs)
    inferred_ns = time_ns()
    answers = each.postprocess.answers(outputs, indices)
    if each.postprocess.not_finite(outputs, answers):
        raise ValueError(NOT_FINITE)
    # The answers are copied, because the backend may overwrite their memory before the loop has sent them.
    return Done({ANSWER: np.array(answers)}, gathered_ns, inferred_ns, time_ns())


def of_tensors(named: Callable[[Outputs], Mapping[str, Array]]) -> Work:
    """Returns a `Work` function that runs the model on a request's tensors and returns the outputs by name."""

    def work(each: Answerer, batch: Batch) -> Done:
        gathered_ns = time_ns()
        rows = named(each.backend.infer(batch))
        # The outputs are copied, because the backend may reuse their memory for its next outputs.
        outputs = {name: np.array(values) for name, values in rows.items()}
        inferred_ns = time_ns()
        return Done(outputs, gathered_ns, inferred_ns, inferred_ns)

    return work


class Rows:
    """A node's journal: STAMPS times per batch, in the order of the replies. Only the loop's thread may use it."""

    def __init__(self) -> None:
        self._stamps = array("q")

    def add(self, *stamps_ns: int) -> int:
        """Adds a row, and returns the row's number."""
        number = len(self._stamps) // STAMPS
        self._stamps.extend(stamps_ns)
        return number

    def clear(self) -> None:
        self._stamps = array("q")

    def to_bytes(self) -> bytes:
        """Returns the rows as little-endian int64."""
        return self._stamps.tobytes()


class Waiting(NamedTuple):
    """A request that is waiting for an instance."""

    later: Later
    work: Work
    batch: Batch
    reply: Callable[[Done | BaseException, int], bytes]
    """Returns the bytes of the reply, given the result or error and the time when an instance took the request. The
    loop's thread calls this function.
    """


Answered = tuple[Waiting, Done | BaseException, int]
"""A request, its result or error, and the time when an instance took the request."""


class Instances:
    """A node's instances, each on a separate thread.

    A free instance takes a batch from the waiting requests. The batch size follows the same rule as in a run without
    nodes. Requests with indices may be joined into one batch, but no request is ever split. Only one instance at a time
    takes requests.
    """

    def __init__(
        self,
        answerers: Sequence[Answerer],
        max_batch: int,
        wake: Callable[[], None],
        rule: BatchRule | None = None,
    ) -> None:
        """wake: wakes the loop's thread when `done` has results. rule: None if a batch takes all waiting requests, up
        to max_batch.
        """
        self._queue: SimpleQueue[Waiting | None] = SimpleQueue()
        self._turn = threading.Lock()
        self._waiting: deque[Waiting] = deque()  # waiting requests that were taken from the queue
        self._samples = 0  # number of samples in the waiting requests
        self._max_batch = max_batch
        self._rule = rule
        self._answering = [False] * len(answerers)
        self._done: deque[Answered] = deque()
        self._wake = wake
        self._threads = [
            threading.Thread(target=self._answer, args=(n, each), name=f"instance-{n}", daemon=True)
            for n, each in enumerate(answerers)
        ]
        for thread in self._threads:
            thread.start()

    def put(self, waiting: Waiting) -> None:
        self._queue.put(waiting)

    def done(self) -> list[Answered]:
        """Returns the results since the last call."""
        found = []
        while self._done:
            found.append(self._done.popleft())
        return found

    def _answer(self, number: int, each: Answerer) -> None:
        run_on(each.cpus)
        while taken := self._take(number):
            taken_ns = time_ns()
            self._done.extend(
                (waiting, result, taken_ns)
                for waiting, result in zip(taken, _results(each, taken), strict=True)
            )
            self._answering[number] = False
            self._wake()

    def _take(self, number: int) -> list[Waiting]:
        """Waits for requests, and takes the requests for one batch.

        Returns [] when the instances stop. number: the instance's number.
        """
        with self._turn:
            if not self._waiting and not self._hold(self._queue.get()):
                return []
            while not self._queue.empty():
                if not self._hold(self._queue.get()):
                    # The end mark is put back into the queue, because the waiting requests must be processed first.
                    self._queue.put(None)
                    break
            most = self._largest_batch()
            first = self._waiting.popleft()
            taken, samples = [first], first.batch.size
            while self._waiting and _together(first, self._waiting[0]):
                if samples + self._waiting[0].batch.size > most:
                    break
                samples += self._waiting[0].batch.size
                taken.append(self._waiting.popleft())
            self._samples -= samples
            self._answering[number] = True
            return taken

    def _hold(self, waiting: Waiting | None) -> bool:
        """Adds a waiting request. Returns False if `waiting` is None, which marks the end."""
        if waiting is None:
            return False
        self._waiting.append(waiting)
        self._samples += waiting.batch.size
        return True

    def _largest_batch(self) -> int:
        """Returns the maximum number of samples in the next batch."""
        if self._rule is None:
            return self._max_batch
        idle = len(self._answering) - sum(self._answering)
        return self._rule.size(max(1, self._samples), idle)

    def stop(self) -> None:
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()


def _together(one: Waiting, other: Waiting) -> bool:
    """Returns whether two requests may share a batch. Only requests with indices may share a batch, because the shapes
    of tensors may differ.
    """
    return one.work is of_indices and other.work is of_indices


def _results(each: Answerer, taken: Sequence[Waiting]) -> Sequence[Done | BaseException]:
    """Runs the requests as one batch, and returns the result of each request.

    If the batch raises an error, every request in the batch receives this error.
    """
    try:
        if len(taken) == 1:
            return [taken[0].work(each, taken[0].batch)]
        parts = [waiting.batch.inputs[INDICES] for waiting in taken]
        whole = of_indices(each, Batch(sum(map(len, parts)), {INDICES: np.concatenate(parts)}))
        ends = np.cumsum([len(part) for part in parts]).tolist()
        answers = whole.outputs[ANSWER]
        return [
            whole._replace(outputs={ANSWER: answers[end - len(part) : end]})
            for part, end in zip(parts, ends, strict=True)
        ]
    except BaseException as e:  # noqa: BLE001 - the client gets the error, and the instance continues
        return [e] * len(taken)
