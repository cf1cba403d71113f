"""Stores service times by batch size. A service time is the time that the model alone takes for one batch."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.types import Array

QUANTILES = 200
"""Number of quantiles that are stored per batch size. Each quantile is the midpoint of an equal share of the measured
batches. Quantiles that are drawn at random are therefore slow as often as the measured batches were.
"""

QUANTILE_POINTS = (np.arange(QUANTILES) + 0.5) / QUANTILES


@dataclass(frozen=True, slots=True)
class ServiceTimes:
    """Quantiles of the measured service times for each batch size."""

    sizes: tuple[int, ...]
    """Batch sizes in samples, ascending."""
    ns: Array
    """(len(sizes), QUANTILES) float64."""
    counts: tuple[int, ...]
    """(len(sizes),): number of batches measured per size."""

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
            raise ValueError("a service time is negative or not finite")
        return cls(sizes, ns, counts)

    def only(self, sizes: Container[int]) -> "ServiceTimes":
        rows = [i for i, size in enumerate(self.sizes) if size in sizes]
        return ServiceTimes(
            tuple(self.sizes[i] for i in rows), self.ns[rows], tuple(self.counts[i] for i in rows)
        )

    def median_ns(self, size: int) -> float:
        return float(np.median(self.of(size)))

    def of(self, size: int) -> Array:
        """Returns (QUANTILES,) times in ns for a batch of `size` samples, interpolated linearly between measured sizes.

        Beyond the largest measured size, times are proportional to the size.
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
    """Joins measurements of different sizes, ordered by size."""
    return ServiceTimes(
        tuple(size for part in parts for size in part.sizes),
        np.concatenate([part.ns for part in parts]),
        tuple(count for part in parts for count in part.counts),
    )


def together(*parts: ServiceTimes) -> ServiceTimes:
    """Merges measurements of the same sizes."""
    ns = np.quantile(np.concatenate([part.ns for part in parts], axis=1), QUANTILE_POINTS, axis=1).T
    counts = tuple(map(sum, zip(*(part.counts for part in parts), strict=True)))
    return ServiceTimes(parts[0].sizes, ns, counts)
