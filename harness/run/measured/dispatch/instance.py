"""Processes a batch on one copy of the model, takes the time stamps of the batch's stages, and writes its journal row.

Every sample of a batch is completed, even if the batch fails, because LoadGen would wait forever for a lost sample. The
hot path does not log and creates no object per sample.
"""

import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from harness.core.clock import wall_ns
from harness.errors import type_and_text
from harness.loadgen.answers import AnswerRow, Answers
from harness.models.steps.postprocess import NOT_FINITE, Postprocess
from harness.run.journal import Writer
from harness.types import Backend, Batch, Dataset, HasBatchInto, HasBuffers, show_shape


def raised_in_batch(dataset: Dataset, error: BaseException) -> str:
    return f"batch() of the dataset {type(dataset).__name__} raised {type_and_text(error)}"


class Failures:
    """Counts the samples of failed batches by kind and stores the first traceback. Any thread may call `add`."""

    def __init__(self) -> None:
        self.samples = 0
        self.first = ""
        """The first traceback. The last line of the traceback is the error, which names the dataset if the dataset
        raised the error.
        """
        self.kinds: dict[str, int] = {}
        """Number of samples by kind of failure; empty if the run has no server."""
        self._lock = threading.Lock()

    def add(
        self, error: BaseException, samples: int, kind: str = "", dataset: Dataset | None = None
    ) -> None:
        """Adds failed samples. dataset: the dataset if its batch() raised the error; None if another part raised it."""
        with self._lock:
            if not self.first:
                lines = traceback.format_exception(error)
                last = type_and_text(error) if dataset is None else raised_in_batch(dataset, error)
                self.first = "".join(lines if lines[-1].rstrip() == last else (*lines, last))
            self.samples += samples
            if kind:
                self.kinds[kind] = self.kinds.get(kind, 0) + samples


class Responder(Protocol):
    """Completes a batch in LoadGen, with or without answers. The methods return the wall-clock time of the call."""

    def complete(self, ids: Sequence[int], answers: Any, /) -> int: ...

    def complete_empty(self, ids: Sequence[int], /) -> int: ...


def batch_maker(dataset: Dataset, backend: Backend) -> Callable[[Sequence[int]], Batch]:
    """Returns a function that makes batches from dataset indices.

    The function writes batches into the backend's memory if dataset and backend support it.
    """
    if not (isinstance(backend, HasBuffers) and isinstance(dataset, HasBatchInto)):
        return dataset.batch
    buffers, plain, copied = backend.buffers, dataset.batch, dataset.batch_into
    take = backend.take

    def batch(indices: Sequence[int]) -> Batch:
        count = len(indices)
        into = None if count == 1 else buffers(count)  # a single row needs no shared buffer
        return plain(indices) if into is None else copied(indices, into, take)

    return batch


class Instance:
    """One copy of the model, with everything needed to process batches. Only one thread at a time may call the methods.

    cpus: logical processors on which this thread runs; () for any.
    """

    __slots__ = (
        "_dataset",
        "_failures",
        "_infer",
        "_not_finite",
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
        self._dataset, self._to_batch = dataset, batch_maker(dataset, backend)
        self._postprocess, self._not_finite = postprocess.answers, postprocess.not_finite
        self._responder = responder
        self._write = writer.batch
        self._row_shape, self._row_dtype = row.shape, row.dtype
        self._failures = failures

    def answer(self, ids: Sequence[int], indices: Sequence[int], first: int, taken_ns: int) -> None:
        """Processes one batch.

        first: issue order of the first sample. taken_ns: wall-clock time at which the batch was taken.
        """
        gathered = inferred = taken_ns
        try:
            batch = self._to_batch(indices)
            gathered = inferred = wall_ns()
            outputs = self._infer(batch)
            inferred = wall_ns()
            answers = self._postprocess(outputs, indices)
            # Without this check, assignment to the buffer would silently broadcast a wrong shape.
            if answers.shape != (len(ids), *self._row_shape) or answers.dtype != self._row_dtype:
                raise ValueError(self._mismatch(answers, len(ids)))
            postprocessed = wall_ns()
            completed = self._responder.complete(ids, answers)
        except BaseException as e:  # noqa: BLE001 - a failed batch is counted and makes the run INVALID
            failed = 1
            # If no time stamp was taken after batch(), batch() raised the error.
            in_batch = gathered is taken_ns
            self._failures.add(e, len(ids), dataset=self._dataset if in_batch else None)
            postprocessed = wall_ns()
            completed = self._responder.complete_empty(ids)
        # The outputs are checked after the answer, so that the check does not add to the latency.
        else:
            failed = int(self._not_finite(outputs, answers))
            if failed:
                self._failures.add(ValueError(NOT_FINITE), len(ids))
        self._write(first, indices, failed, taken_ns, gathered, inferred, postprocessed, completed)

    def _mismatch(self, answers: Answers, count: int) -> str:
        return (
            f"the backend's answers are {answers.dtype} of shape {show_shape(answers.shape)}, "
            f"but should be {self._row_dtype} of shape {show_shape((count, *self._row_shape))}"
        )
