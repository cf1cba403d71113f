"""The search for the highest load, tested on a system with a threshold, a noisy system and an irregular system."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.search.peak.search import Found, Limits, search
from tests.builders.support import present

LIMITS = Limits(least=1 / 600, most=1e9, runs=12)
NEAR = 1.045
"""The found load may be below the peak by this factor, because the runs end before the search reaches 2 %."""

WHOLE = Limits(least=1, most=4096, runs=12, whole=True)


class System:
    """Passes up to `peak`. odd: (load, full) with the opposite outcome. asked: the requested loads."""

    def __init__(self, peak: float, *, short_peak: float | None = None, wrong: float = 0.0) -> None:
        self.peaks = (short_peak if short_peak is not None else peak, peak)
        self.wrong = wrong
        self.random = random.Random(1)
        self.asked: list[tuple[float, bool]] = []

    def __call__(self, load: float, full: bool) -> bool:
        self.asked.append((load, full))
        right = load <= self.peaks[full]
        return right != (self.random.random() < self.wrong)


@given(st.floats(0.13, 4.0), st.floats(0.02, 1e6))
def test_a_threshold_is_found_in_twelve_runs(share: float, peak: float) -> None:
    """share: the first load, from the calibrated rate, as a fraction of the peak."""
    system = System(peak)
    load, above = search(system, share * peak, LIMITS)
    assert load is not None
    assert above is not None
    assert load <= peak < above
    assert above <= load * NEAR
    assert len(system.asked) <= 12
    assert (load, True) in system.asked


@given(st.floats(0.9, 1.1))
def test_full_length_runs_correct_biased_short_probes(bias: float) -> None:
    system = System(1000.0, short_peak=1000.0 * bias)
    load, _ = search(system, 400.0, LIMITS)
    assert 950 <= present(load) <= 1000
    assert len(system.asked) <= 12 + 1


@given(st.integers(0, 2**32))
def test_found_load_has_passed_at_full_length_despite_noise(seed: int) -> None:
    """One outcome in six is wrong, so the peak that is found is close to the load at which most outcomes are right."""
    system = System(1000.0, wrong=1 / 6)
    system.random = random.Random(seed)
    answers: dict[tuple[float, bool], bool] = {}

    def ask(load: float, full: bool) -> bool:
        answers[load, full] = system(load, full)
        return answers[load, full]

    load, above = search(ask, 500.0, LIMITS)
    assert len(answers) <= 12 + 8
    if load is not None:
        assert answers[load, True]
    if load is not None and above is not None:
        assert load < above
        assert False in (answers.get((above, True)), answers.get((above, False)))


def test_noise_moves_the_result_by_little_in_most_searches() -> None:
    found = []
    for seed in range(200):
        system = System(1000.0, wrong=0.05)
        system.random = random.Random(seed)
        found.append(search(system, 500.0, LIMITS).load or 0.0)
    near = sum(930 <= load <= 1050 for load in found)
    assert near >= 160


def test_full_length_run_that_failed_by_accident_is_repeated() -> None:
    """Bug: a single stall at 700 ended the search, although the peak was 1000."""
    system = System(1000.0)
    accidents = {700.0}

    def ask(load: float, full: bool) -> bool:
        if full and load in accidents:
            accidents.remove(load)
            return False
        return system(load, full)

    load, _ = search(ask, 700.0, Limits(least=1, most=1e9, runs=20))
    assert load is not None
    assert 950 <= load <= 1000

    spoilt = random.Random(2)
    near = 0
    for _ in range(500):
        loads = search(
            lambda load, full: load <= 1000 and spoilt.random() >= (0.05 if full else 0.02),
            spoilt.uniform(300, 800),
            LIMITS,
        )
        near += (loads.load or 0) >= 950
    assert near >= 470


def test_a_first_probe_that_fails_by_accident_costs_little() -> None:
    system = System(1000.0)
    accidents = iter([True])

    def ask(load: float, full: bool) -> bool:
        return system(load, full) != next(accidents, False)

    load, _ = search(ask, 800.0, LIMITS)
    assert 900 <= present(load) <= 1000


def test_a_valley_below_the_peak_does_not_stop_the_search() -> None:
    """The system fails from 600 to 700 and passes again up to 1000, so both 600 and 1000 are valid peaks, but no lower
    load is.
    """

    def ask(load: float, full: bool) -> bool:
        return load <= 1000 and not 600 <= load <= 700

    load, above = search(ask, 400.0, LIMITS)
    assert ask(present(load), True)
    assert not ask(present(above), True)


def test_system_that_never_passes_has_no_peak_after_at_most_20_runs() -> None:
    system = System(0.0)
    assert search(system, 1000.0, LIMITS).load is None
    assert 12 <= len(system.asked) <= 20
    loads = [load for load, full in system.asked if full]
    assert loads == sorted(loads, reverse=True)


def test_system_without_a_limit_is_tried_at_the_highest_load() -> None:
    system = System(1e12)
    assert search(system, 4e8, LIMITS) == Found(1e9, None)
    assert search(System(1e12), 2000, WHOLE) == Found(4096, None)


@given(st.integers(1, 4095), st.floats(0.2, 2.0))
def test_whole_loads_are_found_exactly_or_nearly(peak: int, share: float) -> None:
    system = System(peak)
    load, above = search(system, max(1.0, share * peak), WHOLE)
    assert load is not None
    assert above is not None
    assert load == int(load)
    assert load <= peak < above
    assert above - load <= (NEAR - 1) * load + 1
    assert all(asked == int(asked) for asked, _ in system.asked)


@pytest.mark.parametrize("peak", [1, 2, 3])
def test_small_whole_loads_are_found_exactly(peak: int) -> None:
    assert search(System(peak), 8, WHOLE) == Found(peak, peak + 1)


def test_search_never_tries_a_load_below_the_least() -> None:
    system = System(0.5)
    assert search(system, 4, WHOLE).load is None
    assert min(load for load, _ in system.asked) == 1


def test_a_search_in_vain_ends_before_its_runs_would_take_days() -> None:
    """Bug: a busy machine failed every full run, and the rate fell from 410 queries/s to 2.6 and 0.0017."""
    system = System(0.0, short_peak=1000.0)
    assert search(system, 500.0, LIMITS).load is None
    assert min(load for load, _ in system.asked) > 1
