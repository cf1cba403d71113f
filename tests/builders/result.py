"""result.json as a reader has it, held against its JSON Schema."""

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

import harness.results
from harness.loadgen.plan import Calibration
from harness.results import result_json
from harness.results.findings import Findings

CALIBRATION = Calibration(
    slowest_batch_ns=10**6,
    cold={"import_s": 0.1, "load_s": [0.1], "first_batch_ns": [10**6], "first_batch_samples": 1},
    warm_up={"seconds": 0.1, "sizes": 1, "skipped": 0, "flat": True},
)
SCHEMA = Path(harness.results.__file__).with_name("result.schema.json")
VALIDATOR = Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))


def result(findings: Findings) -> Any:
    content = json.loads(json.dumps(result_json.result(findings), default=str))
    VALIDATOR.validate(content)
    return content


def stored_result(started: str, **changed: Any) -> dict[str, Any]:
    """The keys of result.json that the database and its pages read."""
    return {
        "started": started,
        "scenario": "server",
        "backend": "ort",
        "model": "digits",
        "dataset": "digits",
        "mode": "both",
        "verdict": "VALID",
        "reasons": [],
        "headline": {"value": 2000.4, "unit": "queries/s"},
        "latency_ns": {"p50": 10, "p99": 1_500_000},
        "throughput_per_s": {"completed": 2000.4},
        "accuracy": {"metric": "top1", "value": 99.2},
        "environment": {"machine": {"host": "alpha"}},
        **changed,
    }
