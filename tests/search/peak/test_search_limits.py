"""Limits of the search: no load passes, every load passes, or a load passes only in the second attempt."""

import pytest

from harness.search.peak.search import KEPT_FOR_FULL, MOST_FAILURES, Found, Limits, search
from tests.builders.support import present
from tests.search.peak.test_peak_search import System

OPEN = Limits(least=1e-9, most=1e12, runs=12)


def test_search_without_a_pass_makes_eight_runs_beyond_the_limit() -> None:
    system = System(0.0)
    assert search(system, 1000.0, OPEN).load is None
    full = [load for load, is_full in system.asked if is_full]
    assert len(system.asked) - len(full) == OPEN.runs - KEPT_FOR_FULL
    assert len(full) == KEPT_FOR_FULL + MOST_FAILURES == 12


def test_once_one_has_passed_no_run_is_made_beyond_the_limit() -> None:
    system = System(1e9)
    assert search(system, 1.0, OPEN).load is not None
    assert len(system.asked) == OPEN.runs


@pytest.mark.parametrize("whole", [False, True])
def test_the_highest_load_that_may_be_tried_is_tried_once(whole: bool) -> None:
    system = System(1e9)
    limits = Limits(least=1, most=4, runs=20, whole=whole)
    assert search(system, 4.0, limits) == Found(4, None)
    assert system.asked == [(4, False), (4, True)]


@pytest.mark.parametrize("whole", [False, True])
def test_lowest_load_is_tried_at_most_twice_at_full_length(
    whole: bool,
) -> None:
    system = System(0.0)
    limits = Limits(least=1, most=4, runs=20, whole=whole)
    assert search(system, 1.0, limits) == Found(None, 1)
    assert system.asked == [(1, False), (1, True), (1, True)]


def test_a_whole_load_rises_by_one_at_least() -> None:
    system = System(2.0)
    assert search(system, 1.0, Limits(least=1, most=4096, runs=20, whole=True)) == Found(2, 3)
    assert [load for load, full in system.asked if full] == [2, 3, 3]


def test_a_load_below_one_rises_by_its_share() -> None:
    system = System(0.5)
    load, above = search(system, 0.1, Limits(least=1e-6, most=1e9, runs=12))
    assert 0.47 < present(load) <= 0.5 < present(above) < 0.53


def test_a_failure_above_a_refuted_one_bounds_the_peak() -> None:
    """Bug: "no load above it failed", although a short run had failed at twice the peak."""
    asked: list[float] = []

    def ask(load: float, full: bool) -> bool:
        asked.append(load)
        return load < 150 and (full or load < 80)  # short runs between 80 and 150 fail by accident

    found = search(ask, 200.0, OPEN)
    assert present(found.load) > 80
    assert found.above == 200


def test_failed_load_that_passes_later_does_not_bound_the_search() -> None:
    """A stall made load 102 fail once, and the search must continue above this load."""
    asked: list[float] = []

    def ask(load: float, full: bool) -> bool:
        if not full:
            return load <= 100
        asked.append(load)
        return load <= 110 and not (load > 100 and len(asked) == 2)

    load, _ = search(ask, 100.0, Limits(least=1, most=1e6, runs=30))
    assert 108 < present(load) <= 110
