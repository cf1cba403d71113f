"""Measures service times in bare loops: the time of a batch in the backend only, with all instances busy.

The loops run just before and just after LoadGen's run, never during it. These are the times
of a dispatcher without overhead.
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
"""Share of the run's expected time that the loops take before the run, and again after the run."""

LIMIT_S = 0.5
LEAST_REPETITIONS = 3
VARIETY = 8
"""Number of batches per size, with different samples."""


def time_for(expected_s: float) -> float:
    """Returns the time in seconds for bare loops before, and again after, a run of the given length."""
    return min(LIMIT_S, SHARE * expected_s)


def measure(
    answerers: Sequence[Answerer],
    batches: Sequence[Sequence[Batch]],
    limit_s: float,
    most_s: float = inf,
    *,
    pauses: bool = False,
) -> ServiceTimes:
    """Times every size on all backends at the same time, each on a separate thread.

    batches: some gathered batches per size, sizes ascending. limit_s: time limit for all sizes together.
    Each size is timed at least LEAST_REPETITIONS times, unless that takes longer than most_s in
    total. Then all further sizes except the largest are skipped. The largest is timed once, so that skipped sizes
    lie between measured sizes. pauses: pause as between the queries of a stream. Raises the errors of a backend.
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
    """Returns a few batches per size, with different loaded samples, because their times may differ."""
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
    """Returns at least one time per instance, or at least LEAST_REPETITIONS times if they end before most_until_ns."""
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
