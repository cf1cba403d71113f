from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.machine.clock_offset import ClockOffset, Ping, clock_offset, drift_ppm

ways_ns = st.integers(0, 10**7)
offsets_ns = st.integers(-(10**12), 10**12)


def pinged(offset_ns: int, ways: list[tuple[int, int, int]]) -> Callable[[], Ping]:
    """Pings to a clock that is ahead by so much. ways: ns there, on the node, and back."""
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


def test_drift_is_told_with_its_error() -> None:
    before, after = ClockOffset(0, 1000, 500), ClockOffset(10**9, 51_000, 500)
    drift, error = drift_ppm(before, after)
    assert drift == pytest.approx(50)
    assert error == pytest.approx(1)
