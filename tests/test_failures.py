"""What goes wrong ends by itself, says why in one line, and is never VALID.

Each row runs the real command as a process of its own, against a real LoadGen; the fault comes from
a plug-in in faulty.py or from outside.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
FAULTY = Path(__file__).parent / "faulty.py"
SHORT = ("--target-qps", "500", "--queries", "700", "--hang-timeout", "3s")


def start(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "harness", "--scenario", "server", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(backend: str, out: Path, *more: str) -> tuple[int, str, str]:
    process = start("--backend", f"{FAULTY}:{backend}", "--out", str(out), *SHORT, *more)
    printed, said = process.communicate(timeout=60)
    return process.returncode, printed, said


def result(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return content


def codes(folder: Path) -> list[str]:
    content = result(folder)
    assert content["verdict"] == "INVALID"
    return [r["code"] for r in content["reasons"]]


def children_of_this_test(marker: str) -> list[str]:
    """Command lines of processes that name the run's folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        if marker.encode() in words and process.name != str(os.getpid()):
            found.append(process.name)
    return found


@pytest.mark.parametrize("backend", ["Raises", "RaisesOnce", "TooFew", "TooMany", "WrongType"])
def test_a_failed_batch_makes_the_run_invalid(backend: str, tmp_path: Path) -> None:
    status, _, said = run(backend, tmp_path / "r", "--mode", "performance")
    assert status == 4, said
    assert codes(tmp_path / "r") == ["batch-failed"]
    assert result(tmp_path / "r")["queries"]["samples_answered"] == 700
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        ("RaisesInLoad", "loading 'digits', raised ValueError: no load: see "),
        ("RaisesInWarmUp", "harness: warm-up raised ValueError: no warm-up: see "),
        ("BlocksInLoad", "harness: the measured process sent no 'loaded' for 3 s: "),
        ("DiesInLoad", "harness: the measured process was killed by SIGSEGV before its first"),
    ],
)
def test_a_fault_before_the_first_query_is_status_3(
    backend: str, message: str, tmp_path: Path
) -> None:
    status, printed, said = run(backend, tmp_path / "r")
    assert status == 3
    assert message in said
    assert "Traceback" not in said
    assert printed == ""
    assert codes(tmp_path / "r.partial") == ["did-not-start"]


@pytest.mark.parametrize(
    ("backend", "code"), [("Blocks", "hung"), ("Segfaults", "died"), ("Exits", "died")]
)
def test_a_measured_process_that_hangs_or_dies_is_status_5(
    backend: str, code: str, tmp_path: Path
) -> None:
    status, printed, said = run(backend, tmp_path / "r")
    assert status == 5
    assert said.splitlines()[-1].startswith("harness: the measured process ")
    assert codes(tmp_path / "r.partial") == [code]
    content = result(tmp_path / "r.partial")
    assert content["latency_ns"]["source"] == "interrupted, from the journal"
    assert content["queries"]["samples_answered"] >= 100
    assert (tmp_path / "r.partial/performance/run_1/completions.npz").is_file()
    assert printed.startswith("INVALID")


def test_raising_in_close_loses_nothing_and_is_a_doubt(tmp_path: Path) -> None:
    status, _, said = run("RaisesInClose", tmp_path / "r", "--mode", "performance")
    assert status == 0, said
    assert "close-raised" in [d["code"] for d in result(tmp_path / "r")["doubts"]]


def test_a_stall_shows_in_the_tail(tmp_path: Path) -> None:
    """Queries that arrive while the model stalls wait: the latency must not hide it."""
    status, _, said = run("StallsOnce", tmp_path / "r", "--mode", "performance")
    assert status == 4, said
    content = result(tmp_path / "r")
    assert content["latency_ns"]["max"] >= 900e6
    assert content["latency_ns"]["p99"] >= 500e6
    assert codes(tmp_path / "r") == ["slo-missed"]


def test_output_of_the_model_goes_to_a_file(tmp_path: Path) -> None:
    status, printed, said = run("Prints", tmp_path / "r", "--mode", "performance")
    assert status == 0, said
    assert "noise" not in printed + said
    assert (tmp_path / "r/performance.log").stat().st_size > 1_000_000


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_in_the_run_keeps_what_was_measured(
    number: signal.Signals, tmp_path: Path
) -> None:
    process = start("--out", str(tmp_path / "r"), "--target-qps", "1000", "--duration", "60s")
    assert process.stderr is not None
    process.stderr.readline()  # the plan is announced as the run starts
    wait_for_rows(tmp_path / "r.partial")
    process.send_signal(number)
    before = time.monotonic()
    printed, _ = process.communicate(timeout=30)
    assert time.monotonic() - before < 10  # a hang, not a speed claim
    assert process.returncode == 128 + number
    assert codes(tmp_path / "r.partial") == ["interrupted"]
    assert result(tmp_path / "r.partial")["queries"]["samples_answered"] > 0
    assert printed.startswith("INVALID")
    assert children_of_this_test(str(tmp_path)) == []


def wait_for_rows(folder: Path) -> None:
    """LoadGen opens its logs as it starts to issue."""
    deadline = time.monotonic() + 30
    log = folder / "performance/run_1/mlperf_log_detail.txt"
    while not (log.is_file() and log.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)


def test_the_measured_process_dies_with_its_supervisor(tmp_path: Path) -> None:
    process = start("--out", str(tmp_path / "r"), "--target-qps", "1000", "--duration", "60s")
    assert process.stderr is not None
    process.stderr.readline()
    wait_for_rows(tmp_path / "r.partial")
    measured = [int(c) for c in children(process.pid)]
    assert measured
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in measured):
        assert time.monotonic() < deadline, "the measured process outlived its supervisor"
        time.sleep(0.05)
    assert codes(tmp_path / "r.partial") == ["did-not-finish"]


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_killing_the_measured_process_is_told(tmp_path: Path) -> None:
    process = start("--out", str(tmp_path / "r"), "--target-qps", "1000", "--duration", "60s")
    assert process.stderr is not None
    process.stderr.readline()
    wait_for_rows(tmp_path / "r.partial")
    for pid in children(process.pid):
        os.kill(int(pid), signal.SIGKILL)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 5
    assert "the measured process was killed by SIGKILL in the run" in said
    assert codes(tmp_path / "r.partial") == ["died"]


def test_a_corrupt_model_is_the_users_mistake_and_leaves_nothing(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_text("not a model")
    process = start("--model", str(model), "--out", str(tmp_path / "r"))
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert said.startswith(f"harness: {model}: ONNX Runtime cannot load it: ")
    assert said.count("\n") == 1
    assert not list(tmp_path.glob("r*"))
