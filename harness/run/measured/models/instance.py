"""Processes one sample with its model from the cache. Takes the time stamps and writes the journal row.

A sample is completed even after an error.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from harness.core.clock import wall_ns
from harness.loadgen.answers import Answers, Ragged
from harness.models.cache.cache import ALONE, HIT, JOINED, ORIGINS, Lease
from harness.models.cache.members import OpenModel, ResidentModels
from harness.models.steps.postprocess import NOT_FINITE, Postprocess, wrong_count
from harness.run.journal import CachedWriter
from harness.run.measured.dispatch.instance import Failures, Instance, Responder
from harness.run.measured.models.dataset import Request, SetDataset
from harness.types import Outputs

_FAILED = ORIGINS.index("failed")


def origin_of(lease: Lease[OpenModel]) -> int:
    """Returns the model's origin as an index into ORIGINS."""
    if lease.how in (HIT, JOINED):
        return ORIGINS.index(lease.how)
    tier = "source" if lease.loaded.from_source else "local"
    return ORIGINS.index(f"alone-{tier}" if lease.how == ALONE else tier)


def cache_summary(models: ResidentModels) -> Mapping[str, Any]:
    """Returns `models` for the `ended` message: the cache's counts per model, in the order of the set."""
    files = models.members.file_counts
    return {
        "resident": [asdict(counts) for counts in models.counts.values()],
        "files": None if files is None else [asdict(counts) for counts in files.values()],
    }


def as_bytes(answers: Answers) -> Ragged:
    """Returns one answer as a row of bytes, because the answers of the models differ in shape and type."""
    row = answers.rows[0] if isinstance(answers, Ragged) else answers[0]
    return Ragged([np.frombuffer(np.ascontiguousarray(row).tobytes(), np.uint8)])


class SetBackend:
    """Presents the models of a set as one backend, for the batches before and after LoadGen's run."""

    def __init__(self, models: ResidentModels, about: Mapping[str, Any]) -> None:
        """about: returned by `describe`."""
        self._models = models
        self._about = about

    def infer(self, request: Request) -> Ragged:
        lease = self._models.acquire(request.model)
        try:
            outputs = lease.loaded.backend.infer(request)  # type: ignore[arg-type] # as a Batch
            post = self._models.members.postprocess[request.model]
            answers = post.answers(outputs, request.indices)
            if len(answers) != 1:
                raise ValueError(wrong_count(len(answers), 1))
            if post.not_finite(outputs, answers):
                raise ValueError(NOT_FINITE)
            return as_bytes(answers)
        finally:
            self._models.release(lease)

    def describe(self) -> Mapping[str, object]:
        return self._about


def _as_they_are(outputs: Any, _indices: Sequence[int]) -> Any:
    return outputs


def _unchecked(_outputs: Outputs, _answers: Answers) -> bool:
    return False


OF_THE_MODELS = Postprocess(_as_they_are, _unchecked)
"""Postprocessing that changes nothing, because SetBackend runs each model's postprocessing."""


class SetInstance(Instance):
    """An instance that runs any model of the set. Only one thread at a time may call the methods."""

    __slots__ = (
        "_complete",
        "_dataset_of",
        "_fail",
        "_fails",
        "_models",
        "_row",
        "_steps",
        "_to_request",
    )

    def __init__(
        self,
        models: ResidentModels,
        dataset: SetDataset,
        responder: Responder,
        writer: CachedWriter,
        failures: Failures,
    ) -> None:
        self.cpus = ()
        self._models = models
        self._steps = models.members.postprocess
        self._dataset_of, self._to_request = dataset.of, dataset.batch
        self._complete, self._fail = responder.complete, responder.complete_empty
        self._row = writer.sample
        self._fails = failures.add

    def answer(self, ids: Sequence[int], indices: Sequence[int], first: int, taken_ns: int) -> None:
        """Processes one sample. first: issue order of the sample. taken_ns: wall-clock time at which the sample was
        taken.
        """
        gathered = acquired = inferred = taken_ns
        lease: Lease[OpenModel] | None = None
        request: Request | None = None
        origin, evicted, failed = _FAILED, 0, 0
        try:
            request = self._to_request(indices)
            gathered = acquired = inferred = wall_ns()
            lease = self._models.acquire(request.model)
            origin, evicted = origin_of(lease), len(lease.evicted)
            acquired = inferred = wall_ns()
            outputs = lease.loaded.backend.infer(request)  # type: ignore[arg-type] # as a Batch
            inferred = wall_ns()
            steps = self._steps[request.model]
            answers = steps.answers(outputs, request.indices)
            if len(answers) != 1:
                raise ValueError(wrong_count(len(answers), 1))
            answer = as_bytes(answers)
            postprocessed = wall_ns()
            completed = self._complete(ids, answer)
        except BaseException as e:  # noqa: BLE001 - a failed sample is counted and makes the run INVALID
            failed = 1
            by_dataset = self._dataset_of(indices[0]) if request is None else None
            self._fails(e, 1, dataset=by_dataset)
            if lease is None and request is not None:
                acquired = inferred = wall_ns()  # the load failed, so no later stamp exists
            postprocessed = wall_ns()
            completed = self._fail(ids)
        # The outputs are checked after the answer, so that the check does not add to the latency.
        else:
            if steps.not_finite(outputs, answers):
                failed = 1
                self._fails(ValueError(NOT_FINITE), 1)
        if lease is not None:
            evicted += self._models.release(lease)
        self._row(
            first,
            indices[0],
            failed,
            taken_ns,
            gathered,
            acquired,
            inferred,
            postprocessed,
            completed,
            origin,
            evicted,
        )
