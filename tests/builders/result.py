"""Reads result.json, and checks it against its JSON Schema."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

import harness.results
from harness.core import registry
from harness.core.config.parse import parse_slo
from harness.core.config.run_config import RunConfig
from harness.loadgen.plan import Calibration, InstanceGroup, Loaded
from harness.models.manifest.lookup import load_model
from harness.models.opened.resolved_run import ResolvedRun
from harness.results import result_json
from harness.results.evidence.evidence import Evidence
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
    """Returns the keys of result.json that the database and its pages read."""
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


def findings(scenario: str, run: Evidence | None, **more: Any) -> Findings:
    resolved = ResolvedRun(
        config=RunConfig(scenario=scenario, mode="performance"),
        model=load_model("digits"),
        scenario=registry.load("scenario", scenario),
        dataset="digits",
        metric="top1",
        slos=(parse_slo("p99=50ms"),) if scenario == "server" else (),
        instances=InstanceGroup(1, 1, 64),
    )
    return Findings(
        resolved=resolved,
        started="2026-01-01T00:00:00.000+00:00",
        calibration=CALIBRATION,
        performance=run,
        **more,
    )


def configured(found: Findings, **changed: Any) -> Findings:
    """Returns the findings of a run whose configuration differs in these fields."""
    config = replace(found.config, **changed)
    return replace(found, resolved=replace(found.resolved, config=config))


LOADED = Loaded(
    inputs=(),
    total_count=1,
    performance_count=1,
    synthetic=False,
    fixed_batch=None,
    model_sha256=None,
    model_bytes=0,
    backend={},
    dataset={},
)
