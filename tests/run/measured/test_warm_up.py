"""The warm-up covers all batch sizes, ends when latency is flat, and keeps cold numbers separate."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import ConfigError
from harness.run.measured import answerer, calibration
from harness.run.measured import warm_up as warmup
from harness.run.measured.answerer import Answerer
from harness.run.measured.calibration import measure_curve
from harness.run.measured.warm_up import (
    FLAT_LIMIT_S,
    batch_sizes,
    probes,
    remainders,
    warm_up,
)
from harness.types import Batch
from tests.builders.support import UNCHANGED

MS = 1_000_000


class FakeTime:
    """A clock that advances only while a model computes."""

    def __init__(self) -> None:
        self.now_ns = 0

    def monotonic_ns(self) -> int:
        return self.now_ns

    def monotonic(self) -> float:
        return self.now_ns / 1e9


class Model:
    """Takes `ms(samples, batches so far)` per batch, and answers each sample with its index."""

    def __init__(self, clock: FakeTime, ms: Callable[[int, int], float]) -> None:
        self.clock, self.ms = clock, ms
        self.sizes: list[int] = []

    def batch(self, indices: Sequence[int]) -> Batch:
        return Batch(len(indices), {"samples": np.asarray(indices, np.int64)})

    def infer(self, batch: Batch) -> Any:
        self.clock.now_ns += int(self.ms(batch.size, len(self.sizes)) * MS)
        self.sizes.append(batch.size)
        return batch.inputs["samples"]

    def answerer(self) -> Answerer:
        plugin: Any = self
        return Answerer(plugin, plugin, UNCHANGED)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    for module in (answerer, calibration, warmup):
        monkeypatch.setattr(module, "time", fake)
    return fake


def warmed(sizes: Sequence[int], *models: Model) -> warmup.Warmth:
    return warm_up([m.answerer() for m in models], sizes, lambda n: list(range(n)))


@pytest.mark.parametrize(
    ("dispatch", "max_batch", "query_samples", "sizes"),
    [
        ("queued", 5, 1, [1, 2, 3, 4, 5]),
        ("queued", 1, 1, [1]),
        ("sliced", 64, 1, [64]),
        ("inline", 1, 1, [1]),
        ("inline", 8, 8, [8]),
        ("inline", 3, 8, [2, 3]),
        ("inline", 4, 8, [4]),
        ("inline", 16, 8, [8]),
    ],
)
def test_batch_sizes_are_those_that_can_occur(
    dispatch: str, max_batch: int, query_samples: int, sizes: list[int]
) -> None:
    assert batch_sizes(dispatch, max_batch, query_samples) == sizes


@given(st.integers(1, 20), st.integers(1, 20))
def test_streams_have_only_the_sizes_of_their_cut_queries(
    max_batch: int, query_samples: int
) -> None:
    cut = {min(max_batch, query_samples - i) for i in range(0, query_samples, max_batch)}
    assert set(batch_sizes("inline", max_batch, query_samples)) == cut


def test_remainder_of_a_count_is_a_batch_size() -> None:
    assert remainders((500,), 64) == [52]
    assert remainders((512,), 64) == []
    assert remainders((500, 130, 2), 64) == [2, 52]


def test_probes_are_the_ends_and_powers_of_two() -> None:
    assert probes(range(1, 13)) == [1, 2, 4, 8, 12]
    assert probes([2, 3]) == [2, 3]
    assert probes([64]) == [64]


def test_every_size_is_answered_on_every_instance(clock: FakeTime) -> None:
    models = [Model(clock, lambda n, _: 0.01 * n) for _ in range(3)]
    warmth = warmed(range(1, 13), *models)
    assert all(set(m.sizes) == set(range(1, 13)) for m in models)
    assert (warmth.skipped, warmth.flat) == (0, True)
    assert warmth.first.dtype == np.int64


def test_warm_up_ends_when_latency_is_flat(clock: FakeTime) -> None:
    """For one size: first two answers, then rounds of two batches until three rounds bring no further gain."""
    times = [90, 50, 20, 10, 5, 5, 5, 5, 99]
    model = Model(clock, lambda _, batch: times[batch])
    warmth = warmed([4], model)
    assert warmth.flat
    # Before the six rounds, three batches run, and the third shows the form of an answer.
    assert len(model.sizes) == 3 + 6
    assert warmth.first_ns == [90 * MS]
    assert warmth.slowest_ns == 5 * MS  # the slowest time is the median of the warm rounds


def test_busy_machine_does_not_prevent_the_end_of_warm_up(clock: FakeTime) -> None:
    times = [9, 5, 5, 50, 50, 50]
    model = Model(clock, lambda _, batch: times[min(batch, 5)])
    assert warmed([1], model).flat
    assert len(model.sizes) == 2 + 1 + 5


def test_warm_up_of_a_changing_latency_ends_in_time_as_not_flat(clock: FakeTime) -> None:
    model = Model(clock, lambda _, batch: 1000 * 0.9**batch)
    warmth = warmed([1], model)
    assert not warmth.flat
    # The limit may be exceeded by the first two batches and the current round.
    assert warmth.seconds < FLAT_LIMIT_S + 4


def test_a_latency_that_creeps_down_is_not_flat(clock: FakeTime) -> None:
    """A gain of 4 % in a single round does not count as faster, but the gain over three rounds does."""
    model = Model(clock, lambda _, batch: 1000 * 0.96**batch)
    assert not warmed([1], model).flat


def test_slow_model_warms_up_with_the_smallest_and_largest_sizes_first(
    clock: FakeTime,
) -> None:
    model = Model(clock, lambda n, _: 1000 * n)
    warmth = warmed(range(1, 9), model)
    assert model.sizes[:2] == [1, 8]
    assert model.sizes[2:4] == [7, 6]
    # The warm-up skips the sizes 5, 4, 3 and 2, whose turn would come after 10 s.
    assert warmth.skipped == 4
    # The small sizes were measured for 5 s, then the largest size took 5 s.
    assert model.sizes[4:] == [1, 2, 4, 8]
    assert not warmth.flat
    assert warmth.slowest_ns == 8000 * MS


def test_curve_is_the_time_that_nine_of_ten_batches_meet(clock: FakeTime) -> None:
    model = Model(clock, lambda n, batch: n + (batch // 2) % 10)
    curve = measure_curve([model.answerer()], [1, 2], lambda n: list(range(n)), 90, limit_s=10.0)
    assert [size for size, _ in curve] == [1, 2]
    assert 9 * MS <= curve[0][1] <= 10 * MS  # the times of the single calls are between 1 and 10 ms
    assert 10 * MS <= curve[1][1] <= 11 * MS


def test_an_error_in_any_thread_is_raised(clock: FakeTime) -> None:
    def fails(size: int, _: int) -> float:
        if size == 2:
            raise KeyError("cold size")
        return 0.01

    with pytest.raises(KeyError, match="cold size"):
        warmed([1, 2, 3], Model(clock, lambda n, _: 0.01), Model(clock, fails))


def test_each_instance_first_answers_on_a_thread_of_its_own(clock: FakeTime) -> None:
    """OpenMP keeps one set of threads per calling thread, so the main thread's set would serve all instances."""
    callers: list[threading.Thread] = []

    def note(_samples: int, _done: int) -> float:
        callers.append(threading.current_thread())
        return 1.0

    two = [Model(clock, note).answerer(), Model(clock, note).answerer()]
    warm_up(two, [1], lambda n: list(range(n)))
    assert threading.main_thread() not in callers[:4]
    assert callers[0] is not callers[2]


def test_batches_of_many_sizes_are_made_one_after_another(clock: FakeTime) -> None:
    """Lists of all sizes up to 2,000 contain two million indices; lists of all sizes up to 65,535 took 17 GB."""
    sizes: list[int] = []

    def batch_of(size: int) -> list[int]:
        sizes.append(size)
        return [0] * min(size, 3)

    # 10 s are enough for ten sizes between the smallest and the largest.
    model = Model(clock, lambda n, _: 1000.0)
    warmth = warm_up([model.answerer()], range(1, 2001), batch_of)
    assert len(sizes) < 60
    assert warmth.skipped == 1998 - 11


def test_answers_without_any_number_are_refused(clock: FakeTime) -> None:
    model = Model(clock, lambda *_: 1)
    model.infer = lambda batch: np.zeros((batch.size, 0), np.float32)  # type: ignore[method-assign]
    with pytest.raises(ConfigError) as caught:
        warm_up([model.answerer()], [1, 2], lambda size: list(range(size)))
    assert str(caught.value).startswith(
        "the output of the model has no numbers for any sample of the warm-up (float32 of shape [n, 0]): "
    )
