"""Exports a language-model run as OpenTelemetry metrics for generative AI, in OTLP/JSON.

Source: open-telemetry/semantic-conventions-genai 004902b8, docs/gen-ai/gen-ai-metrics.md (names, units, attributes and
boundaries). `gen_ai.client.operation.duration` and `.time_to_first_chunk` are counted from the time when a query was
due, like all times in the harness. Sums and counts are exact.
"""

from collections.abc import Iterable, Mapping, Sequence
from os import environ
from typing import Any, NamedTuple, TextIO
from urllib.parse import urlsplit

import numpy as np

from harness import __version__
from harness.core.otlp.boundaries import SECONDS_NS, TOKENS
from harness.core.otlp.collector import from_environment, post
from harness.core.otlp.values import METRICS, Message, attributes, encoded
from harness.core.units import NS_PER_S
from harness.errors import ConfigError
from harness.results.export.samples import span_ns
from harness.results.run_files import RunFiles
from harness.results.tokens.facts import MODEL
from harness.types import Array

DURATION = "gen_ai.client.operation.duration"
FIRST_CHUNK = "gen_ai.client.operation.time_to_first_chunk"
PER_CHUNK = "gen_ai.client.operation.time_per_output_chunk"
USAGE = "gen_ai.client.token.usage"
VALID = "harness.run.valid"

_METRICS = {
    DURATION: ("s", "GenAI operation duration, from the time at which the query was due"),
    FIRST_CHUNK: ("s", "Time to the first chunk, from the time at which the query was due"),
    PER_CHUNK: ("s", "Time between chunks of a stream after the first one"),
    USAGE: ("{token}", "Input and output tokens used"),
}
"""Maps a metric's name to its unit and description."""

_CUMULATIVE = 2  # AGGREGATION_TEMPORALITY_CUMULATIVE
_FAILED = {"error.type": "_OTHER"}


class Point(NamedTuple):
    """A histogram for one metric and one set of attributes."""

    metric: str
    attributes: Mapping[str, Any]
    bounds: Sequence[int]
    """Inclusive upper boundaries in ns or tokens; empty if only the sum is known."""
    counts: Sequence[int]
    """Count for each interval between boundaries: one element more than `bounds`."""
    sum: int
    """Sum of the values, in ns or tokens."""
    least: int | None = None
    most: int | None = None


def point(metric: str, values: Array, bounds: Array, **more: Any) -> Point | None:
    """Returns the histogram of the values, in ns or tokens; None without values."""
    if not len(values):
        return None
    counts = np.bincount(np.searchsorted(bounds, values), minlength=len(bounds) + 1)
    return Point(
        metric,
        more,
        bounds.tolist(),
        counts.tolist(),
        int(values.sum()),
        int(values.min()),
        int(values.max()),
    )


def about(
    backend: Mapping[str, Any], dataset: Mapping[str, Any], model: str, urls: Sequence[str]
) -> dict[str, Any]:
    """Returns the attributes that all points share. backend, dataset: descriptions of the run's backend and dataset.
    model: the run's model.
    """
    chat = dataset.get("prompts") == "messages" or not any(
        "chat" not in path for path in backend.get("endpoints") or ("",)
    )
    found: dict[str, Any] = {
        "gen_ai.operation.name": "chat" if chat else "text_completion",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": str(backend.get("model", model)),
    }
    if urls:
        parts = urlsplit(urls[0])
        if parts.hostname:
            found["server.address"] = parts.hostname
            found["server.port"] = parts.port or (443 if parts.scheme == "https" else 80)
    return found


def message(
    points: Iterable[Point],
    shared: Mapping[str, Any],
    resource: Mapping[str, Any],
    begin_ns: int,
    end_ns: int,
    valid: bool | None = None,
) -> Message:
    """Returns an ExportMetricsServiceRequest. shared: attributes of all points. valid: the verdict; None if unknown."""
    times = {"startTimeUnixNano": str(begin_ns), "timeUnixNano": str(end_ns)}
    by_metric: dict[str, list[Any]] = {}
    for one in points:
        by_metric.setdefault(one.metric, []).append({**times, **_encoded(one, shared)})
    metrics: list[dict[str, Any]] = [
        {
            "name": name,
            "unit": _METRICS[name][0],
            "description": _METRICS[name][1],
            "histogram": {"aggregationTemporality": _CUMULATIVE, "dataPoints": by_metric[name]},
        }
        for name in _METRICS
        if name in by_metric
    ]
    if valid is not None:
        gauge = {"timeUnixNano": str(end_ns), "asInt": str(int(valid))}
        text = "1 if the run is VALID, else 0: its numbers must not be quoted"
        metrics.append(
            {"name": VALID, "unit": "1", "description": text, "gauge": {"dataPoints": [gauge]}}
        )
    scope = {"name": "harness.genai", "version": __version__}
    whole = attributes({"service.name": "mlperf-harness", **resource})
    return {
        "resourceMetrics": [
            {
                "resource": {"attributes": whole},
                "scopeMetrics": [{"scope": scope, "metrics": metrics}],
            }
        ]
    }


def _encoded(one: Point, shared: Mapping[str, Any]) -> dict[str, Any]:
    scale = NS_PER_S if _METRICS[one.metric][0] == "s" else 1
    ends = {"min": one.least, "max": one.most}
    return {
        "attributes": attributes({**shared, **one.attributes}),
        "count": str(sum(one.counts)),
        "sum": one.sum / scale,
        "bucketCounts": [str(count) for count in one.counts],
        "explicitBounds": [bound / scale for bound in one.bounds],
        **{name: value / scale for name, value in ends.items() if value is not None},
    }


def of_run(run: RunFiles) -> Message:
    """Returns a finished run's metrics. Raises a ConfigError if the run measured no tokens or has no performance run."""
    done = run.performance.done if run.performance else None
    tokens = run.result.get("tokens")
    if not done or not tokens or run.performance is None:
        raise ConfigError(
            f"{run.folder} has no tokens: metrics of generative AI describe a performance run with a language model; "
            "use a different --format"
        )
    result = run.result
    shared = about(
        result.get("backend_description") or {},
        result.get("dataset_description") or {},
        str(result["model"]),
        [peer["url"] for peer in (result.get("client") or {}).get("peers", ())],
    )
    points = [
        *_of_columns(done.columns, run.performance.models),
        *of_tokens(tokens),
    ]
    begin_ns, end_ns = span_ns(run)
    reasons = [one["code"] for one in result["reasons"]]
    resource = {
        "harness.run": run.name,
        "harness.scenario": result["scenario"],
        "harness.model": result["model"],
        "harness.verdict": result["verdict"],
        **({"harness.reasons": reasons} if reasons else {}),
    }
    known = [one for one in points if one is not None]
    return message(known, shared, resource, begin_ns, end_ns, result["verdict"] == "VALID")


def _of_columns(columns: Mapping[str, Array], models: Sequence[str]) -> Iterable[Point | None]:
    """Yields the points computed from the samples. If the run used several models, each model gets separate points."""
    if not models or MODEL not in columns:
        yield from _of_samples(columns, {})
        return
    for number, name in enumerate(models):
        mine = columns[MODEL] == number
        one = {key: column[mine] for key, column in columns.items()}
        yield from _of_samples(one, {"gen_ai.request.model": name})


def _of_samples(columns: Mapping[str, Array], more: Mapping[str, Any]) -> Iterable[Point | None]:
    right = columns["failed"] == 0
    due_ns = columns["scheduled_ns"]
    spent_ns = columns["completed_ns"] - due_ns
    yield point(DURATION, spent_ns[right], SECONDS_NS, **more)
    yield point(DURATION, spent_ns[~right], SECONDS_NS, **more, **_FAILED)
    first_ns, made = columns.get("first_token_ns"), columns.get("tokens")
    if first_ns is not None:
        begun = right & (first_ns > 0)
        yield point(FIRST_CHUNK, (first_ns - due_ns)[begun], SECONDS_NS, **more)
    if made is not None:
        known = made[right & (made > 0)].astype(np.int64)
        yield point(USAGE, known, TOKENS, **more, **{"gen_ai.token.type": "output"})


def of_tokens(tokens: Mapping[str, Any]) -> Iterable[Point | None]:
    """Yields the points computed from result.json: the sum of prompt tokens, and the gaps between tokens."""
    if tokens["input"] is not None:
        kind = {"gen_ai.token.type": "input"}
        yield Point(USAGE, kind, (), (tokens["answers"],), tokens["input"])
    gaps = tokens.get("chunk_gaps")
    if gaps and sum(gaps["counts"]):
        yield Point(PER_CHUNK, {}, gaps["bounds_ns"], gaps["counts"], gaps["sum_ns"])


def write(run: RunFiles, out: TextIO) -> None:
    """Writes the metrics as one line in OTLP's file format."""
    out.write(encoded(of_run(run)).decode() + "\n")


def send(run: RunFiles, url: str) -> str:
    """Posts the metrics to a collector; returns a line for the screen.
    Raises a ConfigError if the collector refuses them.
    """
    collector = from_environment(environ, METRICS, "--to", metrics_url(url))
    post([of_run(run)], collector)
    return f"{collector} has the metrics of {run.name}"


def metrics_url(url: str) -> str:
    """Returns the URL at which a collector accepts metrics. Adds the default path if `url` has no path."""
    parts = urlsplit(url)
    return parts._replace(path=parts.path.rstrip("/") or METRICS).geturl()
