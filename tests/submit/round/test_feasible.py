"""`submit plan --benchmark all` lists what a machine can run within a day, and why the other benchmarks do not fit."""

from pathlib import Path

import pytest

from harness.cli.main import main
from harness.errors import ConfigError
from harness.submit.plan.feasible import DAY_S, Feasibility, Machine, feasible, this_machine
from harness.submit.rules.tree.rounds import load_round

SMALL = Machine(flops=2e12, memory_bytes=64 * 10**9, disk_bytes=10**12)
"""A server without accelerators."""

GIANT = Machine(flops=1e18, memory_bytes=10**13, disk_bytes=10**14)


def found(machine: Machine, category: str = "datacenter", division: str = "closed") -> dict[str, Feasibility]:  # fmt: skip
    rows = feasible(load_round(), division, category, machine)
    return {row.benchmark: row for row in rows}


def test_every_benchmark_of_the_round_is_in_a_category() -> None:
    every = {**found(SMALL, "edge"), **found(SMALL, "datacenter")}
    assert {*every} == {*load_round().benchmarks}


def test_a_cpu_server_gets_a_reason_for_each_benchmark_that_does_not_fit() -> None:
    rows = {**found(SMALL, "datacenter"), **found(SMALL, "edge")}
    fits = {name for name, row in rows.items() if not row.why}
    assert fits == {"resnet", "bert-99", "bert-99.9", "3d-unet-99", "3d-unet-99.9", "yolo-95", "yolo-99", "whisper", "e2e-rag-db"}  # fmt: skip
    assert "it needs 600 GB of memory, but this machine has 64 GB" in rows["rgat"].why
    assert "it needs 500 GB of memory" in rows["dlrm-v3"].why
    large = Machine(flops=2e12, memory_bytes=10**13, disk_bytes=10**14)
    assert found(large)["dlrm-v3"].why == "349,823 samples of 530 GFLOP take longer than a day"
    assert "24,576 samples of 41 TFLOP take longer than a day" in rows["llama2-70b-99.9"].why
    slow = Machine(flops=1e12, memory_bytes=10**13, disk_bytes=10**14)
    images = found(slow, "datacenter,edge")["stable-diffusion-xl"]
    assert "a sample takes at least 239 s, but Server allows 20.0 s" in images.why
    assert "TEST07 needs a separate data set" in rows["gpt-oss-120b"].why
    assert "its speed is measured with mlcommons/endpoints" in rows["qwen3.6-27b"].why
    assert "248 samples of 272 PFLOP take longer than a day" in rows["wan-2.2-t2v-a14b"].why
    assert all((row.least_s or 0) <= DAY_S for row in rows.values() if not row.why)


def test_times_follow_from_the_runs_that_the_rules_require() -> None:
    row = found(GIANT, "edge")["resnet"]
    assert (row.scenarios, row.runs) == (("SingleStream", "MultiStream", "Offline"), 12)
    streams, offline = 2 * 3 * 605, 3 * (5 + 600 * 1.43)
    assert row.least_s == pytest.approx(streams + offline + 3 * 5, rel=1e-3)
    assert found(GIANT, "edge", "open")["resnet"].runs == 6
    one_pass = found(GIANT)["e2e-rag-qna"]
    assert one_pass.least_s == pytest.approx(15, abs=1)


def test_a_run_that_issues_each_sample_equally_often_takes_a_whole_set() -> None:
    slow = Machine(flops=5e13, memory_bytes=10**13, disk_bytes=10**14)
    benchmark = load_round().benchmarks["llama3.1-8b-edge"]
    whole_set_s = benchmark.performance_samples * benchmark.work.gflop * 1e9 / 5e13
    queries_s = 1024 / benchmark.performance_samples * whole_set_s
    assert queries_s < 600 < whole_set_s
    least_s = found(slow, "edge")["llama3.1-8b-edge"].least_s
    assert least_s is not None
    # Each of the two scenarios has an accuracy run and a performance run.
    assert least_s > 4 * whole_set_s


def test_a_giant_machine_only_lacks_an_audit_and_a_client() -> None:
    rows = {**found(GIANT, "datacenter"), **found(GIANT, "edge")}
    assert [name for name, row in rows.items() if row.why] == ["gpt-oss-120b", "qwen3.6-27b"]


def test_the_list_needs_no_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["submit", "plan", "--work", str(tmp_path / "w"), "--benchmark", "all"]
    assert main([*words, "--category", "datacenter"]) == 0
    text = capsys.readouterr().out
    assert "rgat" in text
    assert "TFLOP/s in matrix products" in text
    assert not (tmp_path / "w").exists()
    assert main(words) == 2
    assert "--category is missing: choose from edge; datacenter" in capsys.readouterr().err


def test_the_list_refuses_options_without_effect(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["submit", "plan", "--work", str(tmp_path / "w"), "--benchmark", "all"]
    assert main([*words, "--category", "edge", "--model", "digits", "--scenarios", "Offline"]) == 2
    assert "makes no runs: leave out --model, --scenarios\n" in capsys.readouterr().err


def test_a_category_that_the_round_lacks_is_refused(tmp_path: Path) -> None:
    assert this_machine(tmp_path / "not/there").flops > 0
    with pytest.raises(ConfigError, match="--division shut: choose from closed; open"):
        feasible(load_round(), "shut", "edge", SMALL)
