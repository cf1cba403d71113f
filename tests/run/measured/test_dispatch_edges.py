"""Special cases of the dispatchers: a query as large as a batch, NaN, pinned workers, and samples of many lengths."""

import os
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from harness.run.measured.dispatch.shared import SharedDispatcher
from harness.run.measured.dispatch.threads import (
    InlineDispatcher,
    QueuedDispatcher,
    SlicedDispatcher,
)
from harness.types import Batch
from tests.run.measured.test_threads import Bench, Plugin, run


def test_a_query_as_large_as_a_batch_is_taken_at_its_callback() -> None:
    bench = Bench(4, 1)
    run(InlineDispatcher, [4], 4, bench)
    assert bench.journal.rows(0)["taken_ns"].tolist() == [bench.journal.entry_ns[0]]


class Undefined(Plugin):
    def postprocess(self, outputs: Any, indices: Sequence[int]) -> Any:
        self.outputs = outputs
        return outputs

    def infer(self, batch: Batch) -> Any:
        return np.full(batch.size, np.nan)


class UndefinedBench(Bench):
    row = Bench.row._replace(dtype=np.dtype(np.float64))


def test_the_samples_of_a_batch_with_nan_are_counted_as_failed_and_named() -> None:
    bench = UndefinedBench(3, 1, Undefined)
    run(InlineDispatcher, [3], 3, bench)
    assert bench.failures.samples == 3
    assert "NaN" in bench.failures.first
    assert bench.journal.rows(0)["failed"].tolist() == [1]


class Placed(Plugin):
    """Records the processors on which the inferring thread may run."""

    def __init__(self) -> None:
        super().__init__()
        self.cpus: set[int] = set()
        self.thread = ""

    def infer(self, batch: Batch) -> Any:
        self.cpus = os.sched_getaffinity(0)
        self.thread = threading.current_thread().name
        return super().infer(batch)


class PlacedSlowly(Placed):
    """Sleeps in each batch, so that the other instance also gets work on a busy machine."""

    def infer(self, batch: Batch) -> Any:
        time.sleep(1e-4)
        return super().infer(batch)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor is all there is")
@pytest.mark.parametrize("make", [QueuedDispatcher, SlicedDispatcher])
def test_a_worker_runs_on_the_processors_of_its_instance(make: Any) -> None:
    bench = Bench(2, 1, Placed)
    cpu = max(os.sched_getaffinity(0))
    bench.instances[0].cpus = (cpu,)
    run(make, [2], 2, bench)
    plugin: Any = bench.plugins[0]
    assert plugin.cpus == {cpu}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor is all there is")
def test_a_worker_beside_the_issuing_thread_runs_on_its_own_processors() -> None:
    bench = Bench(4000, 2, PlacedSlowly)
    cpu = max(os.sched_getaffinity(0))
    bench.instances[1].cpus = (cpu,)
    run(SharedDispatcher, [40] * 100, 4, bench)
    worker: Any = bench.plugins[1]
    assert worker.thread.startswith("instance-")
    assert worker.cpus == {cpu}


def test_offlines_samples_are_sorted_by_length_into_batches() -> None:
    bench = Bench(6, 1)
    dispatcher = SlicedDispatcher(
        bench.instances, 2, bench.journal.issuer(), lambda indices: np.array(indices) % 3
    )
    dispatcher.issue(list(range(6)), list(range(6)))
    dispatcher.stop()
    for _, ids, answers, _ in bench.batches():
        assert len({answer % 3 for answer in answers or []}) == 1, ids
