"""Every view of a journal shows the rows that its writers wrote."""

import os
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.config.schema import MAX_BATCH
from harness.run.journal import ROW_DTYPE, Journal, RowKind
from tests.builders.support import journal

STAMPS = ("taken_ns", "gathered_ns", "inferred_ns", "postprocessed_ns", "completed_ns")
WORKERS = 3

stamps = st.lists(st.integers(0, 2**63 - 1), min_size=5, max_size=5)
indices = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=9)
batches = st.lists(
    st.tuples(st.integers(0, WORKERS - 1), indices, st.integers(0, 1), stamps), max_size=12
)


@given(batches, st.booleans())
def test_written_rows_are_read_by_every_mapping(
    written: list[tuple[int, list[int], int, list[int]]], odd: bool
) -> None:
    capacity = sum(len(indices) for _, indices, _, _ in written) + odd
    fd = Journal.create()
    try:
        Journal.resize(fd, capacity, WORKERS)
        ours, theirs = Journal(fd), Journal(fd)
    finally:
        os.close(fd)
    issuer, writers = ours.issuer(), [ours.writer(w) for w in range(WORKERS)]
    expected: list[list[tuple[int, ...]]] = [[] for _ in range(WORKERS)]
    for worker, indices, failed, at_ns in written:
        first = issuer.issued(len(indices), at_ns[0])
        writers[worker].batch(first, indices, failed, *at_ns)
        expected[worker].append((first, len(indices), failed, *at_ns))
        assert theirs.rows(worker).tolist() == expected[worker]
        assert len(theirs.rows(worker)) == len(expected[worker])
    assert (theirs.capacity, theirs.workers) == (capacity, WORKERS)
    assert theirs.issued == theirs.completed == capacity - odd
    assert theirs.index[: theirs.issued].tolist() == [i for _, x, _, _ in written for i in x]
    entries = [at_ns[0] for _, x, _, at_ns in written for _ in x]
    assert theirs.entry_ns[: theirs.issued].tolist() == entries


def test_rows_from_a_later_start_are_the_new_ones() -> None:
    view = journal(capacity=4, workers=2)
    writer = view.writer(1)
    for n in range(4):
        writer.batch(n, [n], 0, 1, 2, 3, 4, 5)
    assert view.rows(1, start=2)["first"].tolist() == [2, 3]
    assert view.rows(1, start=4).tolist() == []
    assert len(view.rows(0)) == 0


def test_issue_order_continues_from_the_last_callback() -> None:
    issuer = journal(capacity=6, workers=1).issuer()
    assert [issuer.issued(n, 0) for n in (1, 3, 2)] == [0, 1, 4]


def test_a_row_is_counted_only_after_it_and_its_samples_exist() -> None:
    """When a reader sees a higher row counter, every row below the counter must be complete."""
    view = journal(capacity=2, workers=1)
    seen: list[tuple[int, int]] = []

    class Cells:
        def __setitem__(self, cell: int, value: int) -> None:
            stamps = view._view[view._rows_start : view._rows_start + ROW_DTYPE.itemsize]
            seen.append((cell, int.from_bytes(stamps[-8:], "little")))
            view._cells[cell] = value

    writer = view.writer(0)
    writer._cells = Cells()  # type: ignore[assignment]
    writer.batch(0, [7, 8], 0, 1, 2, 3, 4, 5)
    (samples_cell, at_samples), (rows_cell, at_rows) = seen
    assert (at_samples, at_rows) == (5, 5)
    assert samples_cell == rows_cell + 1
    assert (view.completed, len(view.rows(0))) == (2, 1)


def test_the_largest_batch_fits_into_a_row() -> None:
    view = journal(capacity=MAX_BATCH, workers=1)
    view.writer(0).batch(0, range(MAX_BATCH), 1, 1, 2, 3, 4, 5)
    assert view.rows(0)["size"].tolist() == [MAX_BATCH]
    assert view.completed == MAX_BATCH


def test_pages_never_touched_cost_no_memory() -> None:
    fd = Journal.create()
    try:
        Journal.resize(fd, 100_000_000, 8)
        view = Journal(fd)
        view.writer(7).batch(99_999_999, [1], 0, 1, 2, 3, 4, 5)
        status = os.fstat(fd)
    finally:
        os.close(fd)
    assert status.st_size > 8 * 100_000_000 * ROW_DTYPE.itemsize
    assert status.st_blocks * 512 < 1_000_000


def test_no_two_writers_share_a_cache_line() -> None:
    """With a shared cache line (false sharing), each worker's counter would stall the others."""
    view = journal(capacity=1, workers=WORKERS)
    lines = [0, *[8 * view._line(w) for w in range(WORKERS)]]
    assert all(b - a >= 64 for a, b in pairwise(lines))


def test_a_batch_beyond_the_capacity_is_an_error_not_another_workers_row() -> None:
    view = journal(capacity=1, workers=2)
    writer = view.writer(0)
    writer.batch(0, [0], 0, 1, 2, 3, 4, 5)
    with pytest.raises(IndexError):
        writer.batch(1, [1], 0, 1, 2, 3, 4, 5)
    assert len(view.rows(1)) == 0
    assert len(view.rows(0)) == 1


def test_a_journal_leaves_no_name_behind() -> None:
    fd = Journal.create()
    try:
        assert os.readlink(f"/proc/self/fd/{fd}") == "/memfd:harness-journal (deleted)"  # noqa: PTH115
    finally:
        os.close(fd)


def test_rows_of_replies_have_their_own_stamps() -> None:
    fd = Journal.create()
    try:
        Journal.resize(fd, 4, 1, RowKind.REPLY)
        journal = Journal(fd)
    finally:
        os.close(fd)
    names = ("taken_ns", "sent_ns", "arrived_ns", "read_ns", "decoded_ns", "completed_ns")
    of_tokens = ("first_token_ns", "answer_token_ns", "tokens", "late_tokens")
    assert tuple(journal.stamps) == (*names, *of_tokens, "server", "cancelled")
    journal.issuer().issued(4, 10)
    writer = journal.remote_writer()
    writer.reply(2, [7, 8], 0, 11, 12, 13, 14, 15, 16, 0, 0, 0, 0, 0, 0)
    writer.reply(0, [5], 1, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 3, 0)
    rows = journal.rows(0)
    assert [tuple(row) for row in rows.tolist()] == [
        (2, 2, 0, 11, 12, 13, 14, 15, 16, 0, 0, 0, 0, 0, 0),
        (0, 1, 1, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 3, 0),
    ]
    assert journal.index.tolist() == [5, 0, 7, 8]
    assert journal.completed == 3
