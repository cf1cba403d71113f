"""Counts the requests to a served model for Triton's statistics and for Prometheus."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from harness.core.units import NS_PER_S

LIMITS_NS = tuple(
    round(step * 10**exponent) for exponent in range(4, 11) for step in (1, 2, 5)
)  # bucket limits from 10 us to 50 s
_LIMITS_SAMPLES = tuple(2**exponent for exponent in range(11))
NOT_FOUND = 404
_MOST_SIZES = 1024
"""Maximum number of batch sizes with separate entries in Triton's statistics."""


class Stamps(NamedTuple):
    """Wall-clock times in ns of a request: its arrival, the start of its processing, and the model's start and end."""

    arrived_ns: int
    taken_ns: int
    begun_ns: int
    ended_ns: int


class Histogram:
    """Counts values in buckets with upper limits."""

    __slots__ = ("counts", "limits", "total")

    def __init__(self, limits: Sequence[int]) -> None:
        self.limits = limits
        self.counts = [0] * (len(limits) + 1)
        self.total = 0

    def add(self, value: int) -> None:
        self.counts[bisect_left(self.limits, value)] += 1
        self.total += value

    def family(self, name: str, text: str, model: str, unit: int = 1) -> Metric:
        edges = [*(repr(limit / unit) for limit in self.limits), "+Inf"]
        buckets = [*zip(edges, map(float, accumulate(self.counts)), strict=True)]
        family = HistogramMetricFamily(name, text, labels=["model"])
        family.add_metric([model], buckets, self.total / unit)
        return family


class Requests(Collector):
    """Counts requests by outcome, and stores the times of successful requests. Only the serving thread may use it."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._answered = self._failed = 0
        self.refused = 0
        """Number of requests to which the server replied with an error, including failed requests."""
        self.unknown = 0
        """Number of refused requests for a path that does not exist on the server. Clients send such requests to
        discover which features the server supports.
        """
        self._total, self._queue, self._compute = (Histogram(LIMITS_NS) for _ in range(3))
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def _add(self, total_ns: int, queue_ns: int, compute_ns: int) -> None:
        """Counts a successful request. Negative times, which occur if a clock was set back, count as 0."""
        self._answered += 1
        self._total.add(max(0, total_ns))
        self._queue.add(max(0, queue_ns))
        self._compute.add(max(0, compute_ns))

    def refuse(self, status: int) -> None:
        """Counts a request to which the server replies with an error. status: the HTTP status."""
        self.refused += 1
        self.unknown += status == NOT_FOUND

    def page(self) -> bytes:
        """Returns the metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "harness_serve_requests", "Requests by outcome", labels=["model", "end"]
        )
        for end, count in self._ends().items():
            requests.add_metric([self._model, end], count)
        yield requests
        for name, text, histogram in (
            ("request", "Time from the arrival of a request to its answer", self._total),
            (
                "queue",
                "Time from the arrival of a request until its processing starts",
                self._queue,
            ),
            ("compute", "Time to compute the answer", self._compute),
        ):
            yield self._times(name, text, histogram)

    def _ends(self) -> Mapping[str, int]:
        refused = self.refused - self._failed
        return {"answered": self._answered, "failed": self._failed, "refused": refused}

    def _times(self, name: str, text: str, histogram: Histogram) -> Metric:
        return histogram.family(f"harness_serve_{name}_seconds", text, self._model, NS_PER_S)

    def _counter(self, name: str, text: str, count: int) -> Metric:
        family = CounterMetricFamily(f"harness_serve_{name}", text, labels=["model"])
        family.add_metric([self._model], count)
        return family


class Statistics(Requests):
    """Counts inferences of the Open Inference Protocol."""

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self._samples = self._failed_ns = 0
        self._last_ns = 0
        self._sizes = Histogram(_LIMITS_SAMPLES)
        self._by_size: dict[int, tuple[int, int]] = {}

    def add(self, samples: int, stamps: Stamps, sent_ns: int) -> None:
        """Counts a successful inference. sent_ns: time at which the reply is passed to the kernel."""
        compute_ns = max(0, stamps.ended_ns - stamps.begun_ns)
        self._add(sent_ns - stamps.arrived_ns, stamps.taken_ns - stamps.arrived_ns, compute_ns)
        self._samples += samples
        self._last_ns = sent_ns
        self._sizes.add(samples)
        if samples in self._by_size or len(self._by_size) < _MOST_SIZES:
            count, spent_ns = self._by_size.get(samples, (0, 0))
            self._by_size[samples] = (count + 1, spent_ns + compute_ns)

    def add_failed(self, spent_ns: int) -> None:
        """Counts an inference that failed because the backend raised an error."""
        self._failed += 1
        self._failed_ns += max(0, spent_ns)

    def of_triton(self, version: str) -> Mapping[str, Any]:
        """Returns statistics in the format of Triton's extension. A time that is not measured separately is 0 ns."""
        count = self._answered
        parts = {
            "success": _spent(count, self._total.total),
            "fail": _spent(self._failed, self._failed_ns),
            "queue": _spent(count, self._queue.total),
            "compute_input": _spent(count, 0),
            "compute_infer": _spent(count, self._compute.total),
            "compute_output": _spent(count, 0),
            "cache_hit": _spent(0, 0),
            "cache_miss": _spent(0, 0),
        }
        batches = [
            {
                "batch_size": size,
                "compute_input": _spent(n, 0),
                "compute_infer": _spent(n, spent_ns),
                "compute_output": _spent(n, 0),
            }
            for size, (n, spent_ns) in sorted(self._by_size.items())
        ]
        about = {
            "name": self._model,
            "version": version,
            "last_inference": self._last_ns // 1_000_000,
            "inference_count": self._samples,
            "execution_count": count,
            "inference_stats": parts,
            "batch_stats": batches,
        }
        return {"model_stats": [about]}

    def collect(self) -> Iterator[Metric]:
        yield from super().collect()
        text = "Samples in answered requests"
        yield self._counter("samples", text, self._samples)
        text = "Samples per answered request"
        yield self._sizes.family("harness_serve_batch_samples", text, self._model)


def _spent(count: int, spent_ns: int) -> Mapping[str, int]:
    return {"count": count, "ns": spent_ns}
