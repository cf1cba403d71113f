"""Runs the script of the GPU day on the processor."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def day(out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-P",
        "benchmarks/gpu_day.py",
        str(out),
        "--device",
        "cpu",
        "--short",
    ]
    return subprocess.run([*command, *words], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_finished_sections_are_kept_and_not_measured_again(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = day(tmp_path, "--only", "device")
    assert done.returncode == 0, done.stderr
    first = json.loads((tmp_path / "gpu_day.json").read_text())
    assert [*first] == ["device"]
    assert first["device"]["device"]["name"] == "cpu"
    assert {path.name for path in (tmp_path / "models").iterdir()} == {
        "resnet50.pt2",
        "bert.pt2",
        "gpt.pt2",
        "resnet50.pt",
    }
    for section in ("accuracy", "machine", "gather", "device"):
        done = day(tmp_path, "--only", section)
        assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["device"] == first["device"]
    assert found["accuracy"]["f32"]["percent"] == pytest.approx(99.2, abs=1)
    assert found["machine"]["points"]["gemm/numpy/fp32/256/1"]["unit"] == "FLOP"
    assert found["gather"]["threads 1"]["rows"] == 16
    assert found["gather"]["threads 1"]["p50_us"] > 0
    late = day(tmp_path, "--only", "profile", "--limit", "1")
    assert (
        "the time is over at profile, resnet50 f16 channels-last: start again with" in late.stderr
    )


def test_the_day_of_an_h100_becomes_a_page(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    rows = ROOT / "benchmarks/results/gpu-day-h100.json"
    out = tmp_path / "gpu.html"
    command = [sys.executable, "-P", "benchmarks/gpu_page.py", str(rows), str(out)]
    subprocess.run(command, cwd=ROOT, check=True)
    text = out.read_text()
    assert "Server: p99 by load" in text
    best = json.loads(rows.read_text())["server"]["load 0.85"]
    assert f'<td class="number">{best["p99_us"] / 1e3:.3f}</td>' in text


def test_the_script_without_arguments_explains_itself() -> None:
    command = ["bash", str(ROOT / "scripts/gpu_day.sh")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout.startswith("Measures on a machine with a GPU")
