"""Tests `tune` as a process that is ended by a signal, or whose model fails under every plan."""

import json
import signal
import time
from pathlib import Path

import pytest

from tests.faults.command import FAULTY, children, ended, gone, run, start

TUNE = ("tune", "--scenario", "offline", "--no-metrics", "--max-batch", "8")


@pytest.mark.slow
def test_signal_ends_the_search_and_keeps_its_times(tmp_path: Path) -> None:
    out = tmp_path / "t"
    process = start(*TUNE, "--backend", "null", "--duration", "5s", "--out", str(out))
    runs = tmp_path / "t.partial/runs"
    deadline = time.monotonic() + 50
    while not runs.is_dir() and time.monotonic() < deadline:
        time.sleep(0.1)
    left = children(process.pid)
    process.send_signal(signal.SIGINT)
    done = ended(process)
    assert done.status == 130, done.said
    assert done.printed.startswith("NOT TUNED")
    content = json.loads((tmp_path / "t.partial/tune.json").read_text())
    assert content["taken"] is None
    assert content["ended_early"] == "stopped by SIGINT before the end of the run"
    assert all(one["passes"] for one in content["layouts"])
    assert gone(left)


def test_a_model_that_fails_in_every_layout_is_reported_in_one_line(tmp_path: Path) -> None:
    done = run(*TUNE, "--backend", f"{FAULTY}:RaisesInLoad", "--out", f"{tmp_path}/t")
    assert done.status == 3
    assert done.said.splitlines()[-1].startswith(f"harness: backend '{FAULTY}:RaisesInLoad'")
    content = json.loads((tmp_path / "t.partial/tune.json").read_text())
    assert all(one["failed"] for one in content["layouts"])
    assert content["ended_early"].startswith(f"backend '{FAULTY}:RaisesInLoad'")
    assert "Traceback" in (tmp_path / "t.partial/bare/01.log").read_text()
