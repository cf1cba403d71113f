"""Doubts about correct runs: the result states with numbers why the run is hard to believe."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.command import FAULTY, SERVER, SHORT, only_all, result, run

CPU = Path("/sys/fs/cgroup/cpu")
PERFORMANCE = ("--mode", "performance", "--backend", "null", "--details")


def text(folder: Path, code: str) -> str:
    """Returns the text of the first doubt with this code."""
    return next(str(d["text"]) for d in result(folder)["doubts"] if d["code"] == code)


@pytest.mark.slow
def test_a_busy_machine_is_a_doubt(tmp_path: Path) -> None:
    hogs = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(os.cpu_count() or 1)
    ]
    try:
        done = run(*SERVER, *SHORT, *PERFORMANCE, "--out", f"{tmp_path}/r")
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    assert done.status == 0, done.said + done.printed
    assert "doubt   busy-machine: other processes used " in done.printed
    assert text(tmp_path / "r", "busy-machine").endswith(" of the cores during the run")


@pytest.fixture
def quota() -> Iterator[Path]:
    """Yields a cgroup limited to a fifth of a core, in the version of cgroups that the test can write on this machine."""
    folder, limits = (
        CPU / "harness-test",
        {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "20000"},
    )
    if not CPU.is_dir():
        folder, limits = CPU.parent / "harness-test", {"cpu.max": "20000 100000"}
    try:
        folder.mkdir()
        for name, value in limits.items():
            (folder / name).write_text(value)
    except OSError as e:
        pytest.skip(f"no cgroup can be made here: {e}")
    yield folder
    folder.rmdir()


@pytest.mark.slow
def test_a_quota_that_throttles_the_run_is_a_doubt(quota: Path, tmp_path: Path) -> None:
    enter = ("sh", "-c", f'echo $$ > {quota}/cgroup.procs; exec "$0" "$@"')
    offline = ("--scenario", "offline", "--queries", "20000", "--mode", "performance", "--details")
    done = run(*offline, "--out", f"{tmp_path}/r", prefix=enter)
    assert done.status == 0, done.said + done.printed
    assert "doubt   throttled: the container's CPU quota held the run back for " in done.printed
    assert result(tmp_path / "r")["environment"]["machine"]["cgroup_cpu_cores"] == 0.2


@pytest.mark.slow
def test_too_few_samples_for_the_percentile_are_a_doubt(tmp_path: Path) -> None:
    streams = ("--scenario", "single-stream", "--slo", "p99=1s", "--queries", "100")
    done = run(*streams, *PERFORMANCE, "--out", f"{tmp_path}/r")
    assert "doubt   few-samples: " in done.printed
    assert text(tmp_path / "r", "few-samples") == "100 queries are too few for p99: 459 are needed"


@pytest.mark.slow
def test_a_late_generator_is_a_doubt(tmp_path: Path) -> None:
    """No machine can wake a thread within two microseconds of the requested time."""
    bound = ("--target-qps", "500", "--queries", "700", "--slo", "p99=20us")
    done = run(*SERVER, *bound, *PERFORMANCE, "--out", f"{tmp_path}/r")
    assert done.status == 4  # the run is INVALID, because no machine meets such a bound
    assert "doubt   generator-late: LoadGen issued 1 % of the queries more than " in done.printed
    assert text(tmp_path / "r", "generator-late").endswith(
        "part of the tail comes from the load generator"
    )
    assert "noisy-machine" in done.printed


@pytest.mark.parametrize(
    ("backend", "code", "said"),
    [
        ("SlowsDown", "drift", " in a step, from "),
        *only_all(("StampsWrong", "percentiles-disagree", " by LoadGen and ")),
    ],
)
def test_a_run_that_contradicts_itself_is_a_doubt(
    backend: str, code: str, said: str, tmp_path: Path
) -> None:
    streams = (
        "--scenario",
        "single-stream",
        "--queries",
        "600",
        "--mode",
        "performance",
        "--details",
    )
    done = run(*streams, "--backend", f"{FAULTY}:{backend}", "--out", f"{tmp_path}/r")
    assert done.status == 0, done.said + done.printed
    assert f"doubt   {code}: " in done.printed
    assert said in text(tmp_path / "r", code)


@pytest.mark.slow
def test_a_backend_that_sleeps_is_a_doubt(tmp_path: Path) -> None:
    offline = ("--scenario", "offline", "--queries", "640", "--mode", "performance", "--details")
    done = run(*offline, "--backend", f"{FAULTY}:Sleeps", "--out", f"{tmp_path}/r")
    assert done.status == 0, done.said + done.printed
    assert "doubt   idle: the batches took " in done.printed
    assert result(tmp_path / "r")["measured_process"]["busy_over_infer"] < 0.25


@pytest.mark.slow
def test_a_backend_that_leaks_memory_is_a_doubt(tmp_path: Path) -> None:
    streams = (
        "--scenario",
        "single-stream",
        "--duration",
        "14s",
        "--mode",
        "performance",
        "--details",
    )
    done = run(*streams, "--backend", f"{FAULTY}:Leaks", "--out", f"{tmp_path}/r")
    assert done.status == 0, done.said + done.printed
    assert "doubt   leak: the measured process's memory grew from " in done.printed
    assert result(tmp_path / "r")["measured_process"]["cyclic_garbage_objects"] > 1000
