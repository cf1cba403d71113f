"""The JSON Schema of result.json documents every key, refuses wrong keys, and fits real runs."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import ValidationError

from harness.cli.main import main
from harness.core.codes import Reason
from tests.builders.result import SCHEMA, VALIDATOR, configured, findings, result
from tests.builders.support import SCENARIOS, evidence

QUICK = ("--backend", "null", "--model", "digits", "--queries", "200")


def test_every_key_is_documented() -> None:
    schema = json.loads(SCHEMA.read_text())
    sections = {"Result": schema, **schema["$defs"]}
    undocumented = [
        f"{name}.{key}"
        for name, section in sections.items()
        for key, one in section["properties"].items()
        if not one.get("description", "").endswith(".")
    ]
    assert len(sections) > 20
    assert undocumented == []


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_result_of_any_outcome_fits_the_schema(scenario: str) -> None:
    """`result` validates the value that it returns."""
    died = Reason("died", "the measured process was killed by SIGKILL in the run")
    result(findings(scenario, evidence(scenario)))
    result(findings(scenario, evidence(scenario, failure=died, ended=None)))
    result(findings(scenario, evidence(scenario, failure=died, ended=None, done=None)))
    result(findings(scenario, None, stopped=Reason("interrupted", "stopped by SIGINT")))
    result(configured(findings(scenario, None), mode="accuracy"))


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.pop("noise_floor_ns"),
        lambda content: content.update(surprise=1),
        lambda content: content["latency_ns"].update(p50="3 ms"),
        lambda content: content["latency_ns"].pop("p99.9"),
        lambda content: content.update(verdict="MAYBE"),
        lambda content: content["queries"].update(unknown=1),
    ],
)
def test_another_key_or_type_is_refused(change: Any) -> None:
    content = result(findings("server", evidence("server")))
    change(content)
    with pytest.raises(ValidationError):
        VALIDATOR.validate(content)


@pytest.mark.parametrize(
    "words",
    [
        ("--scenario", "server", "--target-qps", "500", "--slo", "p99=1s"),
        ("--scenario", "offline"),
        pytest.param(("--scenario", "single-stream", "--slo", "p90=1ns"), marks=pytest.mark.slow),
        pytest.param(("--scenario", "server", "--concurrency", "4", "--slo", "p99=1s"), marks=pytest.mark.slow,),
    ],
)  # fmt: skip
def test_result_file_of_a_run_fits_the_schema(words: tuple[str, ...], tmp_path: Path) -> None:
    main([*words, *QUICK, "--out", str(tmp_path / "run")])
    content = json.loads((tmp_path / "run/result.json").read_text())
    VALIDATOR.validate(content)
    assert content["queries"]["samples_answered"] > 0
    assert content["reference"].keys() & {"ratio", "reason"}
