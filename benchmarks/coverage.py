"""How often each interval that the product prints holds the truth, by simulation: docs/intervals.md.

    python benchmarks/coverage.py > coverage.md

Latencies are drawn from processes whose true percentiles are known, so every miss is counted. All
seeds are fixed: the same code prints the same table. About 5 minutes.
"""

import math
from collections.abc import Callable, Mapping
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
    """Latencies of a run's queries."""

    name: str
    draw: Draw
    """(n,) latencies in ns."""


def independent(rng: np.random.Generator, n: int) -> Array:
    return _ns(rng.normal(size=n))


def alike(neighbours: int) -> Draw:
    """Moving averages: samples that are `neighbours` apart or farther are independent."""

    def draw(rng: np.random.Generator, n: int) -> Array:
        sums = np.cumsum(np.concatenate([[0.0], rng.normal(size=n + neighbours - 1)]))
        return _ns((sums[neighbours:] - sums[:-neighbours]) / math.sqrt(neighbours))

    return draw


def bursts(length: int, every: int) -> Draw:
    """Stalls that begin at random, on average one in `every` queries, and delay `length` queries by 10 ms."""

    def draw(rng: np.random.Generator, n: int) -> Array:
        begins = rng.random(n + length) < 1 / every
        recent: Array = np.cumsum(begins)[length:] - np.cumsum(begins)[:-length]
        latencies: Array = _ns(rng.normal(size=n)) + 10_000_000 * (recent > 0)
        return latencies

    return draw


def drifting(rng: np.random.Generator, n: int) -> Array:
    """A machine that becomes 20 % slower from the first query to the last."""
    latencies: Array = (_ns(rng.normal(size=n)) * np.linspace(1.0, 1.2, n)).astype(np.int64)
    return latencies


PROCESSES = (
    Process("independent", independent),
    Process("alike for 10 queries", alike(10)),
    Process("alike for 100 queries", alike(100)),
    Process("stalls of 20 queries, one in 2,000", bursts(20, 2000)),
    Process("stalls of 100 queries, one in 20,000", bursts(100, 20_000)),
    Process("drift of 20 %", drifting),
)
SIZES = {2000: 1000, 20_000: 500, 200_000: 200}
"""Queries of a run -> runs."""


def percentile_coverage(process: Process, queries: int, runs: int) -> Mapping[str, list[float]]:
    """Percentile -> shares of runs whose block interval and order statistics hold the truth, and of runs
    whose block interval has both ends.
    """
    rng = np.random.default_rng(queries)
    truth = _truth(process.draw, queries)
    held = {name: np.zeros(3) for name in FRACTIONS}
    for _ in range(runs):
        values = process.draw(rng, queries)
        intervals = percentile_intervals(values, blocks(np.arange(queries)), FRACTIONS)
        ordered = np.sort(values)
        for name, fraction in FRACTIONS.items():
            low, high, _ = intervals[name]
            ranks = interval_ranks(queries, fraction, LEVEL)
            ends = [None if rank is None else int(ordered[rank]) for rank in ranks]
            held[name] += (
                _holds(low, truth[name], high),
                _holds(ends[0], truth[name], ends[1]),
                low is not None and high is not None,
            )
    return {name: list(counts / runs) for name, counts in held.items()}


def other_coverage(runs: int = 1000) -> Mapping[str, float]:
    """Interval -> share of simulated runs, or of pairs of runs, in which it holds the truth."""
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
    """Log-normal latencies from standard normal numbers."""
    latencies: Array = (MEDIAN_NS * np.exp(_SIGMA * normal)).astype(np.int64)
    return latencies


def _truth(draw: Draw, queries: int) -> Mapping[str, float]:
    """The percentiles of all queries of many runs, of 4 million queries or more."""
    rng = np.random.default_rng(1)
    ordered = np.sort(np.concatenate([draw(rng, queries) for _ in range(4_000_000 // queries)]))
    return {name: float(ordered[int(len(ordered) * f)]) for name, f in FRACTIONS.items()}


def _holds(low: int | None, truth: float, high: int | None) -> bool:
    return (low is None or low <= truth) and (high is None or truth <= high)


def _around(interval: tuple[float, float] | None, truth: float) -> tuple[float, float, float]:
    low, high = interval or (math.nan, math.nan)
    return low, truth, high


def main() -> None:
    """Print both tables as Markdown."""
    print("| latencies | queries |", " | ".join(FRACTIONS), "|")
    print("|---|---|" + "---|" * len(FRACTIONS))
    for process in PROCESSES:
        for queries, runs in SIZES.items():
            cells = [
                f"{block:.0%} / {order:.0%}" + (f" ({both:.0%})" if both < 0.995 else "")
                for block, order, both in percentile_coverage(process, queries, runs).values()
            ]
            print(f"| {process.name} | {queries:,} |", " | ".join(cells), "|", flush=True)
    print("\n| interval | holds the truth |\n|---|---|")
    for name, share in other_coverage().items():
        print(f"| {name} | {share:.1%} |")


if __name__ == "__main__":
    main()
