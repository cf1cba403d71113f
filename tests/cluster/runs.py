"""Helpers for runs on nodes, for the files that the runs leave, and for actions during the runs."""

import json
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.cli.main import main
from tests.cluster.hosts import SLEEPING

OF_THE_MACHINE = {"client-bound", "slo-missed", "early-stopping", "loadgen-invalid"}


def ran(out: Path, *words: str) -> tuple[int, dict[str, Any]]:
    status = main([*words, "--no-metrics", "--no-report", "--out", str(out)])
    return status, json.loads((out / "result.json").read_text())


def codes(result: dict[str, Any]) -> set[str]:
    return {reason["code"] for reason in result["reasons"]}


STAMPS = (
    *("scheduled_ns", "entry_ns", "taken_ns", "sent_ns", "received_ns", "node_taken_ns"),
    *("gathered_ns", "inferred_ns"),
    *("postprocessed_ns", "arrived_ns", "read_ns", "decoded_ns", "completed_ns"),
)


def is_whole(out: Path, result: dict[str, Any]) -> None:
    assert codes(result) <= OF_THE_MACHINE, result["reasons"]
    assert result["queries"]["samples_failed"] == 0
    with np.load(out / "performance/run_1/completions.npz") as file:
        columns = dict(file)
    stamps = [columns[name] for name in STAMPS]
    for earlier, later in pairwise(stamps):
        assert (earlier <= later).all()
    assert sum(stage["share"] for stage in result["stages_ns"].values()) == pytest.approx(1)
    assert {"network", "node_queue", "infer", "reply"} < {*result["stages_ns"]}
    assert "remote" not in result["stages_ns"]
    assert sum(node["samples"] for node in result["nodes"]) == len(columns["order"])
    assert all(node["clock_error_ns"] > 0 and not node["no_journal"] for node in result["nodes"])


SLOW_BATCH = (
    *("--backend", SLEEPING, "--backend-option", "ms=50", "--instances", "1", "--threads", "1"),
)
OFFLINE = (
    *("--scenario", "offline", "--backend", SLEEPING, "--mode", "performance"),
    *("--max-batch", "4"),
)


def when_running(out: Path, act: Any) -> threading.Thread:
    """Calls `act` soon after LoadGen has started."""

    def wait() -> None:
        end_s = time.monotonic() + 60
        log = out.with_name(out.name + ".partial") / "performance/run_1/mlperf_log_detail.txt"
        logs = (log, out / "performance/run_1/mlperf_log_detail.txt")
        while time.monotonic() < end_s and not any(path.exists() for path in logs):
            time.sleep(0.05)
        time.sleep(1)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread
