"""The model misbehaves: every run ends without help, states the cause, and is VALID only if it is correct."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.command import (
    SERVER,
    SHORT,
    SOON,
    codes,
    doubts,
    only_all,
    result,
    run,
    run_faulty,
)

ANSWERED = 200
"""As in tests/faults/lost_gpu.py, which imports PyTorch."""

PERFORMANCE = ("--mode", "performance")


@pytest.mark.parametrize(
    "backend",
    [
        "Raises",
        *only_all(
            "NotANumber",
            "Overflows",
            "RaisesOnce",
            "TooFew",
            "TooMany",
            "WrongType",
            "WrongShape",
            "OtherRank",
        ),
    ],
)
def test_a_failed_batch_makes_the_run_invalid(backend: str, tmp_path: Path) -> None:
    done = run_faulty(backend, tmp_path / "r", *PERFORMANCE)
    assert done.status == 4, done.said
    assert codes(tmp_path / "r") == ["batch-failed"]
    assert result(tmp_path / "r")["queries"]["samples_answered"] == 700


@pytest.mark.slow
def test_an_error_in_the_accuracy_run_alone_makes_the_run_invalid(tmp_path: Path) -> None:
    done = run_faulty("RaisesAfterwards", tmp_path / "r", "--backend-option", f"mark={tmp_path}/m")
    assert done.status == 4, done.said
    assert "batch-failed" in codes(tmp_path / "r")
    (reason,) = [r for r in result(tmp_path / "r")["reasons"] if r["code"] == "batch-failed"]
    assert reason["text"].startswith("accuracy run: ")
    assert reason["text"].endswith(" of 500 samples failed: RuntimeError: only now")


@pytest.mark.slow
def test_answers_that_differ_under_load_are_found(tmp_path: Path) -> None:
    options = ("--backend-option", f"mark={tmp_path}/m", "--instances", "1")
    done = run_faulty("CutsCorners", tmp_path / "r", *options)
    assert done.status == 4, done.said
    assert codes(tmp_path / "r") == ["accuracy-below-target", "answers-differ"]
    compared = result(tmp_path / "r")["accuracy"]["compared"]
    assert compared["differing"] == compared["answers"] >= 100
    assert compared["first"].endswith(": 0, 1")


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        ("RaisesInLoad", "loading 'digits', raised ValueError: no load: see "),
        *only_all(
            ("SwallowsInClose", "on 'digits' raised ValueError: no warm-up: see "),
            ("RaisesInWarmUp", "on 'digits' raised ValueError: no warm-up: see "),
            ("OutOfMemory", "loading 'digits', ran out of memory"),
            ("BlocksInLoad", "harness: the measured process sent no 'loaded' for 6 s: "),
            ("DiesInLoad", "harness: the measured process was killed by SIGSEGV before its first"),
        ),
    ],
)
def test_a_fault_before_the_first_query_exits_with_status_3(
    backend: str, message: str, tmp_path: Path
) -> None:
    done = run_faulty(backend, tmp_path / "r", *SOON)
    assert done.status == 3
    assert message in done.first_line
    assert done.printed == ""
    assert codes(tmp_path / "r.partial") == ["did-not-start"]


@pytest.mark.parametrize(
    ("backend", "code"),
    [("Segfaults", "died"), *only_all(("Blocks", "hung"), ("Exits", "died"))],
)
def test_a_measured_process_that_hangs_or_dies_exits_with_status_5(
    backend: str, code: str, tmp_path: Path
) -> None:
    done = run_faulty(backend, tmp_path / "r", *SOON)
    assert done.status == 5
    assert done.first_line.startswith("harness: the measured process ")
    assert codes(tmp_path / "r.partial") == [code]
    content = result(tmp_path / "r.partial")
    assert content["latency_ns"]["source"] == "interrupted, from the journal"
    assert content["queries"]["samples_answered"] >= 100
    assert (tmp_path / "r.partial/performance/run_1/completions.npz").is_file()
    assert done.printed.startswith("INVALID")


def test_a_crash_of_native_code_leaves_its_place_in_the_output(tmp_path: Path) -> None:
    """Bug: the message referred to performance.log, which had been removed because it was empty."""
    done = run_faulty("Segfaults", tmp_path / "r", *SOON)
    log = tmp_path / "r.partial/performance.log"
    assert done.first_line.endswith(f"was killed by SIGSEGV in the run: see {log}")
    text = log.read_text()
    assert text.startswith("Fatal Python error: Segmentation fault")
    assert "faulty.py" in text


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["RaisesInClose", "LeavesInClose"])
def test_an_error_in_close_loses_nothing_and_is_a_doubt(backend: str, tmp_path: Path) -> None:
    done = run_faulty(backend, tmp_path / "r", *PERFORMANCE)
    assert done.status == 0, done.said
    assert "close-raised" in doubts(tmp_path / "r")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["OwnThreadRaises", "DescribesNan"])
def test_a_harmless_fault_is_ignored(backend: str, tmp_path: Path) -> None:
    done = run_faulty(backend, tmp_path / "r", *PERFORMANCE)
    assert done.status == 0, done.said


@pytest.mark.slow
def test_a_stall_shows_in_the_tail(tmp_path: Path) -> None:
    """The latency must include the waiting time of queries that arrive while the model stalls."""
    done = run_faulty("StallsOnce", tmp_path / "r", *PERFORMANCE)
    assert done.status == 4, done.said
    content = result(tmp_path / "r")
    assert content["latency_ns"]["max"] >= 2.9e9
    assert content["latency_ns"]["p99"] >= 2e9
    assert codes(tmp_path / "r") == ["slo-missed"]
    assert "stalled" in doubts(tmp_path / "r")
    assert content["queries"]["samples_failed"] == 0


@pytest.mark.slow
def test_output_of_the_model_goes_to_a_file(tmp_path: Path) -> None:
    done = run_faulty("Prints", tmp_path / "r", *PERFORMANCE)
    assert done.status == 0, done.said
    assert "noise" not in done.printed + done.said
    assert (tmp_path / "r/performance.log").stat().st_size > 1_000_000


def test_a_plug_in_without_formats_is_reported_with_advice(tmp_path: Path) -> None:
    """Bug: for a manifest with files, the message was `Load model from None failed` and did not mention `formats`."""
    done = run_faulty("ForgetsFormats", tmp_path / "r", "--model", "digits")
    assert done.status == 3
    last = done.said.splitlines()[-1]
    assert "raised ValueError: load model from None failed (setup.model is None because the" in last
    assert "class declares no `formats`; 'digits' has onnx, tflite, " in last
    assert "write e.g. formats = ('onnx',) in the class)" in last


@pytest.mark.slow
def test_a_gpu_that_is_lost_in_the_run_leaves_the_answers_before_it(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    subprocess.run(
        [sys.executable, "-m", "tests.builders.models.torch_files", str(tmp_path)], check=True
    )
    out = tmp_path / "r"
    log = out.with_name("r.partial") / "performance/run_1/mlperf_log_detail.txt"
    done = run(
        *(*SERVER, *SHORT, *PERFORMANCE, "--out", str(out), "--model", str(tmp_path / "two.pt2")),
        *("--backend", "tests.faults.lost_gpu:LostGpu", "--trust", "tests.faults.lost_gpu"),
        env={"LOST_GPU_LOG": str(log)},
    )
    assert done.status == 4, done.said
    assert codes(out) == ["batch-failed"]
    (reason,) = result(out)["reasons"]
    text = r"performance run: (\d+) of 700 samples failed: .*: CUDA error: unspecified launch failure(; if .*)?"
    found = re.fullmatch(text, reason["text"])
    assert found, reason["text"]
    assert 0 < int(found[1]) <= 700 - ANSWERED  # a batch has a sample or more
    assert result(out)["latency_ns"] is not None
