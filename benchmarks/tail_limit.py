"""Simulates the limit of Server's tail: a first-in, first-out queue under the best of many policies."""

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from harness.core.batch_rule import BatchRule, batch_times
from harness.core.queueing import dispatched
from harness.core.service_times import QUANTILES, ServiceTimes
from harness.core.units import NS_PER_MS
from harness.types import Array

BATCHES = (1, 2, 4, 8)

MOST_SIMULATED = 200_000
"""Maximum number of a run's queries in a simulation; 2,000 of them are later than p99."""


Draws = Callable[[int], Array]
"""Maps a batch size to (QUANTILES,) service times in ns."""


class Tail(NamedTuple):
    p50_ms: float
    p99_ms: float

    @classmethod
    def of_ns(cls, p50_ns: float, p99_ns: float) -> "Tail":
        return cls(float(p50_ns) / NS_PER_MS, float(p99_ns) / NS_PER_MS)


class Times(NamedTuple):
    """Service times of one instance per core, and of one instance on all cores if it exists."""

    narrow: ServiceTimes
    wide: ServiceTimes | None = None
    lone: Array | None = None
    """(QUANTILES,) service times in ns of a single query on all cores after a pause."""


class Policy(NamedTuple):
    """A dispatching policy. size: (waiting samples, idle instances) -> batch size. alone: service times of a query on
    all cores.
    """

    instances: int
    draws: Draws
    size: Callable[[int, int], int]
    alone: Array | None = None


def policies(times: Times, count: int) -> Iterator[Policy]:
    """Yields fixed batches and the harness's rule with one instance per core, each with and without all cores for a
    single waiting query; then yields fixed batches with one instance on all cores.
    """
    narrow, wide, lone = times
    rule = BatchRule(batch_times([(n, narrow.median_ns(n)) for n in BATCHES], BATCHES[-1]), count)
    sizes: list[Callable[[int, int], int]] = [
        *(partial(_at_most, most) for most in BATCHES),
        rule.size,
    ]
    for size in sizes:
        yield Policy(count, narrow.of, size)
        if lone is not None:
            yield Policy(count, narrow.of, size, lone)
    if wide is not None:
        yield from (Policy(1, wide.of, partial(_at_most, most)) for most in BATCHES)


def limit(due_ns: Array, times: Times, count: int) -> Tail:
    """Returns the lowest p50 and the lowest p99 over all policies, for at most MOST_SIMULATED of the queries."""
    found = [simulated(due_ns[:MOST_SIMULATED], policy) for policy in policies(times, count)]
    return Tail(min(tail.p50_ms for tail in found), min(tail.p99_ms for tail in found))


def _at_most(most: int, waiting: int, _idle: int) -> int:
    return min(waiting, most)


def simulated(due_ns: Array, policy: Policy) -> Tail:
    """Simulates a first-in, first-out queue. due_ns: (queries,) ascending, from any start."""
    drawn = np.random.default_rng(0).integers(0, QUANTILES, len(due_ns))
    draws = cache(policy.draws)
    alone = policy.alone
    found = dispatched(
        due_ns - due_ns[0],
        policy.instances,
        BATCHES[-1],
        0,
        policy,
        lambda size, first, _: int(draws(size)[drawn[first]]),
        None if alone is None else lambda first, _: int(alone[drawn[first]]),
    )
    return Tail.of_ns(*np.percentile(found.queue_ns + found.infer_ns, (50, 99)))
