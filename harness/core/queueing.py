"""Simulates the reference dispatcher: a queue in which only the model takes time.

The queue is first in, first out. As soon as an instance is free, the instance takes a batch of waiting queries. The
rule in `harness/core/batch_rule.py` determines the batch size. If the run has a wide instance, this instance processes
a query when no other query waits. The other instances stay idle until this query is complete.
"""

import heapq
from bisect import bisect_right
from collections.abc import Callable
from functools import cache
from typing import NamedTuple, Protocol

import numpy as np

from harness.core.batch_rule import BatchRule, batch_times
from harness.core.service_times import QUANTILES, ServiceTimes
from harness.types import Array

_SEED = 1


class Simulated(NamedTuple):
    queue_ns: Array
    """(queries,) int64: time that each query waited for a free instance."""
    infer_ns: Array
    """(queries,) int64: service time of the batch that contained each query."""


def simulate(
    scheduled_ns: Array,
    service: ServiceTimes,
    instances: int,
    max_batch: int,
    wait_ns: int = 0,
    wide: ServiceTimes | None = None,
) -> Simulated:
    """Simulates a run. Service times are drawn at random with a fixed seed.

    scheduled_ns: (queries,) ascending. wait_ns: maximum time for which a query waits for others to fill its batch
    although an instance is free. wide: service times of the wide instance; None if the run has no wide instance.
    """
    rule = None if wait_ns else rule_of(service, instances, max_batch)
    draws = np.random.default_rng(_SEED).integers(0, QUANTILES, len(scheduled_ns)).tolist()

    # The times are computed on demand, because a table for all sizes up to a large --max-batch would fill the memory.
    @cache
    def times_ns(size: int) -> list[int]:
        times: list[int] = service.of(size).astype(np.int64).tolist()
        return times

    alone_ns = wide.of(1).astype(np.int64).tolist() if wide is not None else None
    return dispatched(
        scheduled_ns,
        instances,
        max_batch,
        wait_ns,
        rule,
        lambda size, first, _: times_ns(size)[draws[first]],
        (lambda first, _: alone_ns[draws[first]]) if alone_ns is not None else None,
    )


class Rule(Protocol):
    """A rule that determines the batch size: `BatchRule`, or a policy from benchmarks/tail.py."""

    def size(self, waiting: int, idle: int, /) -> int: ...


def rule_of(service: ServiceTimes, instances: int, max_batch: int) -> BatchRule:
    points = [(size, service.median_ns(size)) for size in service.sizes]
    return BatchRule(batch_times(points, max_batch), instances)


def dispatched(
    scheduled_ns: Array,
    instances: int,
    max_batch: int,
    wait_ns: int,
    rule: Rule | None,
    took_ns: Callable[[int, int, int], int],
    alone_ns: Callable[[int, int], int] | None = None,
) -> Simulated:
    """Simulates a run with given service times.

    took_ns(size, first query, start_ns): returns a batch's service time. rule: determines the batch sizes. If `rule` is
    None, a batch contains all waiting queries. alone_ns(query, start_ns): returns the wide instance's service time;
    None if the run has no wide instance.
    """
    arrivals: list[int] = scheduled_ns.tolist()
    free = [arrivals[0]] * instances if arrivals else []
    started: list[int] = []
    sizes: list[int] = []
    took: list[int] = []
    first, count = 0, len(arrivals)
    while first < count:
        end = min(first + max_batch, count)
        until = arrivals[first] + wait_ns
        if end - first == max_batch:
            until = min(until, arrivals[end - 1])  # a full batch does not wait any longer
        start = max(free[0], until)
        waiting = max(1, bisect_right(arrivals, start, first) - first)
        idle = sum(at <= start for at in free)
        if alone_ns is not None and waiting == 1 and idle == instances:
            last = first + 1
            took.append(alone_ns(first, start))
            free = [start + took[-1]] * instances
        else:
            last = first + (min(waiting, max_batch) if rule is None else rule.size(waiting, idle))
            took.append(took_ns(last - first, first, start))
            heapq.heapreplace(free, start + took[-1])
        started.append(start)
        sizes.append(last - first)
        first = last
    batch_of = np.repeat(np.arange(len(sizes)), sizes)
    queue_ns = np.asarray(started, np.int64)[batch_of] - scheduled_ns
    return Simulated(queue_ns, np.asarray(took, np.int64)[batch_of])
