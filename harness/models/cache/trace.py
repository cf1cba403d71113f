"""Simulates a sequence of cache requests without loading anything. Computes request counts, and the hit rate at each
capacity.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from harness.models.cache.cache import ALONE, HIT, LOADED
from harness.models.cache.residents import LRU, Residents
from harness.types import Array


class Served(NamedTuple):
    """The outcome of one request in a sequence."""

    how: str
    """HIT, LOADED or ALONE (cache.py)."""
    evicted: tuple[int, ...]
    """Evicted items, in the order of their eviction. Items evicted to make room come before items evicted at the end of
    the request.
    """


class Point(NamedTuple):
    """A capacity, and the share of requests that a cache of this capacity serves without a load."""

    capacity_bytes: int
    hit_rate: float


def play(
    requests: Iterable[int], sizes_bytes: Mapping[int, int], residents: Residents
) -> Iterator[Served]:
    """Simulates the requests one after the other. Each item is released before the next request."""
    for key in requests:
        grant = residents.request(key, sizes_bytes[key])
        # each item is released before the next request, so every request is granted at once
        assert grant is not None
        left = residents.release(key) if grant.kept else ()
        how = HIT if grant.hit else LOADED if grant.kept else ALONE
        yield Served(how, (*grant.evicted, *left))


def curve(
    requests: Sequence[int],
    sizes_bytes: Mapping[int, int],
    capacities_bytes: Sequence[int],
    policy: str = LRU,
    always: Sequence[int] = (),
) -> list[Point]:
    """Returns the hit rate at each capacity. LRU needs one pass over all requests. Other policies need one pass per
    capacity. Omits capacities that are too small for the items of `always`.
    """
    kept = {key: sizes_bytes[key] for key in always}
    possible = [c for c in capacities_bytes if c >= sum(kept.values())]
    if policy != LRU:
        return [
            Point(c, _hit_rate(requests, sizes_bytes, Residents(c, policy, kept))) for c in possible
        ]
    largest = sum(kept.values()) + max(
        (sizes_bytes[key] for key in set(requests) - kept.keys()), default=0
    )
    distances = np.sort(stack_distances_bytes(requests, sizes_bytes, always))
    return [
        Point(c, float(np.searchsorted(distances, c, "right")) / max(1, len(requests)))
        if c >= largest
        else Point(c, _hit_rate(requests, sizes_bytes, Residents(c, LRU, kept)))
        for c in possible
    ]


def _hit_rate(
    requests: Sequence[int], sizes_bytes: Mapping[int, int], residents: Residents
) -> float:
    hits = sum(served.how == HIT for served in play(requests, sizes_bytes, residents))
    return hits / max(1, len(requests))


def stack_distances_bytes(
    requests: Sequence[int], sizes_bytes: Mapping[int, int], always: Sequence[int] = ()
) -> Array:
    """Returns the smallest capacity at which LRU still holds each request's item: (n,) float64.

    The value is infinite for the first request of an item. For a later request, the value is the combined size of
    `always`, the item, and all items requested since the item was last requested. LRU keeps the most recently requested
    items, provided that no single item exceeds the capacity. One pass therefore covers every capacity that is at least
    the size of the largest item.

    Source: R. L. Mattson et al., Evaluation techniques for storage hierarchies, IBM Systems Journal 9(2), 1970.
    """
    kept = set(always)
    kept_bytes = sum(sizes_bytes[key] for key in kept)
    tree = _Sums(len(requests))
    last: dict[int, int] = {}
    distances = np.full(len(requests), np.inf)
    for now, key in enumerate(requests):
        if key in kept:
            distances[now] = kept_bytes
            continue
        size_bytes = sizes_bytes[key]
        if key in last:
            since = tree.sum_below(now) - tree.sum_below(last[key] + 1)
            distances[now] = kept_bytes + size_bytes + since
            tree.add(last[key], -size_bytes)
        tree.add(now, size_bytes)
        last[key] = now
    return distances


class _Sums:
    """Prefix sums of numbers by position (a Fenwick tree)."""

    def __init__(self, count: int) -> None:
        self._tree = [0] * (count + 1)

    def add(self, position: int, number: int) -> None:
        tree, node = self._tree, position + 1
        while node < len(tree):
            tree[node] += number
            node += node & -node

    def sum_below(self, position: int) -> int:
        """Returns the sum of all numbers at positions below `position`."""
        tree, node, total = self._tree, position, 0
        while node:
            total += tree[node]
            node &= node - 1
        return total
