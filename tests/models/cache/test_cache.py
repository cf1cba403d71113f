"""A cache used by several threads: one load per miss, errors reach all waiting threads, and closed models are not used."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from harness.models.cache.cache import ALONE, HIT, JOINED, LOADED, Cache, Counts, LoadFailed
from harness.models.cache.residents import EAGER, LRU, NEVER, POLICIES, Residents


class Item:
    def __init__(self, key: int) -> None:
        self.key = key
        self.open = True


def _close(item: Item) -> None:
    item.open = False


def _cache(capacity: int, policy: str = LRU, items: int = 4, **always: int) -> Cache[Item]:
    kept = {int(key[1:]): size for key, size in always.items()}
    residents = Residents(capacity, policy, kept)
    return Cache(residents, dict.fromkeys(range(items), 1), Item, _close)


def test_counts_match_a_scripted_trace() -> None:
    cache = _cache(2)
    how = []
    for key in (0, 1, 0, 2, 1, 1):
        lease = cache.acquire(key)
        how.append((lease.how, lease.evicted))
        cache.release(lease)
    assert how == [
        *((LOADED, ()), (LOADED, ()), (HIT, ()), (LOADED, (1,))),
        *((LOADED, (0,)), (HIT, ())),
    ]
    assert cache.counts[0] == Counts(hits=1, loads=1, evictions=1)
    assert cache.counts[1] == Counts(hits=1, loads=2, evictions=1)
    assert cache.counts[2] == Counts(loads=1)
    assert cache.counts[3].requests == 0


def test_always_resident_items_are_loaded_at_once_and_stay() -> None:
    cache = _cache(2, k3=1)
    cache.load_always()
    for key in (0, 1, 2, 3):
        cache.release(cache.acquire(key))
    assert cache.counts[3] == Counts(hits=1, loads=1)


def test_eager_closes_at_the_last_release() -> None:
    cache = _cache(2, EAGER)
    first, second = cache.acquire(0), cache.acquire(0)
    assert cache.release(first) == ()
    assert second.loaded.open
    assert cache.release(second) == (0,)
    assert not second.loaded.open


def test_model_that_is_not_kept_is_closed_after_its_request() -> None:
    cache = _cache(1, NEVER)
    cache.release(cache.acquire(0))
    alone = cache.acquire(1)
    assert alone.how == ALONE
    cache.release(alone)
    assert not alone.loaded.open


def test_requests_for_an_item_that_is_loading_wait_for_that_load() -> None:
    begun, go_on = threading.Event(), threading.Event()
    loads = []

    def load(key: int) -> Item:
        loads.append(key)
        begun.set()
        assert go_on.wait(10)
        return Item(key)

    cache = Cache(Residents(2), {0: 1}, load, _close)
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(cache.acquire, 0)
        assert begun.wait(10)
        others = [threads.submit(cache.acquire, 0) for _ in range(2)]
        while cache.counts[0].requests < 3:
            pass
        go_on.set()
        assert first.result(10).how == LOADED
        assert [other.result(10).how for other in others] == [JOINED, JOINED]
    assert loads == [0]


def test_a_failed_load_fails_all_who_wait_and_is_tried_again() -> None:
    begun, go_on = threading.Event(), threading.Event()
    errors = [OSError("no such file")]

    def load(key: int) -> Item:
        begun.set()
        assert go_on.wait(10)
        if errors:
            raise errors.pop()
        return Item(key)

    cache = Cache(Residents(1), {0: 1}, load, _close)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(cache.acquire, 0)
        assert begun.wait(10)
        second = threads.submit(cache.acquire, 0)
        while cache.counts[0].requests < 2:
            pass
        go_on.set()
        for each in (first, second):
            with pytest.raises(LoadFailed) as raised:
                each.result(10)
            assert str(raised.value.__cause__) == "no such file"
    assert cache.counts[0].failures == 1
    lease = cache.acquire(0)
    assert lease.how == LOADED


def test_a_request_waits_until_room_is_released() -> None:
    cache = _cache(1)
    lease = cache.acquire(0)
    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(cache.acquire, 1)
        assert not other.done()
        cache.release(lease)
        assert other.result(10).evicted == (0,)
    assert not lease.loaded.open


@pytest.mark.parametrize("policy", POLICIES)
def test_threads_never_hold_a_closed_item_nor_more_than_fits(policy: str) -> None:
    lock = threading.Lock()
    kept = 0
    most = 0

    def load(key: int) -> Item:
        return Item(key)

    cache = Cache(Residents(4, policy, {0: 1}), dict.fromkeys(range(9), 1), load, _close)

    def ask(seed: int) -> int:
        nonlocal kept, most
        rng = np.random.default_rng(seed)
        for key in rng.integers(0, 9, 400).tolist():
            lease = cache.acquire(key)
            with lock:
                kept += lease.how != ALONE
                most = max(most, kept)
            assert lease.loaded.key == key
            assert lease.loaded.open
            with lock:
                kept -= lease.how != ALONE
            cache.release(lease)
        return 400

    with ThreadPoolExecutor(4) as threads:
        asked = sum(threads.map(ask, range(4)))
    assert sum(counts.requests for counts in cache.counts.values()) == asked
    resident = sum(c.loads - c.evictions for c in cache.counts.values())
    assert resident <= 4
    assert most <= 4
