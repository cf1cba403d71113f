"""The hit rate by capacity: one pass over the requests gives the same rates as a replay at every capacity."""

from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.models.cache.cache import HIT
from harness.models.cache.residents import FIFO, LRU, Residents
from harness.models.cache.trace import curve, play


def _played(
    requests: list[int], sizes: Mapping[int, int], capacity: int, policy: str, always: list[int]
) -> float:
    residents = Residents(capacity, policy, {k: sizes[k] for k in always})
    return sum(s.how == HIT for s in play(requests, sizes, residents)) / max(1, len(requests))


@given(
    st.lists(st.integers(0, 9), max_size=120),
    st.lists(st.integers(1, 12), min_size=10, max_size=10),
    st.lists(st.integers(0, 9), max_size=2, unique=True),
)
@settings(deadline=None, max_examples=80)
def test_one_pass_of_lru_is_the_played_hit_rate_at_every_capacity(
    requests: list[int], bytes_of: list[int], always: list[int]
) -> None:
    sizes = dict(enumerate(bytes_of))
    capacities = range(1, sum(bytes_of) + 2)
    for point in curve(requests, sizes, capacities, LRU, always):
        assert point.hit_rate == _played(requests, sizes, point.capacity_bytes, LRU, always)


def test_other_policies_are_played_and_impossible_capacities_left_out() -> None:
    requests, sizes = [0, 1, 2, 0, 1, 3, 0, 1], dict.fromkeys(range(4), 5)
    points = curve(requests, sizes, [4, 10, 15], FIFO, always=[0])
    assert [p.capacity_bytes for p in points] == [10, 15]
    assert [p.hit_rate for p in points] == [
        _played(requests, sizes, c, FIFO, [0]) for c in (10, 15)
    ]
    assert points[0].hit_rate == 3 / 8
