"""The names Prometheus knows: what each series is, and how a run's state becomes its samples.

docs/metrics.md explains every name; a test holds it complete. Names, labels and buckets are stable:
dashboards and rules of others are built on them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from harness.core.config.parse import Slo
from harness.run.supervisor.metrics.histogram import Histogram
from harness.run.supervisor.metrics.live_counts import LiveCounts

RUN_LABELS = ("run", "scenario", "backend", "model")
PHASE_LABELS = (*RUN_LABELS, "phase")
QUANTILES = (0.5, 0.9, 0.99)
_NS = 1e9

_Rows = Sequence[tuple[list[str], LiveCounts]]
_Known = tuple[tuple[str, str, Callable[[LiveCounts], float]], ...]

_COUNTERS: _Known = (
    ("queries_scheduled", "Queries whose time had come", lambda t: t.scheduled_queries),
    ("queries_issued", "Queries handed over by the scheduler", lambda t: t.queries(t.issued)),
    (
        "queries_completed",
        "Queries answered, failed ones included",
        lambda t: t.queries(t.completed),
    ),
    ("queries_failed", "Queries with a sample that failed", lambda t: t.failed_queries),
    ("samples_issued", "Samples handed over by the scheduler", lambda t: t.issued),
    ("samples_completed", "Samples answered, failed ones included", lambda t: t.completed),
    ("samples_failed", "Samples of batches that failed", lambda t: t.failed),
    (
        "instance_busy_seconds",
        "Time instances spent on finished batches",
        lambda t: t.busy_ns / _NS,
    ),
)
_GAUGES: _Known = (
    ("in_flight_samples", "Samples issued and not answered", lambda t: t.issued - t.completed),
    (
        "queue_depth_samples",
        "Samples that waited after the newest finished batch was taken",
        lambda t: t.queued,
    ),
    ("instances", "Copies of the model", lambda t: t.workers),
    ("planned_samples", "Samples the run is going to have", lambda t: t.planned_samples),
    (
        "progress_ratio",
        "Share of the planned samples that is answered",
        lambda t: min(1.0, t.completed / max(1, t.planned_samples)),
    ),
)


class RunSeries:
    """Families of one scrape: every phase of a run adds its samples to the same ones."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        """labels: RUN_LABELS and their values."""
        self._run = [labels[name] for name in RUN_LABELS]

    def phases(self, phases: Mapping[str, LiveCounts]) -> Iterator[Metric]:
        """phases: performance and accuracy, as far as there are."""
        rows = [([*self._run, phase], counts) for phase, counts in phases.items()]
        for name, text, value in _COUNTERS:
            counter = CounterMetricFamily(f"harness_{name}", text, labels=PHASE_LABELS)
            for labels, counts in rows:
                counter.add_metric(labels, value(counts))
            yield counter
        for name, text, value in _GAUGES:
            gauge = GaugeMetricFamily(f"harness_{name}", text, labels=PHASE_LABELS)
            for labels, counts in rows:
                gauge.add_metric(labels, value(counts))
            yield gauge
        yield from _rates(rows)
        yield _percentiles(rows)
        yield from _histograms(rows)

    def info(self, info: Mapping[str, str], started_s: float, slo: Slo | None) -> Iterator[Metric]:
        """What stands fixed: the run itself, its start and what was promised."""
        family = GaugeMetricFamily(
            "harness_run_info", "What is run, always 1", labels=[*RUN_LABELS, *info]
        )
        family.add_metric([*self._run, *info.values()], 1)
        yield family
        start = GaugeMetricFamily(
            "harness_run_start_time_seconds", "When the command began", labels=RUN_LABELS
        )
        start.add_metric(self._run, started_s)
        yield start
        bound = GaugeMetricFamily(
            "harness_slo_seconds", "The latency promised", labels=[*RUN_LABELS, "quantile"]
        )
        if slo is not None:
            bound.add_metric([*self._run, f"{slo.percentile:g}"], slo.bound_ns / _NS)
        yield bound

    def verdict(self, result: Mapping[str, Any]) -> Iterator[Metric]:
        """result: the content of result.json, which only the end of a run knows."""
        valid = GaugeMetricFamily("harness_run_valid", "1 VALID, 0 INVALID", labels=RUN_LABELS)
        valid.add_metric(self._run, float(result["verdict"] == "VALID"))
        yield valid
        for kind in ("reason", "doubt"):
            labels = [*RUN_LABELS, "code"]
            family = GaugeMetricFamily(f"harness_run_{kind}", "Its code, always 1", labels=labels)
            for code in dict.fromkeys(found["code"] for found in result[f"{kind}s"]):
                family.add_metric([*self._run, code], 1)
            yield family
        accuracy = result["accuracy"] or {}
        for key, text in (("value", "The score"), ("target", "What the manifest asks for")):
            name = "harness_accuracy" if key == "value" else "harness_accuracy_target"
            family = GaugeMetricFamily(name, text, labels=[*RUN_LABELS, "metric", "unit"])
            if accuracy.get(key) is not None:
                family.add_metric([*self._run, accuracy["metric"], accuracy["unit"]], accuracy[key])
            yield family


def _rates(rows: _Rows) -> Iterator[Metric]:
    asked = GaugeMetricFamily(
        "harness_asked_queries_per_second", "Server's rate as asked for", labels=PHASE_LABELS
    )
    achieved = GaugeMetricFamily(
        "harness_achieved_queries_per_second", "Queries completed, mean so far", labels=PHASE_LABELS
    )
    for labels, counts in rows:
        plan, per_second = counts.plan, counts.per_second
        if plan.target_qps is not None and not plan.accuracy:
            asked.add_metric(labels, plan.target_qps)
        if per_second is not None:
            achieved.add_metric(labels, per_second)
    yield asked
    yield achieved


def _percentiles(rows: _Rows) -> Metric:
    family = GaugeMetricFamily(
        "harness_latency_percentile_seconds",
        "Latency percentile of the queries so far, within one bucket",
        labels=[*PHASE_LABELS, "quantile"],
    )
    for labels, counts in rows:
        for fraction in QUANTILES:
            found = counts.latency.quantile(fraction)
            if found is not None:
                family.add_metric([*labels, f"{fraction:g}"], found / _NS)
    return family


def _histograms(rows: _Rows) -> Iterator[Metric]:
    latency = HistogramMetricFamily(
        "harness_latency_seconds", "Scheduled to answered, a query", labels=PHASE_LABELS
    )
    stage = HistogramMetricFamily(
        "harness_stage_seconds",
        "What each sample's latency consists of",
        labels=[*PHASE_LABELS, "stage"],
    )
    batch = HistogramMetricFamily("harness_batch_samples", "Size of batches", labels=PHASE_LABELS)
    for labels, counts in rows:
        _add(latency, labels, counts.latency, _NS)
        _add(batch, labels, counts.batches, 1)
        for name, histogram in counts.stages.items():
            _add(stage, [*labels, name], histogram, _NS)
    yield latency
    yield stage
    yield batch


def _add(
    family: HistogramMetricFamily, labels: Sequence[str], histogram: Histogram, unit: float
) -> None:
    edges = [*(f"{edge / unit:g}" for edge in histogram.edges.tolist()), "+Inf"]
    ends = histogram.counts.cumsum().tolist()
    family.add_metric(labels, list(zip(edges, ends, strict=True)), histogram.sum / unit)
