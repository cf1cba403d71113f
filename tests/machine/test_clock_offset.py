from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.units import NS_PER_MS, NS_PER_S
from harness.machine.clock_offset import (
    ClockOffset,
    Ping,
    clock_offset,
    drift_ppm,
    offsets_of,
    step_ns,
)

ways_ns = st.integers(0, 10**7)
offsets_ns = st.integers(-(10**12), 10**12)


def pinged(offset_ns: int, ways: list[tuple[int, int, int]]) -> Callable[[], Ping]:
    """Returns pings to a clock that is ahead by `offset_ns`. ways: ns to the node, on the node, and back."""
    begun_ns, left = 10**18, iter(ways)

    def ping() -> Ping:
        there, held, back = next(left)
        arrived = begun_ns + there + offset_ns
        return Ping(begun_ns, arrived, arrived + held, begun_ns + there + held + back)

    return ping


@given(offsets_ns, st.lists(st.tuples(ways_ns, ways_ns, ways_ns), min_size=1, max_size=20))
def test_the_true_offset_lies_within_the_error(
    offset_ns: int, ways: list[tuple[int, int, int]]
) -> None:
    found = clock_offset(pinged(offset_ns, ways), len(ways))
    assert abs(found.offset_ns - offset_ns) <= found.error_ns + 1
    shortest_ns = min(there + back for there, _, back in ways)
    assert found.error_ns == -(-shortest_ns // 2)


def test_drift_comes_with_its_error() -> None:
    before, after = ClockOffset(0, 1000, 500), ClockOffset(10**9, 51_000, 500)
    drift, error = drift_ppm(before, after)
    assert drift == pytest.approx(50)
    assert error == pytest.approx(1)


def exchanged(clock_ns: Callable[[int], int], count: int, seed: int) -> list[Ping]:
    """Returns a ping every 10 ms, with delays of up to 1 ms. clock_ns: how far the other clock is ahead at a given
    time.
    """
    random = np.random.default_rng(seed)
    found = []
    for sent in range(0, count * 10 * NS_PER_MS, 10 * NS_PER_MS):
        arrived, answered, received = (sent + np.cumsum(random.integers(0, NS_PER_MS, 3))).tolist()
        there = (arrived + clock_ns(arrived), answered + clock_ns(answered))
        found.append(Ping(sent, *there, received))
    return found


@given(st.integers(-(10**12), 10**12), st.integers(0, 99))
def test_a_clock_that_only_slews_has_no_step(ahead_ns: int, seed: int) -> None:
    pings = exchanged(lambda at_ns: ahead_ns + at_ns * 400 // 10**6, 500, seed)
    clocks = offsets_of(np.array(pings))
    assert len(clocks) == 5  # the times come from one ping per second
    for clock in clocks:
        assert abs(clock.offset_ns - ahead_ns - clock.at_ns * 400 // 10**6) <= clock.error_ns + 1000
    assert step_ns(clocks) == 0


@given(
    st.integers(4 * NS_PER_MS, NS_PER_S) | st.integers(-NS_PER_S, -4 * NS_PER_MS),
    st.integers(0, 99),
)
def test_a_clock_that_is_set_in_the_run_is_found(by_ns: int, seed: int) -> None:
    """The test also sets the clock back before the end, which the pings before and after the run do not show."""
    pings = exchanged(lambda at_ns: by_ns if NS_PER_S < at_ns < 3 * NS_PER_S else 0, 500, seed)
    clocks = offsets_of(np.array(pings))
    assert step_ns([clocks[0], clocks[-1]]) == 0
    assert abs(step_ns(clocks)) == pytest.approx(abs(by_ns), abs=2 * NS_PER_MS)


def test_a_clock_without_pings_has_no_step() -> None:
    assert step_ns(offsets_of(np.zeros((0, 4), np.int64))) == 0
