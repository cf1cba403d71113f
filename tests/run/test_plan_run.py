"""Real runs follow the plan, as the test observes from outside, and report the plan in result.json."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from harness.cli.main import main
from harness.machine import cgroup
from harness.results.recheck import check
from tests.builders.models.foreign_nets import classifier
from tests.faults.command import (
    SERVER,
    SHORT,
    children,
    doubts,
    ended,
    only_all,
    result,
    run,
    start,
    wait_until_it_runs,
)

PERFORMANCE = (*SERVER, *SHORT, "--mode", "performance")
MASK = sorted(os.sched_getaffinity(0))


def masks(pid: int) -> dict[str, str]:
    """Maps each thread to the processors on which it may run, from /proc."""
    allowed = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        lines = dict(x.split(":\t", 1) for x in (task / "status").read_text().splitlines())
        allowed[task.name] = lines["Cpus_allowed_list"]
    return allowed


@pytest.mark.skipif(len(MASK) < 2, reason="needs two processors")
def test_pinned_threads_run_on_the_cores_of_the_plan(tmp_path: Path) -> None:
    arguments = (*SERVER, "--target-qps", "500", "--duration", "3s", "--slo", "p99=1s")
    out = tmp_path / "r"
    process = start(
        *arguments, "--mode", "performance", "--instances", "2", "--pin", "--out", str(out)
    )
    wait_until_it_runs(process, tmp_path / "r.partial")
    (pid,) = children(process.pid)
    seen = masks(pid)
    done = ended(process)
    assert done.status == 0, done.said + done.printed
    content = result(out)
    first, second = content["plan"]["pinned"]
    assert f"pinned to {first[0]} | {second[0]}" in done.said
    # On the first instance, either LoadGen's thread or a worker answers; the current speed of the machine decides
    # which.
    dispatcher = content["plan"]["dispatcher"]
    assert dispatcher in ("shared", "queued")
    own = [str(first[0]), str(second[0])]
    issuer = [] if dispatcher == "shared" else own[:1]
    assert sorted(v for v in seen.values() if v in own) == [*issuer, *own]
    assert content["plan"]["issuer"] == first
    assert content["plan"]["placed"] == [{"threads": 1, "outside": 0}] * 2
    cold, warm = content["cold"], content["warm_up"]
    assert len(cold["load_s"]) == len(cold["first_batch_ns"]) == 2
    assert min(cold["import_s"], *cold["load_s"], *cold["first_batch_ns"]) > 0
    assert (cold["first_batch_samples"], warm["sizes"], warm["skipped"]) == (1, 64, 0)
    assert content["measured_process"]["cyclic_garbage_objects"] >= 0
    assert "not-pinned" not in doubts(out)
    assert check(out) == []


@pytest.mark.slow
def test_a_backend_whose_threads_leave_their_cores_is_a_doubt(tmp_path: Path) -> None:
    (tmp_path / "leaves.py").write_text(LEAVES)
    backend = ("--backend", f"{tmp_path}/leaves.py:Leaves", "--instances", "1", "--threads", "1")
    done = run(*PERFORMANCE, *backend, "--pin", "--out", f"{tmp_path}/r")
    assert done.status == 0, done.said + done.printed
    expected = ["not-pinned"] if len(MASK) > 1 else []
    assert [d for d in doubts(tmp_path / "r") if d == "not-pinned"] == expected
    assert check(tmp_path / "r") == []


LEAVES = f"""
import os, time
import numpy as np

class Leaves:
    def __init__(self, setup): pass
    def __enter__(self): return self
    def __exit__(self, *exc): pass
    def describe(self): return {{}}
    def infer(self, batch):
        os.sched_setaffinity(0, {MASK})
        end = time.thread_time_ns() + 1_000_000
        while time.thread_time_ns() < end: pass
        return np.zeros((batch.size, 10), np.float32)
"""


def test_less_than_a_core_of_quota_is_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cgroup, "cpu_limit", lambda: 0.5)
    out = ("--backend", "null", "--no-metrics", "--out", f"{tmp_path}/r")
    assert main([*PERFORMANCE, *out]) == 0
    assert "1 instance of 1 thread on 0.5 cores, batch" in capsys.readouterr().err
    plan = result(tmp_path / "r")["plan"]
    assert (plan["instances"], plan["threads"], plan["cores"]) == (1, 1, 0.5)
    assert main([*PERFORMANCE, *out[:-1], f"{tmp_path}/s", "--threads", "2"]) == 2
    assert "1 can compute at the same time (" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "dispatcher", "mean_batch"),
    [
        *only_all(
            # The choice depends on the current speed of the machine.
            ((), ("shared", "queued"), 0.0),
            (("--batch-wait", "20ms"), ("planning",), 4.0),
        ),
        (("--dispatch", "deadline"), ("planning",), 0.0),
    ],
)
def test_batches_have_the_requested_size(
    more: tuple[str, ...], dispatcher: tuple[str, ...], mean_batch: float, tmp_path: Path
) -> None:
    done = run(*PERFORMANCE, "--oversubscribe", "--instances", "2", *more, "--out", f"{tmp_path}/r")
    assert done.status == 0, done.said + done.printed
    content: dict[str, Any] = result(tmp_path / "r")
    assert content["plan"]["dispatcher"] in dispatcher
    # At 500 queries/s, ten queries arrive in 20 ms.
    assert content["queries"]["mean_batch"] >= mean_batch
    points = content["calibration"]["batch_latency_ns"]
    assert [size for size, _ in points or ()] == (
        [1, 2, 4, 8, 16, 32, 64] if "deadline" in more else []
    )
    assert check(tmp_path / "r") == []


@pytest.mark.slow
@pytest.mark.skipif(len(MASK) < 2, reason="needs two processors")
@pytest.mark.parametrize(
    ("backend", "dispatch"), [("ort", "elastic"), ("ort", "greedy"), ("openvino", "elastic")]
)
def test_queries_that_are_alone_are_answered_by_all_cores(
    backend: str, dispatch: str, tmp_path: Path
) -> None:
    pytest.importorskip("onnx")
    if backend == "openvino":
        pytest.importorskip("openvino")
    from harness.models.made import onnx_light

    done = run(
        *("--scenario", "server", "--backend", backend, "--dispatch", dispatch),
        *("--model", str(onnx_light.make("squeezenet")), "--target-qps", "30", "--queries", "100"),
        *("--slo", "p90=10s", "--mode", "both", "--out", str(tmp_path / "r")),
    )
    assert done.status == 0, done.said + done.printed
    plan = result(tmp_path / "r")["plan"]
    if dispatch == "greedy":
        assert plan["dispatcher"] == "queued"
        assert "elastic" not in plan
    # On a busy machine, the second core may gain nothing, so the plan may lack a wide instance.
    elif plan["elastic"]["cpus"] is None:
        assert re.search("would lose more time|gains nothing", plan["elastic"]["reason"])
        assert plan["dispatcher"] == "queued"
    else:
        assert plan["dispatcher"] == "elastic"
        assert plan["elastic"]["wide_ns"] < plan["elastic"]["narrow_ns"]
        assert 1 <= plan["elastic"]["samples"] <= 100
    assert check(tmp_path / "r") == []
    assert "cores-lost" not in doubts(tmp_path / "r")


LARGE_IS_SLOW = """
import time
from harness.backends.ort import OrtBackend

class LargeIsSlow(OrtBackend):
    '''Cost of a sample grows with its batch.'''
    def infer(self, batch):
        time.sleep(0.003 * batch.size**2)
        return super().infer(batch)
"""


def test_offline_takes_small_batches_if_they_are_cheaper(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(LARGE_IS_SLOW)
    model = classifier(tmp_path / "net.onnx")
    out = tmp_path / "r"
    ask = ("--scenario", "offline", "--backend", f"{tmp_path}/slow.py:LargeIsSlow")
    done = run(*ask, "--model", str(model), "--duration", "1s", "--no-metrics", "--out", str(out))
    assert done.status == 0, done.said + done.printed
    assert "less time than in a batch of 8" in done.said
    content = result(out)
    chosen = content["plan"]["max_batch"]
    assert chosen in (1, 2)  # the plan has batches of 2 only if the machine is very busy
    assert content["queries"]["mean_batch"] <= chosen
    points = dict(content["calibration"]["batch_latency_ns"])
    assert [*points] == [1, 2, 4, 8]
    assert points[8] / 8 > 2 * points[1]
    assert check(out) == []
