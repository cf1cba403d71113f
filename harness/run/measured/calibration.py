"""Measures the rates and latencies that determine the number of queries in a load plan.

Consecutive calls process different samples. If samples were repeated, a cache in the backend or the processor would
make the model seem faster than in the run.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from harness.machine.threads import running_on
from harness.run.measured.answerer import Answerer, run_in_threads
from harness.run.measured.placement.lone import query_ns

CURVE_LIMIT_S = 1.0
IN_TIME = 90
"""`--dispatch deadline` plans with this percentile of the times measured for each batch size. If the median were used,
half of the batches that are planned to finish just in time would be late.
"""


BatchOf = Callable[[int], list[int]]
"""Returns the given number of dataset indices. Each call returns different samples."""


def calibrate_latency(
    each: Answerer, query: Callable[[], Sequence[Sequence[int]]], limit_s: float
) -> dict[str, Any]:
    """Times single queries, with pauses between them as in a run. query: returns the batches of the next query.

    Returns latency_ns (the median) and mean_ns (the mean, which includes time in which the thread had no core).
    """
    start = time.monotonic()
    times: list[int] = []
    with running_on(each.cpus):
        while not times or time.monotonic() < start + limit_s:
            times.append(query_ns(each, query()))
    seconds = time.monotonic() - start
    return {"latency_ns": int(np.median(times)), "mean_ns": np.mean(times), "seconds": seconds}


def busy_at(
    concurrency: int | None, answerers: Sequence[Answerer], largest: int
) -> tuple[Sequence[Answerer], int]:
    """Returns the instances that `concurrency` queries in flight keep busy, and the batch size of each instance.

    concurrency: if None, every instance is busy with a batch of `largest` samples.
    """
    if concurrency is None:
        return answerers, largest
    busy = answerers[:concurrency]
    return busy, min(largest, max(1, concurrency // len(busy)))


def calibrate_rate(
    answerers: Sequence[Answerer], size: int, batch_of: BatchOf, limit_s: float
) -> Mapping[str, Any]:
    """Measures samples/s while all instances process batches of `size` samples."""
    start = time.monotonic()
    counts = [0] * len(answerers)

    def work(i: int) -> None:
        while not counts[i] or time.monotonic() < start + limit_s:
            answerers[i].answer(batch_of(size))
            counts[i] += 1

    run_in_threads(answerers, work)
    seconds = time.monotonic() - start
    return {"rate_per_s": sum(counts) * size / seconds, "seconds": seconds}


def measure_curve(
    answerers: Sequence[Answerer],
    sizes: Sequence[int],
    batch_of: BatchOf,
    percent: float,
    limit_s: float = CURVE_LIMIT_S,
) -> list[tuple[int, int]]:
    """Returns (samples, ns) per batch size, measured while all instances are busy.

    ns: percentile `percent` of the times.
    """
    deadline = time.monotonic() + limit_s
    rounds: list[list[list[int]]] = [[] for _ in answerers]

    def work(i: int) -> None:
        while not rounds[i] or time.monotonic() < deadline:
            rounds[i].append([answerers[i].time_ns(batch_of(size)) for size in sizes])

    run_in_threads(answerers, work)
    times = np.percentile(np.concatenate(rounds), percent, axis=0)
    return [(size, int(ns)) for size, ns in zip(sizes, times, strict=True)]
