"""Names the Prometheus series of a run and makes their samples from the run's counts.

docs/metrics.md explains every name; a test checks that this page is complete. Names, labels and buckets must stay
stable, because users' dashboards and rules depend on them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import core
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric

from harness.core.config.parse import Slo
from harness.models.cache.cache import ORIGINS
from harness.results.export.openmetrics import RUN_LABELS, family, slo_families, verdict_families
from harness.run.supervisor.metrics.histogram import Histogram
from harness.run.supervisor.metrics.live_counts import LiveCounts

PHASE_LABELS = (*RUN_LABELS, "phase")
QUANTILES = (0.5, 0.9, 0.99)
_NS = 1e9

_Rows = Sequence[tuple[list[str], LiveCounts]]
"""Pairs (values of PHASE_LABELS, counts), one per phase."""
_Known = tuple[tuple[str, str, Callable[[LiveCounts], float]], ...]

_COUNTERS: _Known = (
    ("queries_scheduled", "Queries that were due", lambda c: c.scheduled_queries),
    ("queries_issued", "Queries issued by the scheduler", lambda c: c.queries(c.issued)),
    (
        "queries_completed",
        "Queries answered, including failed ones",
        lambda c: c.queries(c.completed),
    ),
    ("queries_failed", "Queries with at least one failed sample", lambda c: c.failed_queries),
    ("samples_issued", "Samples issued by the scheduler", lambda c: c.issued),
    ("samples_completed", "Samples answered, including failed ones", lambda c: c.completed),
    ("samples_failed", "Samples of batches that failed", lambda c: c.failed),
    ("tokens", "Tokens of a language model's answers", lambda c: c.tokens),
    (
        "instance_busy_seconds",
        "Time that instances spent on finished batches",
        lambda c: c.busy_ns / _NS,
    ),
)
_GAUGES: _Known = (
    (
        "in_flight_samples",
        "Samples issued but not yet answered",
        lambda c: c.in_flight,
    ),
    (
        "queue_depth_samples",
        "Samples still waiting when the newest finished batch was taken",
        lambda c: c.queued,
    ),
    ("instances", "Copies of the model", lambda c: c.workers),
    ("planned_samples", "Samples planned for the phase", lambda c: c.plan.planned_samples),
    (
        "progress_ratio",
        "Share of the planned samples that are answered or cancelled",
        lambda c: c.progress,
    ),
)


class RunSeries:
    """Metric families of one scrape. All phases of a run add their samples to the same families."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        """labels: values of RUN_LABELS."""
        self._run = [labels[name] for name in RUN_LABELS]

    def phases(self, phases: Mapping[str, LiveCounts]) -> Iterator[Metric]:
        """Yields the series of all phases. phases: counts of each phase that has begun, by role."""
        rows = [([*self._run, phase], counts) for phase, counts in phases.items()]
        for name, text, value in _COUNTERS:
            yield _family(core.CounterMetricFamily, name, text, value, rows)
        for name, text, value in _GAUGES:
            yield _family(GaugeMetricFamily, name, text, value, rows)
        yield from _cancelled(rows)
        yield from _cache(rows)
        yield from _nodes(rows)
        yield from _rates(rows)
        yield _percentiles(rows)
        yield from _histograms(rows)

    def info(
        self, info: Mapping[str, str], started_s: float, slos: Sequence[Slo]
    ) -> Iterator[Metric]:
        """Yields the facts that do not change during a run: its options, its start and its SLOs."""
        values = list(info.values())
        yield family(
            self._run, "run_info", "The run and its options, always 1", info, [(values, 1)]
        )
        began = "When the command began"
        yield family(self._run, "run_start_time_seconds", began, (), [([], started_s)])
        yield from slo_families(self._run, slos)

    def verdict(self, result: Mapping[str, Any]) -> Iterator[Metric]:
        """Yields the series of the verdict. result: the content of result.json."""
        yield from verdict_families(self._run, result)


def _family(
    kind: type[core.CounterMetricFamily | GaugeMetricFamily],
    name: str,
    text: str,
    value: Callable[[LiveCounts], float],
    rows: _Rows,
) -> Metric:
    family = kind(f"harness_{name}", text, labels=PHASE_LABELS)
    for labels, counts in rows:
        family.add_metric(labels, value(counts))
    return family


def _cancelled(rows: _Rows) -> Iterator[Metric]:
    """Yields the series of cancelled requests; nothing for a run without --cancel."""
    found = [(labels, counts) for labels, counts in rows if counts.plan.cancel_share]
    if found:
        name, text = "requests_cancelled", "Requests whose connection the client closed"
        yield _family(core.CounterMetricFamily, name, text, lambda c: c.cancelled, found)


def _cache(rows: _Rows) -> Iterator[Metric]:
    """Yields the series of the cache; nothing for a run of a single model."""
    cached = [(labels, counts) for labels, counts in rows if counts.is_cached]
    if not cached:
        return
    origins = core.CounterMetricFamily(
        "harness_model_requests",
        "Samples of a run with several models, by the origin of the model",
        labels=[*PHASE_LABELS, "origin"],
    )
    for labels, counts in cached:
        for origin, count in zip(ORIGINS, counts.origins.tolist(), strict=True):
            origins.add_metric([*labels, origin], count)
    yield origins
    name, text = "model_evictions", "Models evicted from the cache"
    yield _family(core.CounterMetricFamily, name, text, lambda c: c.evictions, cached)


def _nodes(rows: _Rows) -> Iterator[Metric]:
    """Yields the series of the nodes; nothing for a run without nodes."""
    by_node = [
        ([*labels, node], found) for labels, counts in rows for node, found in counts.nodes.items()
    ]
    if not by_node:
        return
    labels = [*PHASE_LABELS, "node"]
    counter = core.CounterMetricFamily
    completed = counter("harness_node_samples_completed", "Samples by node", labels=labels)
    failed = counter("harness_node_samples_failed", "Samples that failed by node", labels=labels)
    requests = HistogramMetricFamily(
        "harness_node_request_seconds",
        "Time from sending a batch to receiving its answer",
        labels=labels,
    )
    for values, found in by_node:
        completed.add_metric(values, found.completed)
        failed.add_metric(values, found.failed)
        _add(requests, values, found.requests, _NS)
    yield from (completed, failed, requests)


def _rates(rows: _Rows) -> Iterator[Metric]:
    offered = GaugeMetricFamily(
        "harness_asked_queries_per_second", "Offered rate of Server", labels=PHASE_LABELS
    )
    achieved = GaugeMetricFamily(
        "harness_achieved_queries_per_second",
        "Mean rate of completed queries so far",
        labels=PHASE_LABELS,
    )
    for labels, counts in rows:
        plan, per_second = counts.plan, counts.per_second
        if plan.target_qps is not None and not plan.accuracy:
            offered.add_metric(labels, plan.target_qps)
        if per_second is not None:
            achieved.add_metric(labels, per_second)
    yield offered
    yield achieved


def _percentiles(rows: _Rows) -> Metric:
    family = GaugeMetricFamily(
        "harness_latency_percentile_seconds",
        "Latency percentile of the queries so far, accurate to one histogram bucket",
        labels=[*PHASE_LABELS, "quantile"],
    )
    for labels, counts in rows:
        for fraction in QUANTILES:
            latency_ns = counts.latency.quantile(fraction)
            if latency_ns is not None:
                family.add_metric([*labels, f"{fraction:g}"], latency_ns / _NS)
    return family


def _histograms(rows: _Rows) -> Iterator[Metric]:
    latency = HistogramMetricFamily(
        "harness_latency_seconds", "Query latency, from scheduled to answered", labels=PHASE_LABELS
    )
    stage = HistogramMetricFamily(
        "harness_stage_seconds",
        "Time of a sample in each stage of its latency",
        labels=[*PHASE_LABELS, "stage"],
    )
    token = HistogramMetricFamily(
        "harness_token_time_seconds",
        "Token times of a language model: ttft and tpot",
        labels=[*PHASE_LABELS, "time"],
    )
    batch = HistogramMetricFamily("harness_batch_samples", "Size of batches", labels=PHASE_LABELS)
    for labels, counts in rows:
        _add(latency, labels, counts.latency, _NS)
        _add(batch, labels, counts.batches, 1)
        for name, histogram in counts.stages.items():
            _add(stage, [*labels, name], histogram, _NS)
        for name, histogram in counts.token_times.items() if counts.tokens else ():
            _add(token, [*labels, name], histogram, _NS)
    yield token
    yield latency
    yield stage
    yield batch


def _add(
    family: HistogramMetricFamily, labels: Sequence[str], histogram: Histogram, unit: float
) -> None:
    edges = [f"{edge / unit:g}" for edge in histogram.edges.tolist()] + ["+Inf"]
    ends = histogram.counts.cumsum().tolist()
    family.add_metric(labels, list(zip(edges, ends, strict=True)), histogram.sum / unit)
