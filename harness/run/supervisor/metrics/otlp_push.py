"""Pushes OpenTelemetry's metrics of generative AI to a collector, during a run and at its end."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import environ
from typing import Any

from harness.core.clock import wall_ns
from harness.core.console import say
from harness.core.otlp.collector import from_environment, post
from harness.core.otlp.values import METRICS, Message
from harness.errors import ConfigError, one_line
from harness.results.export import genai
from harness.run.supervisor.metrics.histogram import Histogram
from harness.run.supervisor.metrics.live_counts import LiveCounts

EVERY_S = 5.0
"""Time between two messages of a run."""

OPTION = "--metrics-push"

_POINTS: Sequence[tuple[str, str, Mapping[str, Any]]] = (
    ("duration", genai.DURATION, {}),
    ("failed", genai.DURATION, {"error.type": "_OTHER"}),
    ("first", genai.FIRST_CHUNK, {}),
    ("tokens", genai.USAGE, {"gen_ai.token.type": "output"}),
)
"""Names of histograms in LiveCounts, with their metrics and attributes."""


def is_collector(url: str) -> bool:
    """Returns whether the URL of --metrics-push names an OpenTelemetry collector. Any other URL names a Pushgateway."""
    return url.partition("?")[0].rstrip("/").endswith(METRICS)


def points(counts: LiveCounts, result: Mapping[str, Any] | None) -> Iterator[genai.Point]:
    """Yields the metric points of a phase. result: the content of result.json; None before the end of a run."""
    for name, metric, attributes in _POINTS:
        if (found := _point(metric, counts.operations[name], attributes)) is not None:
            yield found
    tokens = (result or {}).get("tokens")
    if tokens:
        yield from filter(None, genai.of_tokens(tokens))


def _point(metric: str, found: Histogram, attributes: Mapping[str, Any]) -> genai.Point | None:
    if not found.total:
        return None
    return genai.Point(metric, attributes, found.edges.tolist(), found.counts.tolist(), found.sum)


def message(
    labels: Mapping[str, str],
    started_s: float,
    counts: LiveCounts,
    result: Mapping[str, Any] | None,
) -> Message:
    """Returns the metrics of a run's performance phase so far. labels: values of RUN_LABELS."""
    resource: dict[str, Any] = {f"harness.{name}": value for name, value in labels.items()}
    valid = None
    if result is not None:
        valid = result["verdict"] == "VALID"
        reasons = [one["code"] for one in result["reasons"]]
        resource |= {"harness.verdict": result["verdict"]}
        resource |= {"harness.reasons": reasons} if reasons else {}
    begin_ns = int(started_s * 1e9)
    return genai.message(points(counts, result), counts.about, resource, begin_ns, wall_ns(), valid)


class OtlpPush:
    """Posts messages from a thread. Prints the first failure; a failure does not affect the run."""

    def __init__(self, url: str, made: Callable[[], Message | None]) -> None:
        """Raises a ConfigError if the environment variables for collectors are wrong.

        made: returns the message to post now; None if there is nothing to report.
        """
        self._collector = from_environment(environ, METRICS, OPTION, url)
        self._made = made
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)
        self.failure = ""

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(EVERY_S):
            self.push()

    def push(self) -> None:
        found = self._made()
        if found is None:
            return
        try:
            post([found], self._collector)
        except ConfigError as e:
            if not self.failure:
                say(one_line(e))
            self.failure = one_line(e)

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(self._collector.timeout_s + 1)
