"""Simulates the reference dispatcher: queueing without any cost but the model's.

A queue first in, first out: the first free instance takes a batch of what waits at once, of the size that the
rule of `harness/core/batch_rule.py` gives. Pure.
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
    scheduled_ns: Array, service: ServiceTimes, instances: int, max_batch: int, wait_ns: int = 0
) -> Simulated:
    """scheduled_ns: (queries,) ascending. wait_ns: how long a query may wait for others to fill its
    batch, although an instance is free. Service times are drawn with a fixed seed.
    """
    rule = None if wait_ns else rule_of(service, instances, max_batch)
    draws = np.random.default_rng(_SEED).integers(0, QUANTILES, len(scheduled_ns)).tolist()

    @cache  # only sizes that occur: all sizes up to a large --max-batch would fill the memory
    def times_ns(size: int) -> list[int]:
        times: list[int] = service.of(size).astype(np.int64).tolist()
        return times

    return _dispatched(
        scheduled_ns,
        instances,
        max_batch,
        wait_ns,
        rule,
        lambda size, first, _: times_ns(size)[draws[first]],
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
) -> Simulated:
    """took_ns(size, first query, start_ns): service time of a batch. rule: None takes all queries that wait."""
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
        if rule is None:
            last = max(first + 1, bisect_right(arrivals, start, first, end))
        else:
            waiting = max(1, bisect_right(arrivals, start, first) - first)
            last = first + rule.size(waiting, sum(at <= start for at in free))
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
    def of(cls, done: Completions, service: ServiceTimes) -> Self:
        batch = done.columns["batch"]
        first = np.flatnonzero(np.diff(batch, prepend=batch[:1] - 1))
        first = first[np.argsort(done.columns["gathered_ns"][first], kind="stable")]
        begins_ns, ends_ns, sizes = (
            done.columns[name][first] for name in ("gathered_ns", "inferred_ns", "batch_size")
        )
        different, which = np.unique(sizes, return_inverse=True)
        bare_ns = np.array([max(service.of(int(n)).mean(), 1.0) for n in different])[which]
        took_ns = ends_ns - begins_ns
        return cls(begins_ns, took_ns / bare_ns, float(took_ns.sum() / bare_ns.sum()))


def at_run_speed(
    scheduled_ns: Array, run: BatchesInRun, service: ServiceTimes, spec: InstanceGroup, wait_ns: int
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

    def took_ns(size: int, _: int, start_ns: int) -> int:
        batch = min(bisect_left(begins_ns, start_ns), len(slower) - 1)
        return round(usual_ns(size) * slower[batch])

    rule = None if wait_ns else rule_of(service, spec.instances, spec.max_batch)
    simulated = _dispatched(scheduled_ns, spec.instances, spec.max_batch, wait_ns, rule, took_ns)
    return simulated.queue_ns + simulated.infer_ns
