"""Offline batches with samples of similar lengths lose no sample and need less padding."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from harness.datasets.parts.rows import RaggedRows
from harness.run.measured.dispatch.by_length import by_length
from harness.run.measured.dispatch.threads import SlicedDispatcher
from tests.run.measured.test_threads import Bench

lengths = st.lists(st.integers(1, 50), min_size=1, max_size=60)


def cut(values: Sequence[int], size: int) -> list[list[int]]:
    return [list(values[i : i + size]) for i in range(0, len(values), size)]


def filled_up(values: Sequence[int], size: int) -> int:
    return sum(max(b) * len(b) - sum(b) for b in cut(values, size))


@given(lengths, st.integers(1, 9))
def test_every_sample_keeps_its_id_and_batches_hold_neighbours_in_length(
    sizes: list[int], max_batch: int
) -> None:
    ids = [2**40 + i for i in range(len(sizes))]
    indices = list(range(len(sizes)))
    new_ids, new_indices = by_length(ids, indices, np.asarray(sizes), max_batch)
    assert sorted(new_ids) == ids
    assert [i - 2**40 for i in new_ids] == new_indices
    ordered = [sizes[i] for i in new_indices]
    ranked = cut(sorted(sizes, reverse=True), max_batch)
    assert sorted(cut(ordered, max_batch), reverse=True) == sorted(ranked, reverse=True)
    assert len(ordered) % max_batch == 0 or cut(ordered, max_batch)[-1] == ranked[-1]
    # If the last batch is not full, the result depends on its samples.
    if len(sizes) % max_batch == 0:
        assert filled_up(ordered, max_batch) <= filled_up(sizes, max_batch)


def test_batches_are_not_in_the_order_of_their_lengths() -> None:
    """If a run began with the longest samples, the machine would seem to become faster during the run."""
    sizes = np.arange(800)
    _, indices = by_length(list(range(800)), list(range(800)), sizes, 8)
    first, last = np.mean(indices[:264]), np.mean(indices[-264:])
    assert abs(first - last) < 150


@given(lengths, st.integers(1, 9), st.integers(1, 3))
def test_the_sliced_dispatcher_loses_nothing_by_ordering(
    sizes: list[int], max_batch: int, workers: int
) -> None:
    """The i-th sample has the dataset index 7 i, as in the bench's plug-in."""
    bench = Bench(len(sizes), workers)

    def of(indices: Sequence[int]) -> Any:
        return np.asarray([sizes[i // 7] for i in indices])

    dispatcher = SlicedDispatcher(bench.instances, max_batch, bench.journal.issuer(), of)
    order = range(len(sizes))
    dispatcher.issue([1000 + i for i in order], [7 * i for i in order])
    dispatcher.stop()
    answered = bench.batches()
    assert sorted(i for _, ids, _, _ in answered for i in ids) == [1000 + i for i in order]
    for first, ids, answers, failed in answered:
        assert answers == [7 * (i - 1000) for i in ids]
        assert bench.journal.index[first : first + len(ids)].tolist() == answers
        assert not failed
    assert bench.journal.completed == len(sizes)


def test_ragged_rows_know_how_long_their_samples_are() -> None:
    rows = RaggedRows(10)
    rows.hold([4, 2, 7, 2], {"ids": [np.zeros(n) for n in (3, 5, 1, 9)], "mask": [np.ones(2)] * 4})
    assert rows.lengths([2, 7, 4]).tolist() == [7, 3, 5]
