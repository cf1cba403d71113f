"""Measures the rates and latencies that a load plan is sized by."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from harness.machine.threads import running_on
from harness.run.measured.answerer import Answerer, run_in_threads

CURVE_LIMIT_S = 2.0
CURVE_PERCENT = 90
"""Percentile of a batch size's times. By the median, every second batch that was planned to be in time
would be late."""


def calibrate_latency(each: Answerer, query: Sequence[list[int]], limit_s: float) -> dict[str, Any]:
    """The median time of one query that is answered alone. query: its batches."""
    start = time.monotonic()
    with running_on(each.cpus):
        times = _repeat(each, query, start + limit_s)
    return {"latency_ns": int(np.median(times)), "seconds": time.monotonic() - start}


def busy_at(
    concurrency: int | None, answerers: Sequence[Answerer], largest: list[int]
) -> tuple[Sequence[Answerer], list[int]]:
    """The instances that are busy with `concurrency` queries in flight, and the batch of each.

    concurrency: None keeps every instance busy on its largest batch.
    """
    if concurrency is None:
        return answerers, largest
    busy = answerers[:concurrency]
    return busy, largest[: max(1, concurrency // len(busy))]


def calibrate_rate(
    answerers: Sequence[Answerer], batch: list[int], limit_s: float
) -> Mapping[str, Any]:
    """The samples/s with every instance busy on `batch`."""
    start = time.monotonic()
    counts = [0] * len(answerers)

    def work(i: int) -> None:
        counts[i] = len(_repeat(answerers[i], [batch], start + limit_s))

    run_in_threads(answerers, work)
    seconds = time.monotonic() - start
    return {"rate_per_s": sum(counts) * len(batch) / seconds, "seconds": seconds}


def measure_curve(
    answerers: Sequence[Answerer], batches: Sequence[list[int]], limit_s: float = CURVE_LIMIT_S
) -> list[tuple[int, int]]:
    """(samples, ns) of each batch, with every instance busy on them."""
    deadline = time.monotonic() + limit_s
    rounds: list[list[list[int]]] = [[] for _ in answerers]

    def work(i: int) -> None:
        while not rounds[i] or time.monotonic() < deadline:
            rounds[i].append([answerers[i].time_ns(batch) for batch in batches])

    run_in_threads(answerers, work)
    times = np.percentile(np.concatenate(rounds), CURVE_PERCENT, axis=0)
    return [(len(batch), int(ns)) for batch, ns in zip(batches, times, strict=True)]


def _repeat(each: Answerer, batches: Sequence[list[int]], deadline_s: float) -> list[int]:
    """The time in ns of each repetition of all batches until the deadline; at least one."""
    times: list[int] = []
    while not times or time.monotonic() < deadline_s:
        times.append(sum(each.time_ns(indices) for indices in batches))
    return times
