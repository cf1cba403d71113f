"""During a run, no garbage is collected, and LoadGen's thread stays on its processors."""

import gc
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.run.measured.callbacks import SampleCallbacks, issuing
from tests.builders.support import journal

MASK = sorted(os.sched_getaffinity(0))


class Data:
    def __init__(self) -> None:
        self.seen: list[tuple[str, bool, set[int]]] = []

    def load(self, indices: Sequence[int]) -> None:
        self.seen.append(("load", gc.isenabled(), os.sched_getaffinity(0)))

    def unload(self, indices: Sequence[int]) -> None:
        self.seen.append(("unload", gc.isenabled(), os.sched_getaffinity(0)))


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    gc.enable()
    gc.unfreeze()
    os.sched_setaffinity(0, MASK)


def callbacks(
    data: Any, cpus: Sequence[int] = (), separate: Any = (), *, only_issues: bool = False
) -> SampleCallbacks:
    def die(error: BaseException) -> None:
        raise AssertionError(error)

    return SampleCallbacks(data, journal(1, 1), die, cpus, separate, only_issues=only_issues)


def test_nothing_is_collected_between_load_and_unload() -> None:
    data = Data()
    calls = callbacks(data)
    calls.load([0])
    assert not gc.isenabled()
    assert gc.get_freeze_count() > 0
    calls.unload([0])
    assert gc.isenabled()
    assert [enabled for _, enabled, _ in data.seen] == [True, True]


def leave_cycles(count: int) -> None:
    for _ in range(count):
        cycle: list[Any] = []
        cycle.append(cycle)


def test_cycles_that_a_run_leaves_are_counted_and_freed() -> None:
    calls = callbacks(Data())
    calls.load([0])
    leave_cycles(1000)  # 1,000 cycles are more than would remain if the collector ran
    calls.unload([0])
    assert 1000 <= calls.used()["cyclic_garbage_objects"] < 2000


def hold_and_free(bytes_: int) -> None:
    assert b"x" * bytes_  # the write makes the kernel allocate the memory


def test_memory_freed_before_the_run_is_not_growth_in_it() -> None:
    """Bug: memory that was used and freed during loading or warm-up was reported as growth."""
    hold_and_free(200 << 20)
    calls = callbacks(Data())
    hold_and_free(100 << 20)
    calls.load([0])
    calls.unload([0])
    used = calls.used()
    assert used["rss_run_peak_reason"] is None
    grown_bytes = used["rss_run_peak_bytes"] - used["rss_before_bytes"]
    assert 95 << 20 < grown_bytes < 150 << 20
    assert used["rss_peak_bytes"] - used["rss_run_peak_bytes"] > 50 << 20


def test_growth_is_absent_with_a_reason_if_the_peak_cannot_be_reset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "none" / "clear_refs"
    monkeypatch.setattr("harness.run.measured.callbacks.CLEAR_REFS", path)
    used = callbacks(Data()).used()
    assert used["rss_run_peak_bytes"] is None
    assert used["rss_run_peak_reason"] == f"{path} cannot be written: No such file or directory"
    assert used["rss_peak_bytes"] > 0


class Separate:
    """An instance in a separate process. left: objects in cycles; None if the process has ended."""

    def __init__(self, left: int | None) -> None:
        self.left = left
        self.calls: list[str] = []

    def start_run(self) -> None:
        self.calls.append("start")

    def end_run(self) -> int | None:
        self.calls.append("end")
        return self.left


@pytest.mark.parametrize(("left", "unknown"), [((5000, 700), False), ((5000, None), True)])
def test_cyclic_garbage_of_separate_instances_is_added(
    left: tuple[int | None, ...], unknown: bool
) -> None:
    separate = [Separate(objects) for objects in left]
    calls = callbacks(Data(), (), separate)
    calls.load([0])
    assert [each.calls for each in separate] == [["start"]] * 2
    calls.unload([0])
    assert [each.calls for each in separate] == [["start", "end"]] * 2
    objects = calls.used()["cyclic_garbage_objects"]
    assert objects is None if unknown else 5700 <= objects < 6700


def test_loadgens_thread_is_pinned_only_while_it_issues() -> None:
    data = Data()
    calls = callbacks(data, MASK[:1])
    calls.load([0])
    assert os.sched_getaffinity(0) == set(MASK[:1])
    calls.load([0])  # the second call loads the next set of samples, as in an accuracy run
    assert [mask for _, _, mask in data.seen] == [set(MASK), set(MASK)]


@pytest.mark.parametrize("refused", ["", "sched_setattr: Operation not permitted"])
def test_thread_that_only_issues_requests_a_short_slice_once(
    monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    asked: list[str] = []

    def shorten_slice() -> str:
        asked.append("")
        return refused

    monkeypatch.setattr("harness.run.measured.callbacks.shorten_slice", shorten_slice)
    calls = callbacks(Data(), only_issues=True)
    for _ in range(2):
        calls.load([0])
        calls.unload([0])
    assert len(asked) == 1
    assert calls.slice == {"ns": None if refused else 100_000, "reason": refused or None}


def test_a_thread_that_computes_keeps_the_usual_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "harness.run.measured.callbacks.shorten_slice", lambda: pytest.fail("asked")
    )
    calls = callbacks(Data())
    calls.load([0])
    calls.unload([0])
    assert calls.slice == {}


class Issued:
    """A dispatcher that records the samples it receives."""

    def __init__(self) -> None:
        self.queries: list[tuple[list[int], list[int]]] = []

    def issue(self, ids: list[int], indices: list[int]) -> None:
        self.queries.append((ids, indices))


def test_a_dataset_with_its_own_order_chooses_the_samples() -> None:
    dispatcher: Any = Issued()
    left = iter(range(10))
    died: list[BaseException] = []
    issue = issuing(dispatcher, died.append, lambda count: [next(left) for _ in range(count)])
    issue([101, 102], [7, 3])
    issue([103], [7])
    assert dispatcher.queries == [([101, 102], [0, 1]), ([103], [2])]
    issue([*range(9)], [*range(9)])
    assert [type(error) for error in died] == [StopIteration]


def test_loadgen_chooses_the_samples_of_other_datasets() -> None:
    dispatcher: Any = Issued()
    issuing(dispatcher, lambda _error: None)([1], [7])
    assert dispatcher.queries == [([1], [7])]
