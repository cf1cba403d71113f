"""The cache keeps the right items: it agrees with a simulation on lists, and with laws that hold for any order of
requests.
"""

from collections import Counter
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.models.cache.cache import ALONE, HIT, LOADED
from harness.models.cache.popularity import zipf
from harness.models.cache.residents import EAGER, FIFO, LCU, LRU, NEVER, POLICIES, Residents
from harness.models.cache.trace import Served, play

SIZES = {key: 10 + 7 * (key % 5) for key in range(40)}
"""Sizes of 40 items: 10 to 38 bytes."""


class _ByLists:
    """A cache made of plain lists, written only from the definitions of the policies."""

    def __init__(self, sizes: Mapping[int, int], capacity: int, policy: str, always: set[int]):
        self.sizes, self.capacity, self.policy, self.always = sizes, capacity, policy, always
        self.kept = sorted(always)
        self.history: list[int] = []
        self.requests = Counter[int]()
        self.loaded: list[int] = []
        """The items that are kept, in the order in which they were loaded."""

    def serve(self, key: int) -> Served:
        how, evicted = HIT, list[int]()
        if key not in self.kept:
            how, evicted = self._miss(key)
        if self.policy == EAGER and how != ALONE and key not in self.always:
            self._evict(key, evicted)
        self.history.append(key)
        self.requests[key] += 1
        return Served(how, tuple(evicted))

    def _miss(self, key: int) -> tuple[str, list[int]]:
        evicted: list[int] = []
        alone = sum(self.sizes[k] for k in self.always) + self.sizes[key] > self.capacity
        while not alone and self.policy != NEVER and self._too_full_for(key):
            self._evict(self._victim(), evicted)
        if alone or self._too_full_for(key):
            return ALONE, evicted
        self.kept.append(key)
        self.loaded.append(key)
        return LOADED, evicted

    def _too_full_for(self, key: int) -> bool:
        return sum(self.sizes[k] for k in self.kept) + self.sizes[key] > self.capacity

    def _evict(self, key: int, evicted: list[int]) -> None:
        self.kept.remove(key)
        if key in self.loaded:
            self.loaded.remove(key)
        evicted.append(key)

    def _victim(self) -> int:
        if self.policy == FIFO:
            return self.loaded[0]
        candidates = [k for k in self.kept if k not in self.always]
        by_recency = sorted(candidates, key=self.history[::-1].index, reverse=True)
        if self.policy == LCU:
            return min(by_recency, key=self.requests.__getitem__)
        return by_recency[0]


@pytest.mark.parametrize("policy", POLICIES)
def test_ten_thousand_requests_are_served_as_by_the_simulation(policy: str) -> None:
    rng = np.random.default_rng(5)
    requests = rng.choice(40, 10_000, p=zipf(40, 1.0)).tolist()
    always = {3: SIZES[3], 17: SIZES[17]}
    residents = Residents(240, policy, always)
    by_lists = _ByLists(SIZES, 240, policy, set(always))
    assert list(play(requests, SIZES, residents)) == [by_lists.serve(key) for key in requests]


def test_a_scripted_trace_evicts_by_the_policy() -> None:
    """The cache has room for two items; item 0 was requested most often, item 1 least recently."""
    script = [0, 1, 0, 1, 0, 2]
    sizes = dict.fromkeys(range(3), 1)
    evicted = {
        policy: [e for s in play(script, sizes, Residents(2, policy)) for e in s.evicted]
        for policy in POLICIES
    }
    assert evicted == {LRU: [1], LCU: [1], FIFO: [0], NEVER: [], EAGER: script}


def test_the_least_common_is_not_the_least_recent() -> None:
    script, sizes = [0, 0, 0, 1, 2], dict.fromkeys(range(3), 1)
    for policy, victim in ((LRU, 0), (LCU, 1), (FIFO, 0)):
        *_, last = play(script, sizes, Residents(2, policy))
        assert last == Served(LOADED, (victim,))


def test_model_above_the_capacity_is_loaded_for_one_request_only() -> None:
    residents = Residents(10, LRU)
    assert [s.how for s in play([0, 1, 0], {0: 4, 1: 11}, residents)] == [LOADED, ALONE, HIT]


def test_a_request_waits_while_all_room_is_in_use_and_changes_nothing() -> None:
    residents = Residents(10, LRU)
    assert residents.request(0, 6) is not None
    assert residents.request(1, 6) is None
    assert 0 in residents
    assert residents.used_bytes == 6
    residents.release(0)
    grant = residents.request(1, 6)
    assert grant is not None
    assert grant.evicted == (0,)


def test_always_resident_items_must_fit() -> None:
    with pytest.raises(
        ValueError, match=r"^the 12 B that are always resident do not fit into 10 B$"
    ):
        Residents(10, LRU, {0: 12})


def test_no_reference_is_given_back_twice() -> None:
    residents = Residents(10)
    residents.request(0, 1)
    residents.release(0)
    with pytest.raises(ValueError, match=r"^0 is released more often than it was requested$"):
        residents.release(0)


_steps = st.lists(st.tuples(st.booleans(), st.integers(0, 7)), max_size=80)


@given(
    _steps,
    st.lists(st.integers(1, 9), min_size=8, max_size=8),
    st.integers(1, 25),
    st.sampled_from(sorted(POLICIES)),
)
@settings(deadline=None, max_examples=150)
def test_nothing_in_use_is_evicted_and_the_capacity_holds(
    steps: list[tuple[bool, int]], sizes: list[int], capacity: int, policy: str
) -> None:
    """Requests overlap, because each step starts or ends one request."""
    always = {0: sizes[0]} if sizes[0] <= capacity else {}
    residents, in_use = Residents(capacity, policy, always), Counter[int]()
    kept = set(always)
    for ask, key in steps:
        gone: tuple[int, ...] = ()
        if ask:
            grant = residents.request(key, sizes[key])
            if grant is not None:
                gone = grant.evicted
                assert grant.hit == (key in kept)
                if grant.kept:
                    in_use[key] += 1
                    kept.add(key)
        elif in_use[key]:
            in_use[key] -= 1
            gone = residents.release(key)
        assert not any(in_use[k] for k in gone)
        assert not always.keys() & set(gone)
        kept -= set(gone)
        assert set(residents) == kept
        assert residents.used_bytes == sum(sizes[k] for k in kept) <= capacity
        assert all(residents.references(k) == in_use[k] for k in range(8))
