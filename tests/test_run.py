"""The main job for real: one short run for each scenario, on a real LoadGen and a real model."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


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
    slo = ("--slo", "p99=1s") if scenario == "server" else ()  # on a busy machine, too
    done = harness("--scenario", scenario, "--duration", "1s", "--out", str(out), *slo)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((out / "result.json").read_text())
    assert result["verdict"] == "VALID"
    assert result["reasons"] == []
    assert result["accuracy"]["value"] >= 98.5
    assert result["accuracy"]["samples"] == 500
    assert result["power"] is None
    assert not out.with_name("run.partial").exists()
