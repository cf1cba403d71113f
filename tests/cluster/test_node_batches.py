"""An instance on a node combines whole requests into batches of an efficient size."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from harness.core.batch_rule import BatchRule
from harness.models.opened.node import ANSWER, INDICES
from harness.models.steps.postprocess import postprocessor
from harness.run.measured.answerer import Answerer
from harness.serve.loop import Later
from harness.serve.node.instances import Done, Instances, Waiting, of_indices
from harness.types import Array, Batch

CHEAPER = [0.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 17.0]
NO_CHEAPER = [float(size) for size in range(9)]
"""Batch times by number of samples; a larger batch saves no time."""


class Held:
    """A combined dataset and backend that returns answers only when the test allows it."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.may_go = threading.Event()
        self.sizes: list[int] = []

    def batch(self, indices: Sequence[int]) -> Batch:
        self.began.set()
        self.may_go.wait(10)
        self.sizes.append(len(indices))
        return Batch(len(indices), {"x": np.asarray(indices)})

    def infer(self, batch: Batch) -> Mapping[str, Array]:
        return {"y": batch.inputs["x"] * 2.0}


def request(*indices: int) -> Waiting:
    batch = Batch(len(indices), {INDICES: np.array(indices, np.int32)})
    return Waiting(Later(), of_indices, batch, lambda _done, _taken_ns: b"")


def asked(requests: Sequence[Waiting], rule: BatchRule | None) -> tuple[list[int], list[Any]]:
    """Returns the batch sizes and results of a first request and of the requests that arrive before it is answered."""
    held = Held()
    done = threading.Semaphore(0)
    each = Answerer(held, held, postprocessor((), None, None))  # type: ignore[arg-type]
    instances = Instances([each], 8, done.release, rule)
    instances.put(request(0))
    held.began.wait(10)
    for one in requests:
        instances.put(one)
    held.may_go.set()
    instances.stop()
    return held.sizes, instances.done()


@pytest.mark.parametrize(
    ("times_ns", "sizes"), [(None, [1, 8, 2]), (CHEAPER, [1, 8, 2]), (NO_CHEAPER, [1] * 11)]
)
def test_requests_are_batched_when_it_is_faster(
    times_ns: list[float] | None, sizes: list[int]
) -> None:
    rule = BatchRule(times_ns, 1) if times_ns else None
    found, results = asked([request(n) for n in range(1, 11)], rule)
    assert found == sizes
    answers = [done.outputs[ANSWER].ravel().tolist() for _, done, _ in results]
    assert answers == [[2.0 * n] for n in range(11)]


def test_a_request_of_several_samples_stays_whole() -> None:
    found, results = asked([request(1, 2, 3), request(4), request(5, 6)], BatchRule(NO_CHEAPER, 1))
    assert found == [1, 3, 1, 2]
    assert [len(done.outputs[ANSWER]) for _, done, _ in results] == [1, 3, 1, 2]


def test_a_batch_never_exceeds_the_largest_batch_size() -> None:
    found, _ = asked([request(1, 2, 3), request(4, 5, 6), request(7, 8, 9), request(10)], None)
    assert found == [1, 6, 4]


def test_an_error_of_a_batch_reaches_all_its_requests() -> None:
    wrong = request(2)._replace(batch=Batch(1, {INDICES: np.array(["no"])}))
    _, results = asked([request(1), wrong], None)
    first, *others = [result for _, result, _ in results]
    assert isinstance(first, Done)
    assert [type(other).__name__ for other in others] == ["UFuncTypeError"] * 2
