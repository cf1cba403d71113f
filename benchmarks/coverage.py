"""Simulates how often each interval that the harness prints contains the true value (docs/intervals.md).

    python benchmarks/coverage.py > coverage.md

Latencies are drawn from processes whose percentiles are known, so the script counts every miss. All seeds are fixed, so
the same code prints the same table. The script takes a few minutes.
"""

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from harness.core.stats import LEVEL, interval_ranks
from harness.results.evidence.between_runs import between_runs, over_runs
from harness.results.evidence.block_intervals import (
    blocks,
    mean_interval,
    percentile_intervals,
    rate_interval,
)
from harness.types import Array

FRACTIONS = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
MEDIAN_NS = 1_000_000

Draw = Callable[[np.random.Generator, int], Array]


class Process(NamedTuple):
    """A random process that generates the latencies of a run's queries."""

    name: str
    draw: Draw
    """Returns (n,) latencies in ns."""


def independent(rng: np.random.Generator, n: int) -> Array:
    return _ns(rng.normal(size=n))


def alike(neighbours: int) -> Draw:
    """Returns moving averages, so that samples are independent if they are `neighbours` or more apart."""

    def draw(rng: np.random.Generator, n: int) -> Array:
        sums = np.cumsum(np.concatenate([[0.0], rng.normal(size=n + neighbours - 1)]))
        return _ns((sums[neighbours:] - sums[:-neighbours]) / math.sqrt(neighbours))

    return draw


def bursts(length: int, every: int) -> Draw:
    """Returns latencies with stalls. A stall begins at random, on average once per `every` queries, and delays `length`
    queries by 10 ms.
    """

    def draw(rng: np.random.Generator, n: int) -> Array:
        begins = rng.random(n + length) < 1 / every
        recent: Array = np.cumsum(begins)[length:] - np.cumsum(begins)[:-length]
        latencies: Array = _ns(rng.normal(size=n)) + 10_000_000 * (recent > 0)
        return latencies

    return draw


def queue(utilisation: float) -> Draw:
    """Returns the response times of a queue with random arrivals and service times (M/M/1), which is stationary from
    the start.
    """

    def draw(rng: np.random.Generator, n: int) -> Array:
        served, gaps = rng.exponential(size=n), rng.exponential(1 / utilisation, size=n - 1)
        first = rng.exponential(1 / (1 - utilisation)) * (rng.random() < utilisation)
        unbounded = first + np.concatenate([[0.0], np.cumsum(served[:-1] - gaps)])
        waits = unbounded - np.minimum(np.minimum.accumulate(unbounded), 0.0)
        latencies: Array = (MEDIAN_NS * (waits + served)).astype(np.int64)
        return latencies

    return draw


def slow_phases(length: int, every: int) -> Draw:
    """Returns latencies with slow phases. A phase begins at random, on average once per `every` queries, and triples
    `length` latencies.
    """

    def draw(rng: np.random.Generator, n: int) -> Array:
        begins = np.cumsum(rng.random(n + length) < 1 / every)
        slow = begins[length:] > begins[:-length]
        latencies: Array = _ns(0.4 * rng.normal(size=n)) * np.where(slow, 3, 1)
        return latencies

    return draw


def drifting(rng: np.random.Generator, n: int) -> Array:
    """Returns latencies of a machine that slows down by 20 % from the first query to the last."""
    latencies: Array = (_ns(rng.normal(size=n)) * np.linspace(1.0, 1.2, n)).astype(np.int64)
    return latencies


PROCESSES = (
    Process("independent", independent),
    Process("queue, utilisation 0.5", queue(0.5)),
    Process("queue, utilisation 0.7", queue(0.7)),
    Process("queue, utilisation 0.9", queue(0.9)),
    Process("queue, utilisation 0.95", queue(0.95)),
    Process("slow phases of 30, one in 3,000", slow_phases(30, 3000)),
    Process("slow phases of 200, one in 4,000", slow_phases(200, 4000)),
    Process("alike for 10 queries", alike(10)),
    Process("alike for 100 queries", alike(100)),
    Process("stalls of 20 queries, one in 2,000", bursts(20, 2000)),
    Process("stalls of 100 queries, one in 20,000", bursts(100, 20_000)),
    Process("drift of 20 %", drifting),
)
SIZES = {2000: 500, 20_000: 200, 200_000: 60}
"""Maps the number of queries per run to the number of runs."""


class Coverage(NamedTuple):
    """Coverage of one percentile over the simulated runs."""

    intervals: float
    """Share of runs in which blocks give an interval."""
    held: float | None
    """Share of the intervals from blocks that contain the true value; None without such intervals."""
    order_statistics: float
    """Share of all runs whose interval from order statistics contains the true value."""

    def __str__(self) -> str:
        held = "-" if self.held is None else f"{self.held:.0%}"
        share = "" if self.intervals >= 0.995 else f" ({self.intervals:.0%})"
        return f"{held} / {self.order_statistics:.0%}{share}"


def percentile_coverage(process: Process, queries: int, runs: int) -> Mapping[str, Coverage]:
    """Maps each percentile to how often its intervals contain the true value."""
    rng = np.random.default_rng(queries)
    truth = _truth(process.draw, queries)
    held: dict[str, list[bool]] = {name: [] for name in FRACTIONS}
    by_order = dict.fromkeys(FRACTIONS, 0)
    for _ in range(runs):
        values = process.draw(rng, queries)
        intervals = percentile_intervals(values, blocks(np.arange(queries)), FRACTIONS)
        ordered = np.sort(values)
        for name, fraction in FRACTIONS.items():
            one = intervals[name]
            if one.reason is None:
                held[name].append(_holds(one.low, truth[name], one.high))
            ranks = interval_ranks(queries, fraction, LEVEL)
            low, high = (None if rank is None else int(ordered[rank]) for rank in ranks)
            by_order[name] += _holds(low, truth[name], high)
    return {
        name: Coverage(
            intervals=len(found) / runs,
            held=sum(found) / len(found) if found else None,
            order_statistics=by_order[name] / runs,
        )
        for name, found in held.items()
    }


def other_coverage(runs: int = 500) -> Mapping[str, float]:
    """Maps each interval to the share of simulated runs, or pairs of runs, in which it contains the true value."""
    rng = np.random.default_rng(7)
    held: dict[str, list[bool]] = {}

    def count(name: str, low: float, truth: float, high: float) -> None:
        held.setdefault(name, []).append(low <= truth <= high)

    draw = alike(10)
    mean_ns = MEDIAN_NS * math.exp(_SIGMA**2 / 2)
    block = blocks(np.arange(20_000))
    for _ in range(runs):
        values = draw(rng, 20_000)
        count("mean of a run of 20,000", *_around(mean_interval(values, block), mean_ns))
        rate = rate_interval(np.cumsum(values), 0)
        count("throughput of a run of 20,000", *_around(rate, 1e9 / mean_ns))
        logs = rng.normal(size=10) * 0.05
        _, interval = over_runs(list(np.exp(logs[:3]))) or (1.0, None)
        count("mean over 3 runs (--repeats, tune)", *_around(interval, 1.0))
        half = between_runs(list(logs[:5]), list(logs[5:])) or math.nan
        change = float(logs[5:].mean() - logs[:5].mean())
        count("change between 5 and 5 runs (compare)", change - half, 0.0, change + half)
        ordered = np.sort(logs)
        low, high = interval_ranks(10, 0.5, LEVEL)
        if low is not None and high is not None:
            count("median of 10 pairs (advise)", ordered[low], 0.0, ordered[high])
    return {name: sum(one) / len(one) for name, one in held.items()}


_SIGMA = 0.5


def _ns(normal: Array) -> Array:
    """Returns log-normal latencies from standard normal numbers."""
    latencies: Array = (MEDIAN_NS * np.exp(_SIGMA * normal)).astype(np.int64)
    return latencies


@lru_cache
def _truth(draw: Draw, queries: int) -> Mapping[str, float]:
    """Returns the true percentiles, computed from the queries of many runs, about 4 million in total."""
    rng = np.random.default_rng(1)
    ordered = np.sort(np.concatenate([draw(rng, queries) for _ in range(4_000_000 // queries)]))
    return {name: float(ordered[int(len(ordered) * f)]) for name, f in FRACTIONS.items()}


def _holds(low: int | None, truth: float, high: int | None) -> bool:
    return (low is None or low <= truth) and (high is None or truth <= high)


def _around(interval: tuple[float, float] | None, truth: float) -> tuple[float, float, float]:
    low, high = interval or (math.nan, math.nan)
    return low, truth, high


def main() -> None:
    """Prints both tables as Markdown."""
    print("| latencies | queries |", " | ".join(FRACTIONS), "|")
    print("|---|---|" + "---|" * len(FRACTIONS))
    for process in PROCESSES:
        for queries, runs in SIZES.items():
            cells = map(str, percentile_coverage(process, queries, runs).values())
            print(f"| {process.name} | {queries:,} |", " | ".join(cells), "|", flush=True)
    print("\n| interval | holds the truth |\n|---|---|")
    for name, share in other_coverage().items():
        print(f"| {name} | {share:.1%} |")


if __name__ == "__main__":
    main()
