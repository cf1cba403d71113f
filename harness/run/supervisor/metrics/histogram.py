"""Counts values in buckets on a logarithmic scale and estimates their percentiles."""

import numpy as np

from harness.types import Array


class Histogram:
    """A histogram. edges: (n,) the buckets' inclusive upper edges, in ascending order."""

    def __init__(self, edges: Array) -> None:
        self.edges = edges
        self.counts: Array = np.zeros(len(edges) + 1, np.int64)
        """(edges + 1,) number of values in each bucket; the last bucket contains the values above the last edge."""
        self.sum = 0

    def add(self, values: Array, times: Array | None = None) -> None:
        """Counts values.

        values: (n,) integers. A negative value, which only a stepped clock can cause, counts as zero.
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
        """Returns an estimate of the percentile; None if nothing was counted.

        LoadGen defines the exact percentile as sorted[floor(n * fraction)]. The estimate lies in the same bucket as the
        exact percentile. The estimate assumes that the logarithms of the bucket's values are spread evenly.
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
