"""Batches wait for more samples and still meet the SLO; tested with a clock that stands still."""

from queue import Empty
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.batch_rule import batch_times
from harness.run.measured.dispatch.deadline import Deadlines, PlanningDispatcher
from tests.builders.support import journal
from tests.run.measured.test_threads import Bench, copies_of_a_burst, run

MS = 1_000_000


def latency_curve(points: list[tuple[int, float]], most: int) -> list[int]:
    times: list[int] = batch_times(points, most).astype(int).tolist()
    return times


CURVE = latency_curve([(1, 11 * MS), (30, 40 * MS)], 30)
"""A batch takes 10 ms, plus 1 ms per sample."""


def test_curve_passes_through_the_measured_points_and_never_falls() -> None:
    curve = latency_curve([(8, 30), (1, 10), (2, 20), (4, 15)], 8)
    assert curve == [0, 10, 20, 20, 20, 22, 25, 27, 30]
    assert latency_curve([(4, 100)], 6) == [0, 100, 100, 100, 100, 125, 150]


def chosen(waited_ms: list[float], bound_ms: int = 50, instances: int = 1) -> int:
    now = 1_000 * MS
    entries = np.asarray([now - int(w * MS) for w in waited_ms])
    return Deadlines(bound_ms * MS, CURVE, instances).size(entries, now, 0)


@pytest.mark.parametrize(
    ("waited_ms", "size"),
    [
        ([0] * 30, 30),  # all 30 samples take 40 ms, so none is late
        ([10] * 30, 30),  # all 30 samples end just in time
        ([15] * 25 + [0] * 5, 25),  # 25 samples take 35 ms, and the other five end at 50 ms
        # The oldest sample has 38 ms left, and the two samples that must wait have more.
        ([12] + [0] * 29, 28),
        ([45] * 30, 30),  # all samples are late in any case, so they run as fast as possible
        # Late samples must not delay the samples that are still in time.
        ([45] * 10 + [0] * 20, 30),
        ([39], 1),
        ([60], 1),
    ],
)
def test_batch_size_is_limited_by_the_bound_of_its_oldest_sample(
    waited_ms: list[float], size: int
) -> None:
    assert chosen(waited_ms) == size


def test_batch_is_cut_if_that_saves_more_samples_than_it_makes_late() -> None:
    """The oldest sample may take 30 ms and the others 35 ms, but one batch of all samples takes 40 ms."""
    # The other ten samples are late in any case, so only the first 20 samples matter.
    assert chosen([20.0] * 20 + [15.0] * 10) == 20


def test_batch_is_not_cut_if_that_makes_more_samples_late() -> None:
    """The oldest sample may take 38 ms and the others 41 ms, but two remaining samples would be answered after 50 ms."""
    assert chosen([12.0] + [9.0] * 29) == 30


def test_another_free_instance_takes_the_other_samples_at_once() -> None:
    now = 1_000 * MS
    entries = np.asarray([now - 12 * MS] + [now - 9 * MS] * 29)
    assert Deadlines(50 * MS, CURVE, 2).size(entries, now, 0) == 28
    busy = Deadlines(50 * MS, CURVE, 2)
    # A batch of 30 samples takes 40 ms and ends in time.
    assert busy.size(np.asarray([now] * 30), now - 1, 1) == 30
    assert busy.size(entries, now, 0) == 30


rises = st.lists(st.integers(0, 20), min_size=12, max_size=12)


@given(
    rises=rises,
    gaps=st.lists(st.integers(0, 20), min_size=1, max_size=12),
    bound=st.integers(5, 120),
)
def test_batch_size_makes_no_more_samples_late_than_greedy_batches(
    rises: list[int], gaps: list[int], bound: int
) -> None:
    """For one instance, the prediction assumes that the batch runs first, and all other samples follow in one batch."""
    curve = latency_curve(list(enumerate(np.cumsum([5, *rises[1:]]).tolist(), 1)), 12)
    entries = np.cumsum(gaps)
    now, count = int(entries[-1]), len(gaps)
    size = Deadlines(bound, curve, 1).size(entries, now, 0)
    assert 1 <= size <= count

    def late(cut: int) -> int:
        first = now + curve[cut]
        ends = [first] * cut + [first + curve[count - cut]] * (count - cut)
        return sum(end > entry + bound for end, entry in zip(ends, entries, strict=True))

    assert late(size) <= late(count)
    hopeless = sum(now + curve[1] > entry + bound for entry in entries)
    in_batch = sum(now + curve[size] > entry + bound for entry in entries[:size])
    assert size == count or in_batch <= min(hopeless, size)


class Script:
    """A clock, and a queue whose items arrive at given times; waiting advances the clock."""

    def __init__(self, arrivals_ns: list[int]) -> None:
        self.now_ns = 0
        self.coming: list[tuple[int, Any]] = [(ns, ([i], [i])) for i, ns in enumerate(arrivals_ns)]

    def __call__(self) -> int:
        return self.now_ns

    def put(self, item: Any) -> None:
        self.coming.insert(0, (self.now_ns, item))

    def get(self, timeout: float | None = None) -> Any:
        if not self.coming:
            assert timeout is not None, "blocked forever"
        end_ns = self.now_ns + round((timeout or 0) * 1e9)
        if timeout is not None and (not self.coming or self.coming[0][0] > end_ns):
            self.now_ns = end_ns
            raise Empty
        at_ns, item = self.coming.pop(0)
        self.now_ns = max(self.now_ns, at_ns)
        return item


def batches(
    arrivals_ms: list[float],
    monkeypatch: pytest.MonkeyPatch,
    wait_ms: float = 0,
    deadlines: Deadlines | None = None,
    busy_ms: float = 0,
) -> list[tuple[float, int]]:
    """Returns (ms, samples) for each batch of a worker that is busy for `busy_ms` after each batch."""
    arrivals_ns = [int(ms * MS) for ms in arrivals_ms]
    script = Script(arrivals_ns)
    monkeypatch.setattr("harness.run.measured.dispatch.deadline.wall_ns", script)
    monkeypatch.setattr("harness.run.measured.dispatch.threads.SimpleQueue", lambda: script)
    view = journal(len(arrivals_ns), 1)
    view.entry_ns[:] = arrivals_ns
    dispatcher = PlanningDispatcher(
        [], 8, view.issuer(), view.entry_ns, int(wait_ms * MS), deadlines
    )
    sizes = []
    taken = 0
    while taken < len(arrivals_ns):
        batch = dispatcher._take_planned(0)
        assert batch is not None
        ids, indices, first = batch
        assert ids == indices == list(range(first, first + len(ids)))
        assert first == taken
        taken += len(ids)
        sizes.append((script.now_ns / MS, len(ids)))
        script.now_ns += int(busy_ms * MS)
    return sizes


def test_a_batch_waits_for_its_oldest_sample_only(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = batches([0, 3, 4.9, 5.1, 20], monkeypatch, wait_ms=5)
    assert taken == [(5, 3), (10.1, 1), (25, 1)]


def test_a_full_batch_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    assert batches([0, *[1] * 9], monkeypatch, wait_ms=5) == [(1, 8), (6, 2)]


def test_sample_that_waited_for_a_busy_model_does_not_wait_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert batches([0, 2, 3], monkeypatch, wait_ms=1, busy_ms=10) == [(1, 1), (11, 2)]


def test_batch_without_a_wait_takes_the_samples_present(monkeypatch: pytest.MonkeyPatch) -> None:
    assert batches([0, 0, 1, 1, 1], monkeypatch, busy_ms=2) == [(0, 2), (2, 3)]


def test_wait_ends_before_it_makes_the_oldest_sample_late(monkeypatch: pytest.MonkeyPatch) -> None:
    # The oldest sample waits for 6 ms, because a batch of two takes 12 ms, and must end within 0.9 of the 20 ms.
    deadlines = Deadlines(20 * MS, CURVE, 1)
    assert batches([0, 30], monkeypatch, wait_ms=15, deadlines=deadlines) == [(6, 1), (36, 1)]


def test_a_shortened_batch_leaves_its_other_samples_to_the_next_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tight = Deadlines(13 * MS, CURVE, 2)
    taken = batches([0, 0, 0, 0, 0], monkeypatch, deadlines=tight)
    assert taken == [(0, 3), (0, 2)]


@given(
    callbacks=st.lists(st.integers(1, 20), max_size=12),
    max_batch=st.integers(1, 9),
    workers=st.integers(1, 3),
    wait_ns=st.sampled_from((0, 50_000)),
    bound_ns=st.sampled_from((None, 1, 10**6, 10**12)),
)
def test_no_sample_is_lost_duplicated_or_reordered(
    callbacks: list[int], max_batch: int, workers: int, wait_ns: int, bound_ns: int | None
) -> None:
    total = sum(callbacks)
    bench = Bench(total, workers)

    def make(instances: Any, most: int, issuer: Any) -> PlanningDispatcher:
        curve = latency_curve([(1, 1000), (most, 5000)], most)
        deadlines = Deadlines(bound_ns, curve, workers) if bound_ns else None
        entry_ns = bench.journal.entry_ns
        return PlanningDispatcher(instances, most, issuer, entry_ns, wait_ns, deadlines)

    run(make, callbacks, max_batch, bench)
    seen = 0
    for first, ids, answers, failed in bench.batches():
        assert first == seen
        assert 1 <= len(ids) <= max_batch
        assert ids == [1000 + i for i in range(first, first + len(ids))]
        assert answers == [7 * i for i in range(first, first + len(ids))]
        assert not failed
        seen += len(ids)
    assert seen == total == bench.journal.completed


@pytest.mark.parametrize("bound_ns", [None, 10**12])
def test_burst_is_copied_once_for_all_its_batches(bound_ns: int | None) -> None:
    def make(instances: Any, most: int, issuer: Any) -> PlanningDispatcher:
        curve = latency_curve([(1, 1000), (most, 5000)], most)
        deadlines = Deadlines(bound_ns, curve, 1) if bound_ns else None
        return PlanningDispatcher(instances, most, issuer, np.zeros(1001, np.int64), 0, deadlines)

    assert copies_of_a_burst(make, 999, 2) <= 2 * 1000
    assert copies_of_a_burst(make, 1000, 3) <= 2 * 1001
