"""Measures service times in bare loops. A service time is the time of a batch in the backend while all instances are
busy.

The loops run just before and just after LoadGen's run, but never during it. A dispatcher without overhead would reach
these times.
"""

import time
from collections.abc import Sequence
from itertools import cycle
from math import inf

import numpy as np

from harness.core.service_times import QUANTILE_POINTS, ServiceTimes
from harness.core.units import NS_PER_S
from harness.run.measured.answerer import Answerer, run_in_threads
from harness.run.measured.placement.lone import pause
from harness.types import Batch, Dataset

SHARE = 0.05
"""The loops before the run take this share of the run's expected duration; the loops after the run take as long again.
"""

LIMIT_S = 0.5
LEAST_REPETITIONS = 3
VARIETY = 8
"""Each size is timed with this many batches of different samples."""


def time_for(expected_s: float) -> float:
    """Returns how many seconds the bare loops take before a run. The loops take as long again after the run."""
    return min(LIMIT_S, SHARE * expected_s)


def measure(
    answerers: Sequence[Answerer],
    batches: Sequence[Sequence[Batch]],
    limit_s: float,
    most_s: float = inf,
    *,
    pauses: bool = False,
) -> ServiceTimes:
    """Times every batch size on all backends at the same time. Each backend runs on a separate thread.

    Raises the errors of a backend.

    batches: a few batches per size, in ascending order of size. limit_s: time limit for all sizes together. most_s:
    maximum time for LEAST_REPETITIONS batches of every size. After this time, all further sizes are skipped except the
    largest. The largest size is timed once, so that skipped sizes lie between measured sizes.
    pauses: whether to pause before each batch, as between the queries of a stream.
    """
    end_ns = time.monotonic_ns() + most_s * NS_PER_S
    times_ns: dict[int, list[int]] = {}
    for alike in batches:
        if times_ns and alike is not batches[-1] and time.monotonic_ns() >= end_ns:
            continue
        size = alike[0].size
        each_s = limit_s / len(batches)
        times_ns[size] = _times_ns(answerers, alike, each_s, end_ns, pauses=pauses)
    return ServiceTimes(
        tuple(times_ns),
        np.stack([np.quantile(row, QUANTILE_POINTS) for row in times_ns.values()]),
        tuple(len(row) for row in times_ns.values()),
    )


def batches_of(dataset: Dataset, loaded: Sequence[int], sizes: Sequence[int]) -> list[list[Batch]]:
    """Returns a few batches per size. The batches contain different samples, because times may differ between samples."""
    count = len(loaded)
    return [
        [
            dataset.batch([loaded[(start + i) % count] for i in range(size)])
            for start in range(0, min(count, VARIETY * size), size)
        ]
        for size in sizes
    ]


def _times_ns(
    answerers: Sequence[Answerer],
    alike: Sequence[Batch],
    limit_s: float,
    most_until_ns: float,
    *,
    pauses: bool,
) -> list[int]:
    """Returns at least one time per instance. Returns at least LEAST_REPETITIONS times if these can be measured before
    most_until_ns.
    """
    times_ns: list[list[int]] = [[] for _ in answerers]

    def work(i: int) -> None:
        infer, mine, turns = answerers[i].backend.infer, times_ns[i], cycle(alike)
        until_ns = min(time.monotonic_ns() + limit_s * NS_PER_S, most_until_ns)
        end_ns = 0
        while not mine or end_ns < (until_ns if len(mine) >= LEAST_REPETITIONS else most_until_ns):
            batch = next(turns)
            if pauses:
                pause()
            start_ns = time.monotonic_ns()
            infer(batch)
            end_ns = time.monotonic_ns()
            mine.append(end_ns - start_ns)

    run_in_threads(answerers, work)
    return [ns for mine in times_ns for ns in mine]
