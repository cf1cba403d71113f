"""The cursor over new rows agrees with the columns that are computed from all rows at the end."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.run.journal import ROW_DTYPE, SETTLE_S
from harness.run.supervisor import completions
from harness.run.supervisor.completions import NewRows, read_completions
from tests.builders.support import SCENARIOS, golden_journal, journal, plan


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_samples_read_live_are_those_of_the_whole_journal(scenario: str) -> None:
    view = golden_journal(scenario)
    rows = NewRows(view, plan(scenario))
    parts = [rows.samples(part) for part in rows.read()]
    whole = read_completions(view, plan(scenario)).columns
    order = np.concatenate([part.order for part in parts])
    in_order = np.argsort(order)
    assert order[in_order].tolist() == whole["order"].tolist()
    for name in ("entry_ns", "completed_ns"):
        column = np.concatenate([getattr(part, name) for part in parts])
        assert column[in_order].tolist() == whole[name].tolist()
    # The samples of Offline are due at once, which only the complete journal shows, so Offline is left out.
    if scenario != "offline":
        scheduled_ns = np.concatenate([part.scheduled_ns for part in parts])
        late_ns = scheduled_ns[in_order] - whole["scheduled_ns"]
        # The start is the earliest start that was seen so far, so no time is negative.
        assert int(late_ns.min()) >= 0
        assert int(late_ns[-1]) == 0
    assert list(rows.read()) == []
    assert len(list(rows.copy().read())) > 0


@given(st.lists(st.integers(1, 300), max_size=60), st.integers(1, 500))
def test_steps_hold_every_row_once_and_never_many_samples(sizes: list[int], most: int) -> None:
    view = journal(sum(sizes) + 1, 1)
    issuer, writer = view.issuer(), view.writer(0)
    for size in sizes:
        writer.batch(issuer.issued(size, 100), [0] * size, 0, 1, 1, 1, 1, 1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(completions, "SAMPLES_AT_ONCE", most)
        steps = list(NewRows(view, plan("offline")).read())
    assert np.concatenate([*steps, view.rows(0, len(sizes))])["size"].tolist() == sizes
    assert all(int(step["size"].sum()) <= most or len(step) == 1 for step in steps)


def test_counter_seen_before_its_row_gives_no_empty_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bug: on Arm, another process may see the counter before the row, and read a row of zeros."""
    view = journal(5, 1)
    issuer, writer = view.issuer(), view.writer(0)
    row = view._view[view._rows_start : view._rows_start + ROW_DTYPE.itemsize]
    writer.batch(issuer.issued(5, 100), [0] * 5, 0, 1, 2, 3, 4, 5)
    written = bytes(row)
    # The row is empty, as if its content were still in the cache of the writer's core.
    row[:] = bytes(len(row))

    def sleep(seconds: float) -> None:
        assert seconds == SETTLE_S
        row[:] = written

    monkeypatch.setattr(f"{completions.__name__}.time.sleep", sleep)
    rows = NewRows(view, plan("offline"))
    (read,) = rows.read()
    assert read.tolist() == [(0, 5, 0, 1, 2, 3, 4, 5)]
    assert list(rows.read()) == []


def test_a_row_without_samples_is_read() -> None:
    """Bug: a row without samples, which only a faulty plug-in can write, caused a division by zero in the supervisor."""
    view = journal(5, 1)
    view.writer(0).batch(0, [], 0, 1, 2, 3, 4, 5)
    (read,) = NewRows(view, plan("offline")).read()
    assert read["size"].tolist() == [0]


def test_start_is_the_earliest_in_the_rows_or_that_of_our_scheduler() -> None:
    view = journal(4, 1)
    rows = NewRows(view, plan("server"))
    assert rows.due_ns is not None
    assert (list(rows.read()), rows.start_ns) == ([], None)
    issuer, writer = view.issuer(), view.writer(0)
    for late_ns in (50, 20):
        first = issuer.issued(1, 10**18 + int(rows.due_ns[issuer.count]) + late_ns)
        writer.batch(first, [0], 0, *[10**18 + 10**9] * 5)
        (new,) = rows.read()
        rows.samples(new)
        assert rows.start_ns == 10**18 + late_ns
    view.start_ns = 10**18 - 7
    exact = rows.copy()
    assert [int(ns) for part in exact.read() for ns in exact.samples(part).scheduled_ns] == [
        10**18 - 7,
        10**18 - 7 + int(rows.due_ns[1]),
    ]


@pytest.mark.parametrize(
    ("arrived_ns", "failed", "kept"),
    [
        ([5, 6, 7, 8], [0, 0, 0, 1], [5, 6, 7, 8]),
        # The time stamps are unknown, because only the end of a failed request is recorded.
        ([0, 0, 0, 8], [0, 0, 0, 1], None),
        ([8, 8, 8, 8], [1, 1, 1, 1], None),  # without any reply, `notice` would be 0
        ([8, 8, 8, 7], [1, 1, 1, 1], [8, 8, 8, 7]),
    ],
)
def test_stamps_of_the_kernel_are_there_or_absent_and_never_zero(
    arrived_ns: list[int], failed: list[int], kept: list[int] | None
) -> None:
    columns = {"arrived_ns": arrived_ns, "read_ns": [8] * 4, "failed": failed}
    arrays = {name: np.array(values) for name, values in columns.items()}
    completions._complete_arrivals(arrays)
    assert ("arrived_ns" in arrays) == (kept is not None)
    assert kept is None or arrays["arrived_ns"].tolist() == kept
