"""Every sample is answered exactly once and in order, whatever the batch sizes, threads and faults."""

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.clock import wall_ns
from harness.loadgen.answers import AnswerRow, Ragged
from harness.models.steps.postprocess import Postprocess, not_finite
from harness.run.journal import Journal
from harness.run.measured.dispatch.instance import Failures, Instance, batch_maker
from harness.run.measured.dispatch.shared import SPLIT_FROM, SharedDispatcher
from harness.run.measured.dispatch.threads import (
    Dispatcher,
    InlineDispatcher,
    QueuedDispatcher,
    SlicedDispatcher,
)
from harness.types import Batch
from tests.builders.support import journal

WAIT_S = 60.0  # the wait lasts so long only if a test fails
LAST_NS = 2**62  # this time is later than any other time stamp
ALL = (InlineDispatcher, SlicedDispatcher, QueuedDispatcher, SharedDispatcher)
each_dispatcher = pytest.mark.parametrize("make", ALL, ids=lambda m: m.__name__)


class Plugin:
    """A combined backend and dataset that answers each sample with its dataset index."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def batch(self, indices: Sequence[int]) -> Batch:
        return Batch(len(indices), {"samples": np.asarray(indices, np.int64)})

    def infer(self, batch: Batch) -> Any:
        self.sizes.append(batch.size)
        return batch.inputs["samples"]

    def postprocess(self, outputs: Any, indices: Sequence[int]) -> Any:
        return outputs


class InOwnMemory(Plugin):
    """Works like the base class, but returns the backend's own memory for batches of an even size."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = np.zeros(64, np.int64)
        self.in_memory = 0

    def buffers(self, size: int) -> dict[str, Any] | None:
        return None if size % 2 else {"samples": self.memory[:size]}

    def take(self, rows: Any, places: Any, into: Any) -> None:
        into[...] = rows[places]
        self.in_memory += len(into)

    def batch_into(self, indices: Sequence[int], into: Any, take: Any) -> Batch:
        take(np.arange(64), list(indices), into["samples"])
        return Batch(len(indices), into)


def test_batches_are_made_in_the_memory_that_a_backend_offers() -> None:
    plugin: Any = InOwnMemory()
    batch = batch_maker(plugin, plugin)
    for size in (1, 2, 4, 5):
        made = batch(range(size))
        assert made.size == size
        assert made.inputs["samples"].tolist() == list(range(size))
        assert np.shares_memory(made.inputs["samples"], plugin.memory) == (size % 2 == 0)
    assert plugin.in_memory == 6
    plain: Any = Plugin()
    assert batch_maker(plain, plugin) == plain.batch
    assert batch_maker(plugin, plain) == plugin.batch


class Recorder:
    """Receives the answers in place of LoadGen; one worker uses each recorder."""

    def __init__(self) -> None:
        self.answers: list[tuple[list[int], list[int] | None]] = []
        self.some = threading.Semaphore(0)

    def complete(self, ids: Sequence[int], answers: Any = None) -> int:
        self.answers.append((list(ids), answers.tolist()))
        self.some.release()
        return LAST_NS

    def complete_empty(self, ids: Sequence[int]) -> int:
        self.answers.append((list(ids), None))
        self.some.release()
        return LAST_NS


class Bench:
    """Instances with a common journal, each with its own plug-in and recorder."""

    row = AnswerRow((), np.dtype(np.int64))
    recorder: type[Recorder] = Recorder

    def __init__(self, samples: int, workers: int, plugin: Callable[[], Plugin] = Plugin) -> None:
        self.journal: Journal = journal(samples, workers)
        self.failures = Failures()
        self.plugins = [plugin() for _ in range(workers)]
        self.recorders = [self.recorder() for _ in range(workers)]
        self.instances = [self._instance(w) for w in range(workers)]

    def _instance(self, worker: int) -> Instance:
        plugin: Any = self.plugins[worker]
        recorder: Any = self.recorders[worker]
        writer = self.journal.writer(worker)
        steps = Postprocess(plugin.postprocess, not_finite)
        return Instance(plugin, plugin, steps, recorder, writer, self.row, self.failures)

    def batches(self) -> list[tuple[int, list[int], list[int] | None, int]]:
        """Returns (issue order of the first sample, ids, answers, failed) for each batch, in issue order."""
        batches = []
        for worker, recorder in enumerate(self.recorders):
            rows = self.journal.rows(worker)
            for row, (ids, answers) in zip(rows, recorder.answers, strict=True):
                assert row["size"] == len(ids)
                batches.append((int(row["first"]), ids, answers, int(row["failed"])))
        return sorted(batches)


def run(make: Any, callbacks: list[int], max_batch: int, bench: Bench) -> None:
    """Issues samples in calls of the sizes `callbacks`; the i-th sample has id 1000 + i and dataset index 7 i."""
    dispatcher: Dispatcher = make(bench.instances, max_batch, bench.journal.issuer())
    done = 0
    for count in callbacks:
        order = range(done, done + count)
        dispatcher.issue([1000 + i for i in order], [7 * i for i in order])
        done += count
    dispatcher.stop()


@each_dispatcher
@given(
    callbacks=st.lists(st.integers(1, 20), max_size=12),
    max_batch=st.integers(1, 9),
    workers=st.integers(1, 3),
)
def test_no_sample_is_lost_duplicated_or_reordered(
    make: Any, callbacks: list[int], max_batch: int, workers: int
) -> None:
    total = sum(callbacks)
    bench = Bench(total, workers)
    run(make, callbacks, max_batch, bench)
    seen = 0
    for first, ids, answers, failed in bench.batches():
        assert first == seen  # batches contain consecutive samples in the order of issue
        assert 1 <= len(ids) <= max_batch
        assert ids == [1000 + i for i in range(first, first + len(ids))]
        assert answers == [7 * i for i in range(first, first + len(ids))]
        assert not failed
        seen += len(ids)
    assert seen == total
    assert bench.journal.issued == bench.journal.completed == total
    assert bench.journal.index.tolist() == [7 * i for i in range(total)]
    assert bench.failures.samples == 0


class RaggedPlugin(Plugin):
    """Answers with n copies of the dataset index; n is the index's last digit."""

    def infer(self, batch: Batch) -> Any:
        return [np.full(i % 10, i) for i in batch.inputs["samples"].tolist()]

    def postprocess(self, outputs: Any, indices: Sequence[int]) -> Any:
        return Ragged(outputs)


class RaggedRecorder(Recorder):
    def complete(self, ids: Sequence[int], answers: Any = None) -> int:
        self.answers.append((list(ids), [row.tolist() for row in answers.rows]))
        return LAST_NS


class RaggedBench(Bench):
    row = AnswerRow((None,), np.dtype(np.int64))
    recorder = RaggedRecorder


@each_dispatcher
@given(
    callbacks=st.lists(st.integers(1, 20), max_size=12),
    max_batch=st.integers(1, 9),
    workers=st.integers(1, 3),
)
def test_answers_of_different_lengths_are_not_lost_or_swapped(
    make: Any, callbacks: list[int], max_batch: int, workers: int
) -> None:
    total = sum(callbacks)
    bench = RaggedBench(total, workers, RaggedPlugin)
    run(make, callbacks, max_batch, bench)
    answers = {
        i: row
        for _, ids, rows, _ in bench.batches()
        for i, row in zip(ids, rows or [], strict=True)
    }
    expected: dict[int, Any] = {1000 + i: [7 * i] * (7 * i % 10) for i in range(total)}
    assert answers == expected
    assert bench.failures.samples == 0


def test_answers_of_different_lengths_are_checked_like_all_others() -> None:
    def ragged(_: Any) -> Ragged:
        return Ragged([np.zeros((4, 2), np.int64)] * 3)

    bench = RaggedBench(3, 1, lambda: Faulty(ragged, "postprocess"))
    bench.instances[0].answer([1, 2, 3], [4, 5, 6], 0, 1)
    assert bench.recorders[0].answers == [([1, 2, 3], None)]
    assert bench.failures.first.strip().endswith("[3, ?, 2], but should be int64 of shape [3, ?]")


@pytest.mark.usefixtures("_eager_switching")
@each_dispatcher
def test_batches_stay_contiguous_when_threads_interrupt_each_other(make: Any) -> None:
    bench = Bench(10_000, 3)
    run(make, [1, 30, 2, 17] * 200, 4, bench)
    assert [i for _, ids, _, _ in bench.batches() for i in ids] == list(range(1000, 11_000))
    assert bench.journal.completed == 10_000


class Counted(list[int]):
    """A list that counts the items copied by its slices, and by slices of the slices."""

    copied = 0

    def __getitem__(self, at: Any) -> Any:
        part = super().__getitem__(at)
        if not isinstance(at, slice):
            return part
        Counted.copied += len(part)
        return Counted(part)


def copies_of_a_burst(make: Any, samples: int, max_batch: int) -> int:
    """Returns how many items one instance copies for a burst and one more query."""
    bench = Bench(samples + 1, 1)
    dispatcher: Dispatcher = make(bench.instances, max_batch, bench.journal.issuer())
    Counted.copied = 0
    dispatcher.issue(Counted(range(samples)), Counted(range(samples)))
    dispatcher.issue(Counted([samples]), Counted([samples]))
    dispatcher.stop()
    assert [i for _, ids, _, _ in bench.batches() for i in ids] == list(range(samples + 1))
    return Counted.copied


@each_dispatcher
def test_burst_is_copied_once_for_all_its_batches(make: Any) -> None:
    """Bug: each batch copied all waiting samples under the lock, so the work was quadratic."""
    assert copies_of_a_burst(make, 999, 2) <= 2 * 1000
    assert copies_of_a_burst(make, 1000, 3) <= 2 * 1001


@each_dispatcher
def test_stopping_without_a_query_ends(make: Any) -> None:
    bench = Bench(0, 3)
    run(make, [], 4, bench)
    assert bench.batches() == []


class Gated(Plugin):
    """Reports when it has a batch, and answers only when the test allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.has_one, self.may = threading.Semaphore(0), threading.Semaphore(0)

    def infer(self, batch: Batch) -> Any:
        self.has_one.release()
        assert self.may.acquire(timeout=WAIT_S)
        return super().infer(batch)


def test_server_batches_grow_while_the_model_is_busy_and_only_then() -> None:
    bench = Bench(12, 1, Gated)
    (plugin,), (recorder,) = bench.plugins, bench.recorders
    assert isinstance(plugin, Gated)
    dispatcher = QueuedDispatcher(bench.instances, 8, bench.journal.issuer())
    dispatcher.issue([0], [0])
    # The idle worker takes the first sample at once, in a batch of one.
    assert plugin.has_one.acquire(timeout=WAIT_S)
    for i in range(1, 12):
        dispatcher.issue([i], [i])
    plugin.may.release(3)
    for _ in range(3):
        assert recorder.some.acquire(timeout=WAIT_S)
    dispatcher.stop()
    assert plugin.sizes == [1, 8, 3]


def test_offline_slices_have_the_largest_allowed_size() -> None:
    bench = Bench(20, 2)
    run(SlicedDispatcher, [20], 8, bench)
    assert [len(ids) for _, ids, _, _ in bench.batches()] == [8, 8, 4]


def test_a_busy_instance_leaves_samples_to_the_other_instances() -> None:
    bench = Bench(30, 2, Gated)
    a, b = bench.plugins
    assert isinstance(a, Gated)
    assert isinstance(b, Gated)
    dispatcher = SlicedDispatcher(bench.instances, 10, bench.journal.issuer())
    dispatcher.issue(list(range(30)), list(range(30)))
    assert a.has_one.acquire(timeout=WAIT_S)
    assert b.has_one.acquire(timeout=WAIT_S)
    b.may.release(2)
    for _ in range(2):
        assert bench.recorders[1].some.acquire(timeout=WAIT_S)
    a.may.release()
    dispatcher.stop()
    assert (a.sizes, b.sizes) == ([10], [10, 10])


class Wake(SimpleQueue[None]):
    """Reports when a worker of a SharedDispatcher is idle."""

    idle = threading.Semaphore(0)

    def get(self, block: bool = True, timeout: float | None = None) -> None:
        self.idle.release()
        super().get(block, timeout)


@pytest.mark.parametrize(
    ("samples", "sizes"),
    [(1, ([1], [])), (SPLIT_FROM, ([SPLIT_FROM], [])), (SPLIT_FROM + 3, ([6], [5]))],
)
def test_issuing_thread_shares_only_if_waking_another_pays(
    samples: int, sizes: tuple[list[int], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Wake, "idle", threading.Semaphore(0))
    monkeypatch.setattr("harness.run.measured.dispatch.shared.SimpleQueue", Wake)
    bench = Bench(samples, 2, Gated)
    own, other = bench.plugins
    assert isinstance(own, Gated)
    assert isinstance(other, Gated)
    dispatcher = SharedDispatcher(bench.instances, 64, bench.journal.issuer())
    assert Wake.idle.acquire(timeout=WAIT_S)
    order = list(range(samples))
    issuing = threading.Thread(target=dispatcher.issue, args=(order, order))
    issuing.start()
    assert own.has_one.acquire(timeout=WAIT_S)
    if sizes[1]:
        assert other.has_one.acquire(timeout=WAIT_S)
        other.may.release()
    own.may.release()
    issuing.join(WAIT_S)
    dispatcher.stop()
    assert (own.sizes, other.sizes) == sizes


def test_a_shared_dispatcher_of_one_instance_needs_no_other_thread() -> None:
    bench = Bench(20, 1)
    before = threading.active_count()
    dispatcher = SharedDispatcher(bench.instances, 8, bench.journal.issuer())
    assert threading.active_count() == before
    dispatcher.issue(list(range(20)), list(range(20)))
    assert bench.plugins[0].sizes == [8, 8, 4]
    dispatcher.stop()


class Faulty(Plugin):
    """Fails in one of its steps for the given samples, and answers all other samples."""

    def __init__(self, fault: Callable[[Any], Any], where: str = "infer", only: int = -1) -> None:
        super().__init__()
        self.fault, self.where, self.only = fault, where, only

    def batch(self, indices: Sequence[int]) -> Batch:
        return self.fault(indices) if self.where == "batch" else super().batch(indices)

    def infer(self, batch: Batch) -> Any:
        hit = self.only < 0 or self.only in batch.inputs["samples"]
        return self.fault(batch) if self.where == "infer" and hit else super().infer(batch)

    def postprocess(self, outputs: Any, indices: Sequence[int]) -> Any:
        return self.fault(outputs) if self.where == "postprocess" else outputs


def raising(error: BaseException) -> Callable[[Any], Any]:
    def fault(_: Any) -> Any:
        raise error

    return fault


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def zeros(dtype: type, *more: int, extra: int = 0) -> Callable[[Batch], Any]:
    return lambda batch: np.zeros((batch.size + extra, *more), dtype)


WANTED = "but should be int64 of shape [3]"
FAULTS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "exception": (raising(RuntimeError("boom")), "RuntimeError: boom"),
    "SystemExit": (raising(SystemExit(3)), "SystemExit: 3"),
    "KeyboardInterrupt": (raising(KeyboardInterrupt()), "KeyboardInterrupt"),
    "MemoryError": (raising(MemoryError()), "MemoryError"),
    "unprintable": (
        raising(Unprintable()),
        "Unprintable: its text is not available: __str__ raised RuntimeError",
    ),
    "too few": (
        zeros(np.int64, extra=-1),
        f"ValueError: the backend's answers are int64 of shape [2], {WANTED}",
    ),
    "too many": (
        zeros(np.int64, extra=1),
        f"ValueError: the backend's answers are int64 of shape [4], {WANTED}",
    ),
    "wrong dtype": (
        zeros(np.int32),
        f"ValueError: the backend's answers are int32 of shape [3], {WANTED}",
    ),
    "wrong row": (
        zeros(np.int64, 1),
        f"ValueError: the backend's answers are int64 of shape [3, 1], {WANTED}",
    ),
    "nothing": (lambda _: None, "AttributeError: 'NoneType' object has no attribute 'shape'"),
}


@pytest.mark.parametrize("fault", FAULTS)
@each_dispatcher
def test_a_failing_backend_answers_every_sample_empty_and_is_counted(make: Any, fault: str) -> None:
    infer, text = FAULTS[fault]
    bench = Bench(6, 2, lambda: Faulty(infer))
    run(make, [3, 3], 3, bench)
    batches = bench.batches()
    assert [ids for _, ids, _, _ in batches] == [[1000, 1001, 1002], [1003, 1004, 1005]]
    assert [answers for _, _, answers, _ in batches] == [None, None]
    assert [failed for *_, failed in batches] == [1, 1]
    assert bench.failures.samples == 6
    assert bench.failures.first.strip().splitlines()[-1] == text


@each_dispatcher
def test_one_failed_batch_fails_no_other(make: Any) -> None:
    bench = Bench(5, 1, lambda: Faulty(raising(ValueError()), only=14))
    run(make, [5], 1, bench)
    assert [answers for _, _, answers, _ in bench.batches()] == [[0], [7], None, [21], [28]]
    assert bench.failures.samples == 1


def test_first_failure_is_the_reported_one() -> None:
    failures = Failures()
    failures.add(ValueError("first"), 2)
    failures.add(ValueError("second"), 3)
    assert failures.first == "ValueError: first\n"
    assert failures.samples == 5


@pytest.mark.parametrize(
    ("where", "last"),
    [
        ("batch", "batch() of the dataset Faulty raised ValueError: no row"),
        ("infer", "ValueError: no row"),
        ("postprocess", "ValueError: no row"),
    ],
)
def test_error_of_the_dataset_is_not_blamed_on_the_backend(where: str, last: str) -> None:
    bench = Bench(1, 1, lambda: Faulty(raising(ValueError("no row")), where))
    bench.instances[0].answer([1], [2], 0, wall_ns())
    assert bench.failures.first.splitlines()[0].startswith("Traceback")
    assert bench.failures.first.splitlines()[-1] == last


@pytest.mark.parametrize("where", ["batch", "infer", "postprocess"])
def test_stamps_of_a_failed_batch_are_in_order(where: str) -> None:
    bench = Bench(1, 1, lambda: Faulty(raising(ValueError()), where))
    bench.instances[0].answer([1], [2], 0, 1)
    (row,) = bench.journal.rows(0).tolist()
    assert list(row[3:]) == sorted(row[3:])
    assert bench.failures.samples == 1


def test_an_answer_that_loadgen_does_not_take_is_answered_empty() -> None:
    bench = Bench(2, 1)
    recorder = bench.recorders[0]
    recorder.complete = raising(TypeError("not taken"))  # type: ignore[assignment, method-assign]
    bench.instances[0].answer([1, 2], [3, 4], 0, 1)
    assert recorder.answers == [([1, 2], None)]
    assert bench.failures.samples == 2
