"""Threads run on their assigned processors, as the kernel's accounting shows."""

import os
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.core.child import call
from harness.machine import threads
from harness.machine.threads import ComputingThreads, Placed, run_on, running_on
from harness.results.verdict.doubts import pinning

MASK = sorted(os.sched_getaffinity(0))
several = pytest.mark.skipif(len(MASK) < 2, reason="needs two processors")


def spin(milliseconds: int = 20) -> None:
    """Computes until the thread has used this much processor time, even on a busy machine."""
    end = time.thread_time_ns() + milliseconds * 1_000_000
    while time.thread_time_ns() < end:
        pass


def test_running_on_narrows_the_mask_and_restores_it() -> None:
    with running_on(MASK[:1]):
        assert os.sched_getaffinity(0) == set(MASK[:1])
    assert os.sched_getaffinity(0) == set(MASK)


def test_running_on_restores_the_mask_after_an_error() -> None:
    with pytest.raises(KeyError), running_on(MASK[:1]):
        raise KeyError
    assert os.sched_getaffinity(0) == set(MASK)


def test_without_processors_nothing_changes() -> None:
    run_on(())
    with running_on(()):
        assert os.sched_getaffinity(0) == set(MASK)


@several
def test_threads_started_within_running_on_keep_the_narrow_mask() -> None:
    found: list[set[int]] = []
    leave = threading.Event()

    def wait() -> None:
        leave.wait()
        found.append(os.sched_getaffinity(0))

    with running_on(MASK[:1]):
        thread = threading.Thread(target=wait)
        thread.start()
    leave.set()
    thread.join()
    assert found == [set(MASK[:1])]


def computing(where: list[int], more: list[int]) -> Placed:
    """Returns the readings for an instance on `where` whose second thread may also run on `more`."""
    leave, done = threading.Event(), threading.Event()

    def compute() -> None:
        run_on(more)
        spin()
        done.set()
        leave.wait()  # the thread must not end yet, because an ended thread cannot be looked up

    with running_on(where):
        threads = ComputingThreads()
        thread = threading.Thread(target=compute)
        thread.start()
        spin()
        done.wait()
        placed = threads.placed(where)
    leave.set()
    thread.join()
    return placed


def sleeping(where: list[int]) -> Placed:
    """Returns the readings for an instance on `where` next to a sleeping thread."""
    leave = threading.Event()
    thread = threading.Thread(target=leave.wait)
    thread.start()
    threads = ComputingThreads()
    with running_on(where):
        spin()
        placed = threads.placed(where)
    leave.set()
    thread.join()
    return placed


def seen_alone(request: Mapping[str, Any]) -> dict[str, Any]:
    time.sleep(0.2)  # threads that NumPy's BLAS has just started spin for a short time
    return {"placed": globals()[request["function"]](*request["masks"])}


def alone(function: str, *masks: list[int]) -> Placed:
    """Calls the function in a child process, because threads of pytest-xdist and other tests compute in this process."""
    found = call(f"{__name__}:seen_alone", {"function": function, "masks": masks}, None)
    return Placed(*found["placed"])


def tries(function: str, *masks: list[int]) -> Iterator[Placed]:
    """Repeats the measurement, because a thread of the child may run longer than `LEAST_NS` on a busy machine."""
    return (alone(function, *masks) for _ in range(5))


def test_computing_threads_on_their_processors_are_counted() -> None:
    assert Placed(2, 0) in tries("computing", MASK[:1], MASK[:1])


@several
def test_a_computing_thread_that_may_run_elsewhere_is_counted_as_outside() -> None:
    assert Placed(2, 1) in tries("computing", MASK[:1], MASK)


def test_sleeping_threads_do_not_count() -> None:
    assert Placed(1, 0) in tries("sleeping", MASK[:1])


def test_without_schedstat_the_number_of_threads_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "TASKS", tmp_path)
    (tmp_path / str(os.getpid())).mkdir()
    assert ComputingThreads().placed(MASK) == Placed(None, None)


def test_threads_outside_their_processors_are_a_doubt_with_their_numbers() -> None:
    assert list(pinning("ort", [(0,), (1,)], [(1, 0), (1, 0)])) == []
    assert list(pinning("ort", [], [])) == []
    (doubt,) = pinning("tensorflow", [(0,), (1, 2)], [(1, 0), (3, 2)])
    assert doubt.code == "not-pinned"
    assert doubt.text.startswith(
        "--pin: 2 of 3 threads that computed for instance 1 may leave its processors (1, 2), because "
    )
    (unknown,) = pinning("ort", [(0,), (1,)], [(None, None), (None, None)])
    assert unknown.code == "not-pinned"
