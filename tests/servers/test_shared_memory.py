"""Samples in shared memory with a real Triton: answers equal the answers over the network, and memory is always
released.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from harness.cli.main import main
from harness.run.shared_region import REGIONS
from tests.servers.real_servers import Addresses

pytestmark = pytest.mark.slow

SHARED = ("--backend", "kserve", "--backend-option", "encoding=shm", "--model", "digits")
WAIT_S = 120


def regions(url: str) -> list[dict[str, Any]]:
    """Returns the shared-memory regions that the server has mapped."""
    with urllib.request.urlopen(f"{url}/v2/systemsharedmemory/status", timeout=10) as reply:
        listed: list[dict[str, Any]] = json.load(reply)
    return listed


def nothing_is_left(url: str) -> bool:
    """Returns whether no region is left; waits up to 5 s, because another test may use a region for a short time."""
    deadline_s = time.monotonic() + 5
    while regions(url) or any(REGIONS.glob("mlperf-harness-*")):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.1)
    return True


@pytest.mark.parametrize(
    "scenario",
    [("multi-stream",), ("offline",), ("server", "--target-qps", "50", "--slo", "p99=2s")],
    ids=lambda words: words[0],
)
def test_every_scenario_is_as_exact_as_over_the_wire(
    triton: Addresses, scenario: tuple[str, ...], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    more = ("--mode", "both", "--duration", "3s", "--no-metrics", "--performance-count", "300")
    words = ("--scenario", *scenario, *SHARED, "--url", triton.url, *more, "--out", str(out))
    # Status 4 is allowed, because a busy machine makes the client late.
    assert main([*words]) in (0, 4)
    result = json.loads((out / "result.json").read_text())
    assert {reason["code"] for reason in result["reasons"]} <= {"client-bound"}
    # The score covers 500 samples, which LoadGen loads in two sets.
    assert result["accuracy"]["value"] == 99.2
    assert result["backend_description"]["encoding"] == "shm"
    assert result["client"]["failures"] == {}
    assert nothing_is_left(triton.url)


@pytest.mark.parametrize("way", ["killed", "interrupted"])
def test_a_run_that_ends_early_leaves_no_region(
    triton: Addresses, way: str, tmp_path: Path
) -> None:
    words = ("--scenario", "server", "--target-qps", "50", "--duration", "60s", "--no-metrics")
    more = (*SHARED, "--url", triton.url, "--out", str(tmp_path / "run"))
    command = [sys.executable, "-m", "harness", *words, *more, "--mode", "performance"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline_s = time.monotonic() + WAIT_S
        while not regions(triton.url):
            assert process.poll() is None
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        measured = int(regions(triton.url)[0]["name"].rpartition("-")[2])
        if way == "killed":
            os.kill(measured, signal.SIGKILL)
        else:
            process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == {"killed": 5, "interrupted": 130}[way]
    assert nothing_is_left(triton.url)


def test_a_server_without_shared_memory_is_reported_in_one_line(
    mlserver: Addresses, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--scenario", "offline", *SHARED, "--url", mlserver.url, "--no-metrics")
    assert main([*words, "--out", str(tmp_path / "run")]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line == (
        "harness: --backend-option encoding=shm: the server has no system shared memory: drop the option"
    )
