"""Service times: how long a batch takes the backend alone, with every instance busy at once.

Measured by bare loops in the measured process just before and just after LoadGen's run, never from
the run itself: they are what a dispatcher without any cost of its own would have to work with.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np

from harness.types import Array, Backend, Batch, Dataset

QUANTILES = 101
"""Service times of a size are kept as so many evenly spaced quantiles, the first the minimum."""

SHARE = 0.05
"""Of the run's expected time, before it and again after it."""

LIMIT_S = 0.5
LEAST_REPETITIONS = 3
VARIETY = 8
"""Batches of a size, of different samples."""


@dataclass(frozen=True, slots=True)
class ServiceTimes:
    """sizes: batch sizes in samples, ascending. ns: (len(sizes), QUANTILES) float64.

    counts: (len(sizes),) how many batches each row was made from.
    """

    sizes: tuple[int, ...]
    ns: Array
    counts: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "sizes": list(self.sizes),
            "ns": self.ns.astype(np.int64).tolist(),
            "counts": list(self.counts),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "ServiceTimes":
        ns = np.asarray(values["ns"], np.float64)
        sizes, counts = tuple(values["sizes"]), tuple(values["counts"])
        if ns.shape != (len(sizes), QUANTILES) or len(counts) != len(sizes):
            raise ValueError(f"service times of shape {ns.shape} for {len(sizes)} sizes")
        return cls(sizes, ns, counts)

    def median_ns(self, size: int) -> float:
        return float(self.of(size)[QUANTILES // 2])

    def of(self, size: int) -> Array:
        """(QUANTILES,) ns of a batch of `size` samples: between measured sizes on a straight line,
        beyond the largest as much a sample as there.
        """
        sizes, ns = self.sizes, self.ns
        if size >= sizes[-1]:
            return np.asarray(ns[-1] * (size / sizes[-1]))
        above = int(np.searchsorted(sizes, size))
        if above == 0 or sizes[above] == size:
            return np.asarray(ns[above])
        share = (size - sizes[above - 1]) / (sizes[above] - sizes[above - 1])
        return np.asarray(ns[above - 1] * (1 - share) + ns[above] * share)


def together(before: ServiceTimes, after: ServiceTimes) -> ServiceTimes:
    """As if both had been one measurement: each quantile is that of the two equal halves."""
    merged = np.sort(np.concatenate([before.ns, after.ns], axis=1), axis=1)
    at = np.linspace(0, merged.shape[1] - 1, QUANTILES)
    ns = np.stack([np.interp(at, np.arange(merged.shape[1]), row) for row in merged])
    counts = tuple(a + b for a, b in zip(before.counts, after.counts, strict=True))
    return ServiceTimes(before.sizes, ns, counts)


def measure(
    backends: Sequence[Backend], batches: Sequence[Sequence[Batch]], limit_s: float
) -> ServiceTimes:
    """batches: some of each size, ascending, gathered already. limit_s: for all sizes together.

    Every backend, each on a thread of its own, takes those of a size in turns, LEAST_REPETITIONS
    times at least. Raises what a backend raises.
    """
    rows = [_times_ns(backends, alike, limit_s / len(batches)) for alike in batches]
    grid = np.linspace(0.0, 1.0, QUANTILES)
    return ServiceTimes(
        tuple(len(alike[0].indices) for alike in batches),
        np.stack([np.quantile(row, grid) for row in rows]),
        tuple(len(row) for row in rows),
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


def _times_ns(backends: Sequence[Backend], alike: Sequence[Batch], limit_s: float) -> list[int]:
    start = threading.Barrier(len(backends))
    times_ns: list[list[int]] = [[] for _ in backends]
    errors: list[BaseException] = []

    def work(infer: Any, mine: list[int]) -> None:
        try:
            start.wait()
            turns = cycle(alike)
            deadline_ns = time.monotonic_ns() + round(limit_s * 1e9)
            end_ns = 0
            while len(mine) < LEAST_REPETITIONS or end_ns < deadline_ns:
                batch = next(turns)
                start_ns = time.monotonic_ns()
                infer(batch)
                end_ns = time.monotonic_ns()
                mine.append(end_ns - start_ns)
        except BaseException as e:  # noqa: BLE001 - raised again below
            errors.append(e)

    threads = [
        threading.Thread(target=work, args=(backend.infer, mine))
        for backend, mine in zip(backends, times_ns, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [ns for mine in times_ns for ns in mine]
