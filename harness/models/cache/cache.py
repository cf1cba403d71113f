"""Shares loaded items between threads, and loads an item only once per miss.

A hit holds the lock only for a few dictionary operations. Items are loaded and closed outside the lock. A load
therefore blocks only threads that request the same item or need memory that is in use.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from harness.models.cache.residents import Residents

Loaded = TypeVar("Loaded")

HIT, JOINED, LOADED, ALONE = "hit", "joined", "loaded", "alone"
"""Ways to serve a request: a hit, a wait for another request's load, a load whose item stays in the cache, or a load
for this request only.
"""

ORIGINS = ("hit", "joined", "local", "source", "alone-local", "alone-source", "failed")
"""Ways in which a sample got its model: from memory (`hit`), from another sample's load (`joined`), from a local file
(`local`), or from the original source through a local file (`source`). With `alone-local` and `alone-source`, the load
served only this sample. With `failed`, the load failed.
"""


@dataclass(slots=True)
class Counts:
    """Request counts for one cached item, by kind of request."""

    hits: int = 0
    joined: int = 0
    """Requests that waited for another request's load."""
    loads: int = 0
    """Loads whose item stayed in the cache."""
    alone: int = 0
    """Loads that served only one request."""
    evictions: int = 0
    failures: int = 0
    """Failed loads, which are also counted in `loads` or `alone`."""

    @property
    def requests(self) -> int:
        return self.hits + self.joined + self.loads + self.alone


class LoadFailed(Exception):
    """Raised in every thread that waited for an item whose load failed. The exception's cause is the error that the
    load raised.
    """


class Lease(NamedTuple, Generic[Loaded]):
    """A loaded item. The item counts as in use, and cannot be evicted, until the lease is passed to `release`."""

    key: int
    loaded: Loaded
    how: str
    """HIT, JOINED, LOADED or ALONE."""
    evicted: tuple[int, ...]
    """The items that were evicted to make room for this item."""


class _Slot(Generic[Loaded]):
    """An item that is loaded or is being loaded."""

    __slots__ = ("done", "error", "lease")

    def __init__(self) -> None:
        self.done = threading.Event()
        self.error: BaseException | None = None
        self.lease: Lease[Loaded] | None = None
        """The lease that a hit returns, or None while the item is being loaded."""


class Cache(Generic[Loaded]):
    """Items that several threads share. An item is loaded when a thread requests it while it is not in memory.

    residents: decides which items stay in memory; each cache needs a separate object. sizes_bytes: the size of every
    item. load: loads the item with the given number. If `load` raises an error, callers get LoadFailed. close: frees
    the value that `load` returned. Errors of `close` are ignored.
    """

    def __init__(
        self,
        residents: Residents,
        sizes_bytes: Mapping[int, int],
        load: Callable[[int], Loaded],
        close: Callable[[Loaded], object],
    ) -> None:
        self._residents = residents
        self._request, self._release = residents.request, residents.release
        self._sizes_bytes = sizes_bytes
        self._load, self._close = load, close
        self.counts = {key: Counts() for key in sizes_bytes}
        self._slots: dict[int, _Slot[Loaded]] = {}
        self._lock = threading.Lock()
        self._released = threading.Condition(self._lock)
        self._waiting = 0

    def acquire(self, key: int) -> Lease[Loaded]:
        """Returns the item, and loads it if it is not in the cache. Waits while all memory is in use. Raises LoadFailed
        if the load fails.
        """
        with self._lock:
            while (grant := self._request(key, self._sizes_bytes[key])) is None:
                self._waiting += 1
                self._released.wait()
                self._waiting -= 1
            slot, counts = self._slots.get(key), self.counts[key]
            if slot is not None:
                lease = slot.lease
                if lease is not None:
                    counts.hits += 1
                    return lease
                counts.joined += 1
                joined = True
            else:
                joined, slot = False, _Slot[Loaded]()
                if grant.kept:
                    self._slots[key] = slot
                counts.loads += grant.kept
                counts.alone += not grant.kept
            victims = self._removed(grant.evicted)
        if joined:
            return self._join(key, slot)
        self._close_all(victims)
        loaded = self._fill(key, slot, kept=grant.kept)
        return Lease(key, loaded, LOADED if grant.kept else ALONE, grant.evicted)

    def release(self, lease: Lease[Loaded]) -> tuple[int, ...]:
        """Ends the use of an item. Returns the items evicted by this call."""
        if lease.how == ALONE:
            self._close_all([lease.loaded])
            return ()
        with self._lock:
            evicted = self._release(lease.key)
            victims = self._removed(evicted) if evicted else ()
            if self._waiting:
                self._released.notify_all()
        if victims:
            self._close_all(victims)
        return evicted

    def load_always(self) -> None:
        """Loads the items that are always resident. Raises LoadFailed if a load fails."""
        for key in tuple(self._residents):
            self.release(self.acquire(key))

    def forget_counts(self) -> None:
        """Sets all counts to zero. No thread may use the cache during the call."""
        self.counts = {key: Counts() for key in self.counts}

    def close(self) -> None:
        """Closes all items. The caller must have released all leases, and must not call `acquire` afterwards."""
        with self._lock:
            leases = [slot.lease for slot in self._slots.values()]
            self._slots.clear()
        self._close_all(lease.loaded for lease in leases if lease is not None)

    def _removed(self, keys: Iterable[int]) -> list[Loaded]:
        """Counts the evictions, and returns the items of the evicted keys. Evicted items are not in use, so their loads
        are complete.
        """
        removed = []
        for key in keys:
            self.counts[key].evictions += 1
            lease = self._slots.pop(key).lease
            assert lease is not None
            removed.append(lease.loaded)
        return removed

    def _fill(self, key: int, slot: _Slot[Loaded], *, kept: bool) -> Loaded:
        try:
            loaded = self._load(key)
        except BaseException as e:
            with self._lock:
                self.counts[key].failures += 1
                slot.error = e
                if kept:
                    self._residents.forget(key)
                    del self._slots[key]
                    self._released.notify_all()
            slot.done.set()
            raise LoadFailed(str(key)) from e
        slot.lease = Lease(key, loaded, HIT, ())
        slot.done.set()
        return loaded

    def _join(self, key: int, slot: _Slot[Loaded]) -> Lease[Loaded]:
        slot.done.wait()
        if slot.lease is None:
            raise LoadFailed(str(key)) from slot.error
        return slot.lease._replace(how=JOINED)

    def _close_all(self, loaded: Iterable[Loaded]) -> None:
        for each in loaded:
            with suppress(Exception):
                self._close(each)
