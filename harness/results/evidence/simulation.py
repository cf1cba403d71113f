"""Simulates the reference dispatcher: queueing without any cost but the model's.

A queue first in, first out: the first free instance takes a batch of what waits at once, of the size that the
rule of `harness/core/batch_rule.py` gives. A wide instance, where there is one, answers a query that is alone, and
no other instance computes until its end. Pure.
"""

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from functools import cache
from typing import NamedTuple, Self

import numpy as np

from harness.core.batch_rule import BatchRule, batch_times
from harness.core.service_times import QUANTILES, ServiceTimes
from harness.loadgen.plan import InstanceGroup
from harness.results.evidence.stages import Completions
from harness.types import Array

_SEED = 1


class Simulated(NamedTuple):
    queue_ns: Array
    """(queries,) int64: time until an instance took the query."""
    infer_ns: Array
    """(queries,) int64: service time of the query's batch."""


def simulate(
    scheduled_ns: Array,
    service: ServiceTimes,
    instances: int,
    max_batch: int,
    wait_ns: int = 0,
    wide: ServiceTimes | None = None,
) -> Simulated:
    """scheduled_ns: (queries,) ascending. wait_ns: how long a query may wait for others to fill its
    batch, although an instance is free. wide: service times of the wide instance, None without one. Service times
    are drawn with a fixed seed.
    """
    rule = None if wait_ns else rule_of(service, instances, max_batch)
    draws = np.random.default_rng(_SEED).integers(0, QUANTILES, len(scheduled_ns)).tolist()

    @cache  # only sizes that occur: all sizes up to a large --max-batch would fill the memory
    def times_ns(size: int) -> list[int]:
        times: list[int] = service.of(size).astype(np.int64).tolist()
        return times

    alone_ns = wide.of(1).astype(np.int64).tolist() if wide is not None else None
    return _dispatched(
        scheduled_ns,
        instances,
        max_batch,
        wait_ns,
        rule,
        lambda size, first, _: times_ns(size)[draws[first]],
        (lambda first, _: alone_ns[draws[first]]) if alone_ns is not None else None,
    )


def rule_of(service: ServiceTimes, instances: int, max_batch: int) -> BatchRule:
    points = [(size, service.median_ns(size)) for size in service.sizes]
    return BatchRule(batch_times(points, max_batch), instances)


def _dispatched(
    scheduled_ns: Array,
    instances: int,
    max_batch: int,
    wait_ns: int,
    rule: BatchRule | None,
    took_ns: Callable[[int, int, int], int],
    alone_ns: Callable[[int, int], int] | None = None,
) -> Simulated:
    """took_ns(size, first query, start_ns): service time of a batch. rule: None takes all queries that wait.

    alone_ns(query, start_ns): of the wide instance; None without one.
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
            until = min(until, arrivals[end - 1])  # full before that
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


class BatchesInRun(NamedTuple):
    begins_ns: Array
    """(batches,) ascending: start of each call of the model."""
    slower: Array
    """(batches,) float64: time of the call divided by the bare loops' mean for its size."""
    ratio: float
    """Time of all calls divided by the sum of the bare loops' means for their sizes."""

    @classmethod
    def of(
        cls, done: Completions, service: ServiceTimes, instances: int, wide: ServiceTimes | None
    ) -> Self:
        """instances: without the wide one, which is the next worker. wide: its service times, None without one."""
        batch = done.columns["batch"]
        first = np.flatnonzero(np.diff(batch, prepend=batch[:1] - 1))
        first = first[np.argsort(done.columns["gathered_ns"][first], kind="stable")]
        begins_ns, ends_ns, sizes = (
            done.columns[name][first] for name in ("gathered_ns", "inferred_ns", "batch_size")
        )
        different, which = np.unique(sizes, return_inverse=True)
        bare_ns = np.array([max(service.of(int(n)).mean(), 1.0) for n in different])[which]
        if wide is not None:
            is_wide = done.columns["worker"][first] == instances
            bare_ns = np.where(is_wide, max(wide.of(1).mean(), 1.0), bare_ns)
        took_ns = ends_ns - begins_ns
        return cls(begins_ns, took_ns / bare_ns, float(took_ns.sum() / bare_ns.sum()))


def at_run_speed(
    scheduled_ns: Array,
    run: BatchesInRun,
    service: ServiceTimes,
    spec: InstanceGroup,
    wait_ns: int,
    wide: ServiceTimes | None = None,
) -> Array:
    """(queries,) ns: latencies of the same dispatcher with a model as fast as it was in the run.

    Bare loops before and after a run miss a machine that is slower for a second in between, and near
    capacity that second makes the tail of any dispatcher. So a batch takes the bare loops' time for
    its size, multiplied by the slowdown of the run's next batch.
    """
    begins_ns: list[int] = run.begins_ns.tolist()
    slower: list[float] = run.slower.tolist()

    @cache
    def usual_ns(size: int) -> float:
        return float(service.of(size).mean())

    def slowed(ns: float, start_ns: int) -> int:
        return round(ns * slower[min(bisect_left(begins_ns, start_ns), len(slower) - 1)])

    alone_ns = float(wide.of(1).mean()) if wide is not None else None
    rule = None if wait_ns else rule_of(service, spec.instances, spec.max_batch)
    simulated = _dispatched(
        scheduled_ns,
        spec.instances,
        spec.max_batch,
        wait_ns,
        rule,
        lambda size, _, start_ns: slowed(usual_ns(size), start_ns),
        (lambda _, start_ns: slowed(alone_ns, start_ns)) if alone_ns is not None else None,
    )
    return simulated.queue_ns + simulated.infer_ns
