"""Nodes that end, stop, slow down or are the wrong nodes: the messages of the run, and what the run leaves behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.cli.main import main
from tests.builders.serving import ROOT, serving
from tests.cluster.hosts import hosts, is_running, names, node_processes
from tests.cluster.runs import OFFLINE, SLOW_BATCH, codes, ran, when_running
from tests.stand_ins.clock import clock_library

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("number", "how"),
    [
        (signal.SIGKILL, "closed the connection|reset by peer"),
        (signal.SIGSTOP, "no answer for 2.00 s"),
    ],
)
def test_a_node_that_ends_or_stops_is_lost_and_the_run_continues(
    tmp_path: Path, number: signal.Signals, how: str
) -> None:
    out = tmp_path / "run"
    with hosts((*SLOW_BATCH, "--max-batch", "4"), (*SLOW_BATCH, "--max-batch", "4")) as served:
        killer = when_running(out, lambda: served[1].process.send_signal(number))
        status, result = ran(
            out, *OFFLINE, "--nodes", names(served), "--queries", "600", "--request-timeout", "2s"
        )
        killer.join()
        if number == signal.SIGSTOP:
            served[1].process.send_signal(signal.SIGCONT)
        assert status == 4
        assert "node-lost" in codes(result)
        (text,) = [r["text"] for r in result["reasons"] if r["code"] == "node-lost"]
        lost = result["nodes"][1]
        assert f"{lost['node']} was lost with {lost['lost_samples']} of 600 samples (" in text
        assert any(word in text for word in how.split("|"))
        # The node held at most two batches: it computed one, and the other waited.
        assert 1 <= lost["lost_samples"] <= 8
        # Only the lost samples failed.
        assert result["queries"]["samples_failed"] == lost["lost_samples"]
        assert result["nodes"][0]["samples"] + lost["samples"] == 600
        assert result["nodes"][0]["failed"] == 0
        assert main(["check", str(out)]) == 0


def test_a_slow_node_gets_less_and_is_named(tmp_path: Path) -> None:
    slow = tuple("ms=150" if word == "ms=50" else word for word in SLOW_BATCH)
    ends = ("--max-batch", "4")
    with hosts((*SLOW_BATCH, *ends), (*SLOW_BATCH, *ends), (*slow, *ends)) as served:
        _, result = ran(tmp_path / "run", *OFFLINE, "--nodes", names(served), "--queries", "560")
    fast, other, slower = (node["samples"] for node in result["nodes"])
    assert slower < 0.5 * min(fast, other)
    (text,) = [d["text"] for d in result["doubts"] if d["code"] == "node-slower"]
    assert result["nodes"][2]["node"] in text


def test_a_node_with_other_data_is_refused_with_every_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    one = ("--dataset", "synthetic", "--instances", "1", "--threads", "1")
    with hosts(
        (*one, "--seed", "1", "--backend", "ort"), (*one, "--seed", "2", "--backend", "null")
    ) as served:
        words = ("--scenario", "offline", "--dataset", "synthetic", "--seed", "1")
        out = ("--no-metrics", "--out", str(tmp_path / "run"))
        assert main([*words, "--nodes", names(served), *out]) == 2
    lines = capsys.readouterr().err
    for what in ("the backend", "the precision", "the data"):
        assert f"{names(served).split(',')[1]}: {what} is" in lines
    assert "node-differs" in lines
    assert not (tmp_path / "run").exists()


def test_a_clock_that_is_set_in_the_run_is_found_and_the_stages_still_sum(tmp_path: Path) -> None:
    out, step = tmp_path / "run", tmp_path / "step"
    preload = {**clock_library(tmp_path), "CLOCK_OF": "--node", "STEP_CLOCK_FILE": str(step)}
    with serving("digits", "--node", *SLOW_BATCH, "--max-batch", "4", env=preload) as node:
        setter = when_running(out, step.touch)
        _, result = ran(out, *OFFLINE, "--nodes", names([node]), "--queries", "400")
        setter.join()
    (text,) = [d["text"] for d in result["doubts"] if d["code"] == "node-clock"]
    assert "was set by 2.00 s in the run" in text
    (told,) = result["nodes"]
    assert told["stage_error_ns"] == told["clock_step_ns"] == pytest.approx(2e9, rel=0.01)
    assert sum(stage["share"] for stage in result["stages_ns"].values()) == pytest.approx(1)
    assert main(["check", str(out)]) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("wait_s", [0.5, 12])
def test_no_node_outlives_the_command(
    tmp_path: Path, number: signal.Signals, wait_s: float
) -> None:
    words = [*OFFLINE, "--nodes", "local:2", "--instances", "1", "--threads", "1", "--no-metrics"]
    command = [sys.executable, "-m", "harness", *words, "--duration", "60s"]
    with subprocess.Popen(
        [*command, "--out", str(tmp_path / "run")], cwd=ROOT, stderr=subprocess.DEVNULL
    ) as process:
        pids: list[int] = []
        end_s = time.monotonic() + 30
        while len(pids) < 2 and time.monotonic() < end_s:
            pids = node_processes(process.pid)
            time.sleep(0.05)
        assert len(pids) == 2
        # One test case ends the command while the nodes start, the other while the nodes answer.
        time.sleep(wait_s)
        os.kill(process.pid, number)
        process.wait(timeout=60)
    end_s = time.monotonic() + 10
    while any(map(is_running, pids)) and time.monotonic() < end_s:
        time.sleep(0.05)
    assert not any(map(is_running, pids))
