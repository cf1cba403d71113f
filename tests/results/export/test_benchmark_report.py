"""The export as a Benchmark Report of llm-d. With BENCHMARK_REPORT_SCHEMA=FILE, the test also checks the report against
llm-d's JSON Schema.
"""

import io
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from harness.results.export import benchmark_report
from harness.results.run_files import RunFiles, read_files
from tests.builders.finished import RUNS
from tests.builders.refusals import refusal

SCHEMA = os.environ.get("BENCHMARK_REPORT_SCHEMA", "")
FIRST_NS, MADE = 2_000_000, 5


def with_tokens(**changed: Any) -> RunFiles:
    """Returns the golden Server run with answers of five tokens. The first token arrives after 2 ms."""
    run = read_files(RUNS / "server")
    assert run.performance is not None
    assert run.performance.done is not None
    columns = dict(run.performance.done.columns)
    size = len(columns["order"])
    columns["first_token_ns"] = columns["scheduled_ns"] + FIRST_NS
    columns["completed_ns"] = columns["scheduled_ns"] + 2 * FIRST_NS
    columns["tokens"] = np.full(size, MADE, np.int32)
    done = replace(run.performance.done, columns=columns)
    tokens = {"answers": size, "input": 7 * size, "output": MADE * size, "output_per_s": 50.0}
    result = {**run.result, "tokens": {**tokens, **changed}}
    return run._replace(result=result, performance=replace(run.performance, done=done))


def report(run: RunFiles) -> Any:
    out = io.StringIO()
    benchmark_report.write(run, out)
    return yaml.safe_load(out.getvalue())


def test_latencies_come_from_the_samples() -> None:
    run = with_tokens()
    found = report(run)["results"]["request_performance"]["aggregate"]
    latency = found["latency"]
    assert latency["time_to_first_token"]["units"] == "s"
    assert latency["time_to_first_token"]["p99"] == pytest.approx(FIRST_NS / 1e9)
    assert latency["request_latency"]["mean"] == pytest.approx(2 * FIRST_NS / 1e9)
    assert latency["time_per_output_token"]["max"] == pytest.approx(FIRST_NS / 4 / 1e9)
    assert latency["time_per_output_token"]["units"] == "s/token"
    assert "inter_token_latency" not in latency
    requests = found["requests"]
    assert (requests["total"], requests["failures"], requests["incomplete"]) == (64, 0, 0)
    assert (requests["input_length"]["mean"], requests["output_length"]["p50"]) == (7.0, 5.0)
    assert found["throughput"]["output_token_rate"] == {"units": "tokens/s", "mean": 50.0}


def test_unknown_tokens_are_left_out() -> None:
    whole = report(with_tokens(input=None))
    assert "scenario" not in whole
    found = whole["results"]["request_performance"]["aggregate"]
    assert "input_length" not in found["requests"]
    assert "total_token_rate" not in found["throughput"]


def test_the_run_is_described_with_its_verdict() -> None:
    run = with_tokens()
    reason = {"code": "slo-missed", "text": "too late"}
    run = run._replace(result={**run.result, "verdict": "INVALID", "reasons": [reason]})
    found = report(run)
    assert found["version"] == "0.2.1"
    assert found["run"]["description"].endswith("INVALID: slo-missed: too late")
    assert "INVALID" in found["run"]["keywords"]
    assert found["run"]["uid"] == report(run)["run"]["uid"]
    assert found["scenario"]["load"]["standardized"]["tool"] == "mlperf-harness"


def test_a_run_without_tokens_is_refused() -> None:
    text = refusal(benchmark_report.write, read_files(RUNS / "offline"), io.StringIO())
    assert text.startswith(f"{RUNS / 'offline'} has no tokens")


@pytest.mark.skipif(not SCHEMA, reason="BENCHMARK_REPORT_SCHEMA names no file")
def test_the_report_satisfies_the_schema_of_its_owner() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    found = json.loads(json.dumps(report(with_tokens()), default=str))
    jsonschema.validate(found, json.loads(Path(SCHEMA).read_text(encoding="utf-8")))
