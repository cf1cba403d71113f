"""Service times: how long a batch takes the backend alone, with every instance busy at once.

Measured by bare loops in the measured process just before and just after LoadGen's run, never from
the run itself: they are what a dispatcher without any cost of its own would have to work with.
"""

import time
from collections.abc import Sequence
from itertools import cycle
from math import inf

import numpy as np

from harness.core.service_times import QUANTILE_POINTS, ServiceTimes
from harness.core.units import NS_PER_S
from harness.run.measured.warm_up import Answerer, run_in_threads
from harness.types import Batch, Dataset

_SHARE = 0.05
"""Of the run's expected time, before it and again after it."""

LIMIT_S = 0.5
LEAST_REPETITIONS = 3
VARIETY = 8
"""Batches of a size, of different samples."""


def time_for(expected_s: float) -> float:
    """Seconds of bare loops at each end of a run that is expected to take so long."""
    return min(LIMIT_S, _SHARE * expected_s)


def measure(
    answerers: Sequence[Answerer],
    batches: Sequence[Sequence[Batch]],
    limit_s: float,
    most_s: float = inf,
) -> ServiceTimes:
    """batches: some of each size, ascending, gathered already. limit_s: for all sizes together.

    Every backend, each on a thread of its own, takes those of a size in turns, LEAST_REPETITIONS
    times at least, unless that takes longer than most_s in all: from then on only the largest size
    is still measured, once, so that those left out lie between others. Raises what a backend raises.
    """
    end_ns = time.monotonic_ns() + most_s * NS_PER_S
    found: dict[int, list[int]] = {}
    for alike in batches:
        if found and alike is not batches[-1] and time.monotonic_ns() >= end_ns:
            continue
        size = len(alike[0].indices)
        found[size] = _times_ns(answerers, alike, limit_s / len(batches), end_ns)
    return ServiceTimes(
        tuple(found),
        np.stack([np.quantile(row, QUANTILE_POINTS) for row in found.values()]),
        tuple(len(row) for row in found.values()),
    )


def batches_of(dataset: Dataset, loaded: Sequence[int], sizes: Sequence[int]) -> list[list[Batch]]:
    """For each size a few batches of loaded samples; samples of several lengths differ in time."""
    count = len(loaded)
    return [
        [
            dataset.batch([loaded[(start + i) % count] for i in range(size)])
            for start in range(0, min(count, VARIETY * size), size)
        ]
        for size in sizes
    ]


def _times_ns(
    answerers: Sequence[Answerer], alike: Sequence[Batch], limit_s: float, most_until_ns: float
) -> list[int]:
    """At least one of each instance; LEAST_REPETITIONS if that takes no longer than most_until_ns."""
    times_ns: list[list[int]] = [[] for _ in answerers]

    def work(i: int) -> None:
        infer, mine, turns = answerers[i].backend.infer, times_ns[i], cycle(alike)
        until_ns = min(time.monotonic_ns() + limit_s * NS_PER_S, most_until_ns)
        end_ns = 0
        while not mine or end_ns < (until_ns if len(mine) >= LEAST_REPETITIONS else most_until_ns):
            batch = next(turns)
            start_ns = time.monotonic_ns()
            infer(batch)
            end_ns = time.monotonic_ns()
            mine.append(end_ns - start_ns)

    run_in_threads(answerers, work)
    return [ns for mine in times_ns for ns in mine]
