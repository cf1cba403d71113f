"""OpenTelemetry's metrics for generative AI, read with the protocol's own package."""

import io
from typing import Any

import numpy as np
import pytest
from google.protobuf import json_format

from harness.core.otlp.boundaries import SECONDS_NS, TOKENS
from harness.results.export import genai
from harness.results.run_files import RunFiles, read_files
from tests.builders.finished import RUNS
from tests.builders.refusals import refusal
from tests.results.export.test_benchmark_report import FIRST_NS, MADE, with_tokens

service = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")


def metrics(run: RunFiles) -> tuple[Any, dict[str, Any]]:
    """Returns the resource and the metrics by name."""
    out = io.StringIO()
    genai.write(run, out)
    request = json_format.Parse(out.getvalue(), service.ExportMetricsServiceRequest())
    (resource,) = request.resource_metrics
    (scope,) = resource.scope_metrics
    return resource.resource, {metric.name: metric for metric in scope.metrics}


def attributes(owner: Any) -> dict[str, Any]:
    return {
        pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in owner.attributes
    }


GAPS = {"bounds_ns": SECONDS_NS.tolist(), "counts": [3, *[0] * 13, 1], "sum_ns": 10**11}


def test_sums_and_counts_are_those_of_the_samples() -> None:
    run = with_tokens(chunk_gaps=GAPS)
    assert run.performance is not None
    assert run.performance.done is not None
    size = len(run.performance.done)
    _, found = metrics(run)
    (duration,) = found["gen_ai.client.operation.duration"].histogram.data_points
    assert (duration.count, list(duration.bucket_counts)) == (size, [size, *[0] * 14])
    assert duration.sum == pytest.approx(size * 2 * FIRST_NS / 1e9)
    assert (duration.min, duration.max) == (2 * FIRST_NS / 1e9,) * 2
    (first,) = found["gen_ai.client.operation.time_to_first_chunk"].histogram.data_points
    assert first.sum == pytest.approx(size * FIRST_NS / 1e9)
    usage = {
        attributes(point)["gen_ai.token.type"]: point
        for point in found["gen_ai.client.token.usage"].histogram.data_points
    }
    assert (usage["output"].sum, usage["input"].sum) == (MADE * size, 7 * size)
    assert list(usage["output"].explicit_bounds) == TOKENS.tolist()
    assert (usage["input"].count, list(usage["input"].explicit_bounds)) == (size, [])
    (gap,) = found["gen_ai.client.operation.time_per_output_chunk"].histogram.data_points
    assert (gap.count, gap.sum) == (4, 100.0)
    assert attributes(duration)["gen_ai.provider.name"] == "openai"
    assert duration.start_time_unix_nano < duration.time_unix_nano


def test_a_boundary_belongs_to_the_bucket_below() -> None:
    values = np.array([10_000_000, 10_000_001, 81_920_000_000, 81_920_000_001])
    found = genai.point(genai.DURATION, values, SECONDS_NS)
    assert found is not None
    assert [place for place, count in enumerate(found.counts) if count] == [0, 1, 13, 14]


def test_failures_are_points_of_their_own() -> None:
    run = with_tokens()
    assert run.performance is not None
    assert run.performance.done is not None
    columns = run.performance.done.columns
    columns["failed"][:3] = 1
    _, found = metrics(run)
    points = found["gen_ai.client.operation.duration"].histogram.data_points
    counts = {attributes(point).get("error.type", ""): point.count for point in points}
    assert counts == {"": len(columns["failed"]) - 3, "_OTHER": 3}


def test_an_invalid_run_is_marked() -> None:
    run = with_tokens()
    reason = {"code": "slo-missed", "text": "too late"}
    run = run._replace(result={**run.result, "verdict": "INVALID", "reasons": [reason]})
    resource, found = metrics(run)
    (point,) = found["harness.run.valid"].gauge.data_points
    assert point.as_int == 0
    about = attributes(resource)
    assert about["harness.verdict"] == "INVALID"
    assert [value.string_value for value in about["harness.reasons"].values] == ["slo-missed"]


def test_a_run_without_tokens_is_refused() -> None:
    line = refusal(genai.write, read_files(RUNS / "server"), io.StringIO())
    assert "has no tokens: metrics of generative AI describe" in line


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/metrics"),
        ("http://127.0.0.1:4318/", "http://127.0.0.1:4318/v1/metrics"),
        ("http://a/otlp/v1/metrics", "http://a/otlp/v1/metrics"),
    ],
)
def test_a_collector_without_a_path_gets_the_default_path(url: str, wanted: str) -> None:
    assert genai.metrics_url(url) == wanted
