"""The balance decides which server gets the next request."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.wire.balance import Balance, Free, balanced


def filled(free: Free[Any], most: Sequence[int]) -> Free[Any]:
    for number, count in enumerate(most):
        for _ in range(count):
            free.append(SimpleNamespace(number=number))
    return free


def one_at_a_time(free: Free[Any], count: int) -> list[int]:
    """Returns the servers that successive requests get. Each request ends before the next one begins, as at a low rate."""
    numbers = []
    for _ in range(count):
        place = free.pop()
        numbers.append(place.number)
        free.append(place)
    return numbers


@given(
    st.lists(
        st.tuples(st.integers(1, 6), st.sampled_from([10.0, 20.0, 40.0])), min_size=1, max_size=5
    )
)
def test_each_request_goes_to_the_server_that_would_be_done_first(
    servers: list[tuple[int, float]],
) -> None:
    most, speeds = [n for n, _ in servers], [speed for _, speed in servers]
    balance = filled(Balance(most, speeds), most)
    held = [0] * len(servers)
    for _ in range(sum(most)):
        able = [n for n in range(len(servers)) if held[n] < most[n]]
        best = min((held[n] + 1) / speeds[n] for n in able)
        number = balance.pop().number
        assert (held[number] + 1) / speeds[number] == pytest.approx(best)
        held[number] += 1
    assert held == most
    assert not balance
    assert len(balance) == 0
    with pytest.raises(IndexError):
        balance.pop()


def test_idle_servers_of_about_one_speed_share_by_speed() -> None:
    assert one_at_a_time(filled(Balance([2, 2], [10.0, 10.0]), [2, 2]), 4) == [0, 1, 0, 1]
    numbers = one_at_a_time(filled(Balance([2, 2], [110.0, 100.0]), [2, 2]), 2100)
    assert numbers.count(0) == pytest.approx(1100, abs=2)


def test_an_idle_server_that_is_much_faster_answers_alone() -> None:
    assert one_at_a_time(filled(Balance([2, 2], [10.0, 20.0]), [2, 2]), 4) == [1, 1, 1, 1]


@pytest.mark.parametrize("most", [3, [3, 3, 3]])
def test_replicas_take_turns_and_each_reuses_its_last_connection(most: Any) -> None:
    free = filled(balanced(most, 3), [3, 3, 3])
    first = [free.pop() for _ in range(3)]
    for place in first:
        free.append(place)
    assert [place.number for place in first] == [0, 1, 2]
    assert [free.pop() for _ in range(3)] == first
    assert one_at_a_time(filled(balanced(2, 1), [2]), 3) == [0, 0, 0]
