"""Computes lower bounds of a model's time from its layers: sums, critical paths and makespans. This module has no side
effects.

Source: Benanza (Li et al., IPDPS 2020), section III-D1.
"""

import heapq
from collections.abc import Sequence
from typing import NamedTuple


class Path(NamedTuple):
    """A chain of layers; each layer reads the output of the previous layer.

    units: positions of the layers, in order.
    """

    ns: float
    units: tuple[int, ...]


def critical_path(unit_ns: Sequence[float], needs: Sequence[Sequence[int]]) -> Path:
    """Returns the slowest chain of layers. More workers cannot make the model faster than this chain.

    unit_ns: (n,) in topological order. needs: (n,) the positions of the earlier units for which each unit waits.
    """
    until: list[float] = []
    before: list[int | None] = []
    for own, waits_for in zip(unit_ns, needs, strict=True):
        last = max(waits_for, key=until.__getitem__, default=None)
        until.append(own + (until[last] if last is not None else 0.0))
        before.append(last)
    if not until:
        return Path(0.0, ())
    end = max(range(len(until)), key=until.__getitem__)
    units: list[int] = []
    at: int | None = end
    while at is not None:
        units.append(at)
        at = before[at]
    return Path(until[end], tuple(reversed(units)))


def makespan_ns(unit_ns: Sequence[float], needs: Sequence[Sequence[int]], workers: int) -> float:
    """Returns the model's time if up to `workers` layers run at once. Layers start in the order in which they become
    ready, as in a runtime's thread pool. The time lies between the length of the critical path and the sum of all
    layers' times.
    """
    takers: list[list[int]] = [[] for _ in unit_ns]
    open_needs = [len(set(waits_for)) for waits_for in needs]
    for i, waits_for in enumerate(needs):
        for other in set(waits_for):
            takers[other].append(i)
    ready = [(0.0, i) for i, left in enumerate(open_needs) if not left]
    heapq.heapify(ready)
    free = [0.0] * workers
    made_at = [0.0] * len(unit_ns)
    while ready:
        since, i = heapq.heappop(ready)
        end = max(heapq.heappop(free), since) + unit_ns[i]
        heapq.heappush(free, end)
        made_at[i] = end
        for taker in takers[i]:
            open_needs[taker] -= 1
            if not open_needs[taker]:
                waited = max(made_at[other] for other in needs[taker])
                heapq.heappush(ready, (waited, taker))
    return max(made_at, default=0.0)
