"""Service times: how long a batch takes the backend alone, with every instance busy at once.

Measured by bare loops in the measured process just before and just after LoadGen's run, never from
the run itself: they are what a dispatcher without any cost of its own would have to work with.
"""

import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from math import inf
from typing import Any

import numpy as np

from harness.core.units import NS_PER_S
from harness.run.measured.warm_up import Answerer, at_once
from harness.types import Array, Batch, Dataset

QUANTILES = 200
"""Service times of a size are kept as so many quantiles, in the middle of as many equal shares: a
draw from them is an ordinary batch as often as batches were, and the slowest one no more often.
"""

VERSION = 2
"""Of what a run keeps of its bare loops. In 1, which says none, Offline's last batch was not measured,
and nothing waited although it had been asked to: harness/results/evidence/reference.py holds such a run against that.
"""

_GRID = (np.arange(QUANTILES) + 0.5) / QUANTILES

_SHARE = 0.05
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
        if not (np.isfinite(ns) & (ns >= 0)).all():
            raise ValueError("service times hold what is no number of ns")
        return cls(sizes, ns, counts)

    def only(self, sizes: Container[int]) -> "ServiceTimes":
        rows = [i for i, size in enumerate(self.sizes) if size in sizes]
        return ServiceTimes(
            tuple(self.sizes[i] for i in rows), self.ns[rows], tuple(self.counts[i] for i in rows)
        )

    def median_ns(self, size: int) -> float:
        return float(np.median(self.of(size)))

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


def joined(parts: Sequence[ServiceTimes]) -> ServiceTimes:
    """Of different sizes, ascending, as one."""
    return ServiceTimes(
        tuple(size for part in parts for size in part.sizes),
        np.concatenate([part.ns for part in parts]),
        tuple(count for part in parts for count in part.counts),
    )


def together(*parts: ServiceTimes) -> ServiceTimes:
    """As if all had been one measurement: each quantile is that of the equal parts."""
    ns = np.quantile(np.concatenate([part.ns for part in parts], axis=1), _GRID, axis=1).T
    counts = tuple(map(sum, zip(*(part.counts for part in parts), strict=True)))
    return ServiceTimes(parts[0].sizes, ns, counts)


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
        np.stack([np.quantile(row, _GRID) for row in found.values()]),
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

    at_once(answerers, work)
    return [ns for mine in times_ns for ns in mine]
