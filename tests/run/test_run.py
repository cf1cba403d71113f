"""The main use: one short run per scenario, with the real LoadGen and a real model."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.results.recheck import check
from tests.builders.power_trees import counting, powercap

ROOT = Path(__file__).parents[2]


def harness(*arguments: str, cwd: Path = ROOT) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "harness", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("scenario", ["single-stream", "multi-stream", "server", "offline"])
def test_a_quick_run_is_valid_and_accurate(scenario: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    # The bound is wide enough for a busy machine.
    slo = ("--slo", "p99=1s") if scenario == "server" else ()
    done = harness("--scenario", scenario, "--duration", "1s", "--out", str(out), *slo)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((out / "result.json").read_text())
    assert result["verdict"] == "VALID"
    assert result["reasons"] == []
    assert result["accuracy"]["value"] >= 98.5
    assert result["accuracy"]["samples"] == 500
    assert result["power"] is None
    assert not out.with_name("run.partial").exists()


def test_power_is_read_in_the_run_and_check_derives_it_again(tmp_path: Path) -> None:
    """Uses a counter that grows at 80 W and wraps, and a program as a second meter."""
    out, root = tmp_path / "run", powercap(tmp_path / "powercap")
    program = "command=sh -c 'while :; do echo 12.5 W; sleep 0.05; done'"
    with counting(root / "intel-rapl:0/energy_uj", watts=80.0):
        done = harness(
            "--scenario", "server", "--backend", "null", "--mode", "performance",
            "--target-qps", "1000", "--queries", "2010", "--slo", "p99=1s", "--out", str(out),
            "--meter", f"rapl={root}", "--meter", program, "--details",
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    power = json.loads((out / "result.json").read_text())["power"]
    package, board = power["readings"]
    assert package["source"] == "rapl:package-0"
    # The limits are wide, because the thread that feeds the fake counter is slower on a busy machine.
    assert 10 < package["mean_watts"] < 100
    assert package["joules_per_query"] == pytest.approx(package["joules"] / 2010)
    assert board["mean_watts"] == pytest.approx(12.5)
    assert board["joules"] == pytest.approx(12.5 * power["seconds"])
    assert [m["source"] for m in power["missing"]] == [
        "rapl:package-0/core",
        "rapl:package-0/dram",
        "rapl:psys",
    ]
    assert "not an MLPerf Power result" in done.stdout
    assert check(out) == []
    path = out / "power.csv"
    path.write_text(path.read_text().replace(",12.5", ",10.0"))
    assert any(line.startswith("power.readings") for line in check(out))
    path.unlink()
    with pytest.raises(ConfigError, match=r"power\.csv"):
        check(out)
