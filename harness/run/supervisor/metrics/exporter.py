"""Converts a run's counts into metrics for Prometheus, and into snapshots for `browse`."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest, push_to_gateway
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from harness.core.config.parse import Slo
from harness.core.shown.private import host_id
from harness.results.export.openmetrics import RUN_LABELS
from harness.results.run_folder import METRICS
from harness.run.supervisor.metrics.course import Snapshot, snapshot
from harness.run.supervisor.metrics.live_counts import LiveCounts
from harness.run.supervisor.metrics.otlp_push import message
from harness.run.supervisor.metrics.run_series import RunSeries

JOB = "mlperf-harness"
"""Value of the label `job` in pushed metrics."""

PUSH_LIMIT_S = 5.0

Source = Callable[[Mapping[str, str]], Iterable[Metric]]
"""Makes additional metric families for each page, such as the metrics of a power meter. Any thread may call the
function with the run's labels, but only one thread at a time. The function must not block.
"""


class Exporter(Collector):
    """Converts a run into metric families. This class is thread-safe."""

    def __init__(self) -> None:
        self.sources: list[Source] = []
        self._lock = threading.Lock()
        self._labels = dict.fromkeys(RUN_LABELS, "")
        self._info: Mapping[str, str] | None = None
        self._started_s = time.time()
        self._slos: Sequence[Slo] = ()
        self._phases: dict[str, LiveCounts] = {}
        self._result: Mapping[str, Any] | None = None
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def describe_run(self, labels: Mapping[str, str], info: Mapping[str, str]) -> None:
        """Sets the facts about the run. labels: values of RUN_LABELS. info: other fixed facts, by label."""
        with self._lock:
            self._labels, self._info = dict(labels), dict(info)

    def begin(self, counts: LiveCounts, slos: Sequence[Slo]) -> None:
        """Starts the next phase. The name of the phase is the role of the run's plan."""
        with self._lock:
            self._phases[counts.plan.role] = counts
            self._slos = slos

    def end(self) -> None:
        """Stops reading the journals of all phases, and keeps their counts."""
        with self._lock:
            for counts in self._phases.values():
                counts.finish()

    def conclude(self, result: Mapping[str, Any]) -> None:
        """result: the content of result.json."""
        with self._lock:
            self._result = result

    @property
    def has_result(self) -> bool:
        return self._result is not None

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            families = list(self._families())
        # The families are collected in a list, so that the caller can convert them to text without holding the lock.
        return iter(families)

    def _families(self) -> Iterator[Metric]:
        if self._info is None:
            return
        series = RunSeries(self._labels)
        yield from series.info(self._info, self._started_s, self._slos)
        if self._phases:
            for counts in self._phases.values():
                counts.read()
            yield from series.phases(self._phases)
        for source in self.sources:
            yield from source(self._labels)
        if self._result is not None:
            yield from series.verdict(self._result)

    def snapshot(self) -> tuple[str, Snapshot | None]:
        """Returns the name of the run's folder and the run's state; None before the run is described."""
        with self._lock:
            if self._info is None:
                return "", None
            counts = [*self._phases.values()][-1] if self._phases else None
            if counts is not None:
                counts.read()
            machine = [family for source in self.sources for family in source(self._labels)]
            scenario = self._labels["scenario"]
            taken = snapshot(scenario, counts, self._slos, machine, self._result)
            return self._labels["run"], taken

    def page(self) -> bytes:
        """Returns the metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def write(self, folder: Path) -> None:
        (folder / METRICS).write_bytes(self.page())

    def genai(self) -> Mapping[str, Any] | None:
        """Returns OpenTelemetry's metrics of the performance phase; None before that phase, and for models without
        tokens.
        """
        with self._lock:
            counts = self._phases.get("performance")
            if counts is None:
                return None
            counts.read()
            if not counts.tokens and not counts.operations["duration"].total:
                return None
            return message(self._labels, self._started_s, counts, self._result)

    def push(self, url: str) -> None:
        """Replaces this machine's metrics for this workload in the Pushgateway at `url`. Raises OSError."""
        workload = {name: self._labels[name] for name in RUN_LABELS if name != "run"}
        group = {"instance": host_id() or "unknown", **workload}
        push_to_gateway(url, JOB, self._registry, grouping_key=group, timeout=PUSH_LIMIT_S)
