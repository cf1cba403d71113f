"""Counts values in buckets on a logarithmic scale and estimates their percentiles."""

import numpy as np

from harness.types import Array


class Histogram:
    """Counts per bucket. edges: (n,) upper edges of the buckets, inclusive, ascending."""

    def __init__(self, edges: Array) -> None:
        self.edges = edges
        self.counts: Array = np.zeros(len(edges) + 1, np.int64)
        """(edges + 1,) number of values at or below each edge and above the previous edge."""
        self.sum = 0

    def add(self, values: Array, times: Array | None = None) -> None:
        """Adds values. values: (n,) integers; below zero only if a clock was stepped, and counted as zero.

        times: (n,) how often each value counts; None: once.
        """
        values = np.maximum(values, 0).astype(np.int64)
        buckets = np.searchsorted(self.edges, values)
        self.counts += np.bincount(buckets, times, len(self.counts)).astype(np.int64)
        self.sum += int(values.sum() if times is None else (values * times).sum())

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    def quantile(self, fraction: float) -> float | None:
        """Returns an estimate of sorted[floor(n * fraction)], LoadGen's definition; None without values.

        The estimate lies in the same bucket as the exact value. It assumes that the logarithms of the bucket's
        values are spread evenly.
        """
        ends = np.cumsum(self.counts)
        total = int(ends[-1])
        if not total:
            return None
        place = int(total * fraction)
        bucket = int(np.searchsorted(ends, place, side="right"))
        last = len(self.edges) - 1
        if bucket > last:
            return float(self.edges[last])
        high = float(self.edges[bucket])
        low = float(self.edges[bucket - 1]) if bucket else high / 10
        before = int(ends[bucket - 1]) if bucket else 0
        share = (place - before + 0.5) / int(self.counts[bucket])
        return float(low * (high / low) ** share)
