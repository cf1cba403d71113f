"""Decides which items a cache of limited size keeps, using reference counts and eviction policies. Does not load the
items.

Source: TrIMS (arXiv:1811.09732, §IV): items in use are never evicted, and the policy chooses among the other items.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

LRU, LCU, FIFO, NEVER, EAGER = "lru", "lcu", "fifo", "never", "eager"
POLICIES: Mapping[str, str] = {
    LRU: "evict the item that was requested least recently",
    LCU: "evict the item with the fewest requests since the start; if equal, the least recently requested",
    FIFO: "evict the item that was loaded first",
    NEVER: "evict nothing; an item that does not fit is loaded for one request only",
    EAGER: "keep nothing: an item is evicted when its last user has released it",
}


class Grant(NamedTuple):
    """The cache's decision on a request. The caller holds a reference if the item is kept."""

    hit: bool
    """Whether the item was resident. If False, the caller must load the item."""
    kept: bool
    """Whether the item stays in the cache until `release`. If False, the item is loaded only for this request."""
    evicted: tuple[int, ...] = ()
    """Items that were evicted to make room, in the order of their eviction. The caller must free these items before it
    loads the requested item.
    """


_HIT = Grant(hit=True, kept=True)
_ALONE = Grant(hit=False, kept=False)


class _Entry:
    __slots__ = ("bytes", "loaded_at", "references", "requested_at", "requests")

    def __init__(self, size_bytes: int, now: int, requests: int) -> None:
        self.bytes = size_bytes
        self.references = 1
        self.loaded_at = self.requested_at = now
        self.requests = requests


class Residents:
    """The items that a cache keeps, identified by number. Not thread-safe.

    The total size of kept items never exceeds the capacity, and an item with references is never evicted.
    """

    def __init__(
        self,
        capacity_bytes: int | None,
        policy: str = LRU,
        always: Mapping[int, int] | None = None,
    ) -> None:
        """capacity_bytes: None for no limit. policy: a key of POLICIES.

        always: the sizes, by item number, of items that are resident from the start and never evicted. Raises
        ValueError if the policy is unknown or `always` exceeds the capacity.
        """
        if policy not in POLICIES:
            raise ValueError(f"policy {policy!r}: choose from {', '.join(POLICIES)}")
        self.capacity_bytes = capacity_bytes
        self.policy = policy
        self._keeps_nothing = policy == EAGER
        self.used_bytes = self.always_bytes = sum((always or {}).values())
        if capacity_bytes is not None and self.always_bytes > capacity_bytes:
            raise ValueError(
                f"the {self.always_bytes:,} B that are always resident do not fit into {capacity_bytes:,} B"
            )
        self._always = frozenset(always or ())
        self._now = 0
        self._requests: dict[int, int] = {}
        """Request counts of the items that are not resident."""
        self._entries: dict[int, _Entry] = {}
        for key, size_bytes in (always or {}).items():
            self._entries[key] = entry = _Entry(size_bytes, 0, 0)
            entry.references = 0
        self._order = self._orders()[policy]

    def __contains__(self, key: int) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[int]:
        return iter(self._entries)

    def references(self, key: int) -> int:
        return self._entries[key].references if key in self._entries else 0

    def request(self, key: int, size_bytes: int) -> Grant | None:
        """Requests an item. Returns None, and changes nothing, if the request must wait until other items are released."""
        entry = self._entries.get(key)
        if entry is not None:
            self._now += 1
            entry.requested_at = self._now
            entry.requests += 1
            entry.references += 1
            return _HIT
        fits = self._fits(size_bytes)
        if not fits and (self.policy == NEVER or self._fits_never(size_bytes)):
            self._count(key)
            return _ALONE
        victims = () if fits else self._victims(size_bytes)
        if victims is None:
            return None
        for victim in victims:
            self.forget(victim)
        self._entries[key] = _Entry(size_bytes, self._now + 1, self._count(key))
        self.used_bytes += size_bytes
        return Grant(hit=False, kept=True, evicted=victims)

    def release(self, key: int) -> tuple[int, ...]:
        """Releases a reference. Returns the evicted items. Only the policy `eager` evicts items during a release."""
        entry = self._entries[key]
        if entry.references < 1:
            raise ValueError(f"{key!r} is released more often than it was requested")
        entry.references -= 1
        if self._keeps_nothing and not entry.references and key not in self._always:
            self.forget(key)
            return (key,)
        return ()

    def forget(self, key: int) -> None:
        """Removes an item whose load failed, even if it has references. Keeps the item if it is always resident."""
        if key in self._always:
            self._entries[key].references = 0
        else:
            gone = self._entries.pop(key)
            self._requests[key] = gone.requests
            self.used_bytes -= gone.bytes

    def _count(self, key: int) -> int:
        """Counts a request for an item that is not resident. Returns the number of requests for this item so far."""
        self._now += 1
        self._requests[key] = count = self._requests.get(key, 0) + 1
        return count

    def _fits(self, size_bytes: int) -> bool:
        return self.capacity_bytes is None or self.used_bytes + size_bytes <= self.capacity_bytes

    def _fits_never(self, size_bytes: int) -> bool:
        assert self.capacity_bytes is not None
        return self.always_bytes + size_bytes > self.capacity_bytes

    def _victims(self, size_bytes: int) -> tuple[int, ...] | None:
        """Returns the items whose eviction frees `size_bytes`, or None if all unused items together are smaller."""
        assert self.capacity_bytes is not None
        missing = self.used_bytes + size_bytes - self.capacity_bytes
        free = [
            key
            for key, entry in self._entries.items()
            if not entry.references and key not in self._always
        ]
        victims: list[int] = []
        for key in sorted(free, key=self._order):
            if missing <= 0:
                break
            victims.append(key)
            missing -= self._entries[key].bytes
        return tuple(victims) if missing <= 0 else None

    def _orders(self) -> Mapping[str, Callable[[int], tuple[int, ...]]]:
        """Returns the sort key of each policy. The item with the smallest key is evicted first."""
        entries = self._entries

        def least_recent(key: int) -> tuple[int, ...]:
            return (entries[key].requested_at,)

        def least_common(key: int) -> tuple[int, ...]:
            return entries[key].requests, entries[key].requested_at

        def first_loaded(key: int) -> tuple[int, ...]:
            return (entries[key].loaded_at,)

        return {
            LRU: least_recent,
            LCU: least_common,
            FIFO: first_loaded,
            NEVER: least_recent,
            EAGER: least_recent,
        }
