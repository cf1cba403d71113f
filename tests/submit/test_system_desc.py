"""MLCommons' system_desc.json is accepted as a --describe file; facts that it lacks stay unanswered."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.cli.main import main
from harness.submit.pack.describe import read_answers_file
from harness.submit.plan.request_file import write_request
from tests.builders.refusals import refusals
from tests.builders.submission.trees import ROUND
from tests.stand_ins.fake_submission_runs import ANSWERS, CLOSED, make_runs

STAMP = {
    "version": "1.0.0a12",
    "profile": "inference",
    "profile_round": "6.0",
    "shape": "flat",
    "benchmark": "inference",
    "captured_at": "2026-11-22T16:04:08+00:00",
    "nodes_expected": 1,
    "nodes_collected": 1,
    "complete": True,
    "mlc_scripts": {"package_version": "1.2.0a8"},
}
CAPTURED: Mapping[str, Any] = {
    "submitter": "LabOrg",
    "submitter_contact": "someone@example.com",
    "system_name": "box with two sockets",
    "status": "preview",
    "system_type": "edge",
    "division": "open",
    "system_size": "",
    "number_of_nodes": 1,
    "host_processor_model_name": "CPU 1",
    "host_processors_per_node": 2,
    "host_processor_core_count": 56,
    "host_processor_vcpu_count": 112,
    "host_processor_interconnect": "",
    "host_memory_capacity": "512 GB",
    "host_memory_configuration": "Not available",
    "host_networking": "2x 100 GbE",
    "host_networking_topology": "N/A",
    "accelerator_model_name": "not detected on node 1",
    "accelerators_per_node": 0,
    "cooling": "Insert cooling here",
    "other_hardware": "",
    "mlperf_sysinfo": STAMP,
}
"""A capture in the format of mlperf-sysinfo 1.0.0a12, with some facts missing."""


def written(folder: Path, content: Mapping[str, Any]) -> Path:
    path = folder / "system_desc.json"
    path.write_text(json.dumps(content, indent=2), encoding="utf-8")
    return path


def test_found_facts_of_our_keys_are_taken(tmp_path: Path) -> None:
    answers = read_answers_file(written(tmp_path, CAPTURED), ROUND)
    assert answers == {
        "submitter": "LabOrg",
        "system_name": "box with two sockets",
        "status": "preview",
        "system_type": "edge",
        "division": "open",
        "number_of_nodes": "1",
        "host_processor_model_name": "CPU 1",
        "host_processors_per_node": "2",
        "host_processor_core_count": "56",
        "host_memory_capacity": "512 GB",
        "host_networking": "2x 100 GbE",
    }


@pytest.mark.parametrize(
    ("changed", "problems"),
    [
        (
            {"profile": "endpoints", "shape": "nested", "benchmark": ""},
            ["profile 'endpoints': capture"],
        ),
        ({"profile": "training", "benchmark": "training"}, ["profile 'training': capture it with"]),
        ({"complete": False}, ["a partial capture, because a node did not answer"]),
        ({"shape": None, "complete": None}, ["profile 'inference'", "a partial capture"]),
    ],
)
def test_a_file_of_another_kind_is_refused(
    changed: Mapping[str, Any], problems: list[str], tmp_path: Path
) -> None:
    path = written(tmp_path, {**CAPTURED, "mlperf_sysinfo": {**STAMP, **changed}})
    lines = refusals(read_answers_file, path, ROUND)
    assert len(lines) == len(problems)
    assert all(problem in line for problem, line in zip(problems, lines, strict=True))


@pytest.mark.slow
def test_both_files_describe_the_system_and_the_later_one_wins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = tmp_path / "work"
    make_runs(CLOSED, work)
    write_request(work, CLOSED)
    ours = tmp_path / "describe.yaml"
    ours.write_text(yaml.safe_dump({k: v for k, v in ANSWERS.items() if k != "host_networking"}))
    words = ["submit", "pack", "--work", str(work), "--to", str(tmp_path / "tree")]
    captured = str(written(tmp_path, CAPTURED))
    assert main([*words, "--describe", captured, "--describe", str(ours)]) == 0, capsys.readouterr()
    system = json.loads((tmp_path / "tree/closed/LabOrg/systems/box.json").read_text())
    assert system["host_processor_model_name"] == "CPU 1"
    assert system["host_networking"] == "2x 100 GbE"
    assert (system["status"], system["cooling"]) == (ANSWERS["status"], ANSWERS["cooling"])
    assert (system["division"], system["system_type"]) == (CLOSED.division, CLOSED.category)
    assert system["accelerators_per_node"] == "0"
