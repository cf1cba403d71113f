"""Runs the script of the GPU day on the processor."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_page

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
    assert [*first] == ["device", "targets"]
    assert first["device"]["device"]["name"] == "cpu"
    assert {path.name for path in (tmp_path / "work/models").iterdir()} == {
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
    assert "cpu, PyTorch" in (tmp_path / "gpu_day.html").read_text()


@pytest.mark.slow
def test_a_day_continues_from_a_copy_of_its_rows(tmp_path: Path) -> None:
    """The machine with the GPU starts bare each time, and returns only a few files."""
    pytest.importorskip("torch")
    first, second, work = (tmp_path / name for name in ("first", "second", "work"))
    assert day(first, "--only", "device", "--work", str(work)).returncode == 0
    assert {path.suffix for path in first.iterdir()} == {".json", ".html", ".js"}
    rows = json.loads((first / "gpu_day.json").read_text())
    rows["device"]["device"]["name"] = "of the first machine"
    second.mkdir()
    (second / "gpu_day.json").write_text(json.dumps(rows))
    done = day(second, "--only", "device", "gather", "--work", str(work))
    found = json.loads(done.stdout)
    assert found["device"]["device"]["name"] == "of the first machine"
    assert "gather" in found


@pytest.mark.slow
@pytest.mark.limit_s(1800)
def test_every_run_of_the_day_can_be_made(tmp_path: Path) -> None:
    """Excludes the contract tests, which are part of the test suite, and the GPU's own sections."""
    pytest.importorskip("torch")
    sections = ("scenarios", "server", "options", "profile")
    found = json.loads(day(tmp_path, "--only", *sections, "--limit", "1500").stdout)
    rows = {(name, label): row for name in sections for label, row in found[name].items()}
    assert len(rows) == 4 + 2 + 4 + 1
    assert {key: row["missing"] for key, row in rows.items() if "missing" in row} == {}


def test_targets_compare_with_the_loop_and_the_grid() -> None:
    day: dict[str, Any] = {
        "bare": {
            "bert, loop, first": {"samples_per_s": 100.0, "p50_ns": 1_000_000.0},
            "bert, offline, first": {"samples_per_s": 96.0},
            "bert, single-stream, first": {"p50_us": 1_009.0},
            "bert, loop, second": {"missing": "TimeoutExpired"},
            "bert, offline, second": {"samples_per_s": 96.0},
        },
        "server": {
            "capacity": {"samples_per_s": 10.0},
            "load 0.5": {"verdict": "VALID", "p99_us": 1_100.0},
            "load 0.5, 1 instances": {"verdict": "INVALID", "p99_us": 400.0},
            "load 0.5, 2 instances": {"verdict": "VALID", "p99_us": 1_000.0},
            "load 0.5, 4 instances": {"missing": "TimeoutExpired"},
            "load 0.85": {"verdict": "VALID", "p99_us": 2_000.0},
        },
    }
    assert gpu_page.targets(day) == {
        "bert, Offline / loop, first": {
            "measured": 0.96, "target": "at least 0.97", "met": False,
        },
        "bert, single-stream p50 - loop, us, first": {
            "measured": 9.0, "target": "at most 10", "met": True,
        },
        "Server, load 0.5: p99 / best of the grid": {
            "measured": 1.1, "target": "at most 1.1", "met": True,
        },
    }  # fmt: skip
    assert gpu_page.targets({}) == {}


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
    assert done.stdout.endswith("and benchmarks/gpu_day.py are enough.\n")
