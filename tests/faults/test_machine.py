"""Faults that the machine or its user causes."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.core.signals import signal_name
from harness.results.recheck import check
from tests.builders.power_trees import counting, files, powercap
from tests.faults.command import (
    DATA,
    FAULTY,
    NOBODY,
    ROOT,
    SERVER,
    SHORT,
    SOON,
    children,
    codes,
    doubts,
    ended,
    gone,
    only_all,
    result,
    run,
    start,
    unprivileged,
    wait_until_it_runs,
)
from tests.stand_ins.clock import clock_library
from tests.stand_ins.small_disk import small_disk

LONG = (*SERVER, "--target-qps", "1000", "--duration", "60s")
TERM, *OTHERS = only_all(
    signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGABRT
)
SIGNALS = [signal.SIGINT, TERM, *OTHERS]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_in_the_run_keeps_what_was_measured(
    number: signal.Signals, tmp_path: Path
) -> None:
    process = start(*LONG, "--out", str(tmp_path / "r"))
    wait_until_it_runs(process, tmp_path / "r.partial")
    measured = children(process.pid)
    process.send_signal(number)
    done = ended(process)
    assert done.status == 128 + number
    assert codes(tmp_path / "r.partial") == ["interrupted"]
    assert result(tmp_path / "r.partial")["queries"]["samples_answered"] > 0
    assert done.printed.startswith("INVALID")
    assert gone(measured)


@pytest.mark.slow
def test_a_second_ctrl_c_still_saves_the_run(tmp_path: Path) -> None:
    process = start(*LONG, "--out", str(tmp_path / "r"))
    wait_until_it_runs(process, tmp_path / "r.partial")
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    assert ended(process).status == 130
    assert codes(tmp_path / "r.partial") == ["interrupted"]


@pytest.mark.slow
def test_a_signal_while_the_run_is_saved_loses_nothing(tmp_path: Path) -> None:
    """The signal arrives just after LoadGen ends, while the harness is reading a large journal and logs."""
    process = start(
        "--scenario", "offline", "--backend", "null", "--mode", "performance",
        "--queries", "1000000", "--max-batch", "4", "--out", str(tmp_path / "r"),
    )  # fmt: skip
    run_1 = tmp_path / "r.partial/performance/run_1"
    while not (run_1 / "completions.npz").is_file():
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    done = ended(process)
    folder = tmp_path / ("r" if done.status == 0 else "r.partial")
    assert done.status in (0, 130)
    assert result(folder)["queries"]["samples_answered"] == 1_000_000
    assert check(folder) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "stream",
    ["both", *only_all("stdout", "stderr")],
)
def test_a_closed_stream_changes_nothing(stream: str, tmp_path: Path) -> None:
    close = {"stdout": ">&-", "stderr": "2>&-", "both": ">&- 2>&-"}[stream]
    command = f'"$0" -m harness "$@" {close}'
    words = ["bash", "-c", command, sys.executable, *SERVER, *SHORT, "--out", f"{tmp_path}/r"]
    done = subprocess.run(words, cwd=ROOT, check=False)
    assert done.returncode == 0
    assert result(tmp_path / "r")["verdict"] == "VALID"


@pytest.mark.slow
def test_files_named_like_plug_ins_are_not_loaded(tmp_path: Path) -> None:
    for name in ("ort", "digits", "synthetic"):
        (tmp_path / name).touch()
    done = subprocess.run(
        [sys.executable, "-m", "harness", *SERVER, *SHORT, "--out", "r"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0
    assert check(tmp_path / "r") == []


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_before_the_run_leaves_a_folder_marked_interrupted(
    number: signal.Signals, tmp_path: Path
) -> None:
    process = start(*LONG, "--out", str(tmp_path / "r"))
    while not (tmp_path / "r.partial/result.json").is_file():
        assert process.poll() is None
    process.send_signal(number)
    assert ended(process).status == 128 + number
    assert codes(tmp_path / "r.partial") == ["interrupted"]


@pytest.mark.parametrize("where", ["run", *only_all("load", "warm-up")])
def test_the_measured_process_dies_with_its_supervisor(where: str, tmp_path: Path) -> None:
    backend = {"load": "BlocksInLoad", "warm-up": "BlocksInWarmUp", "run": "Faulty"}[where]
    process = start(*LONG, "--backend", f"{FAULTY}:{backend}", "--out", str(tmp_path / "r"))
    if where == "run":
        wait_until_it_runs(process, tmp_path / "r.partial")
    else:
        while not children(process.pid):
            assert process.poll() is None
        time.sleep(1.5)
    measured = children(process.pid)
    process.kill()
    process.communicate()
    assert measured
    assert gone(measured)
    assert codes(tmp_path / "r.partial") == ["did-not-finish"]


@pytest.mark.parametrize("number", [*SIGNALS, *only_all(signal.SIGKILL)])
@pytest.mark.parametrize("where", ["warm-up", *only_all("scoring")])
def test_a_signal_in_warm_up_or_scoring_leaves_a_marked_folder(
    where: str, number: signal.Signals, tmp_path: Path
) -> None:
    more = {
        "warm-up": ("--backend", f"{FAULTY}:BlocksInWarmUp"),
        "scoring": ("--backend", "null", "--dataset", f"{DATA}:BlocksInScoring"),
    }[where]
    process = start(*SERVER, *SHORT, *more, "--out", str(tmp_path / "r"))
    folder = tmp_path / "r.partial"
    mark = {"warm-up": "performance.log", "scoring": "accuracy/run.json"}[where]
    while not (folder / mark).is_file():
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(1.5 if where == "warm-up" else 0.5)
    measured = children(process.pid)
    process.send_signal(number)
    done = ended(process)
    assert gone(measured)
    if number == signal.SIGKILL:
        assert codes(folder) == ["did-not-finish"]
    else:
        assert done.status == 128 + number
        assert codes(folder) == ["interrupted"]
    if where == "scoring" and number != signal.SIGKILL:
        assert result(folder)["latency_ns"]["p99"] > 0


@pytest.mark.parametrize("backend", ["BlocksInLoad", *only_all("BlocksInWarmUp")])
@pytest.mark.parametrize("number", [signal.SIGKILL, TERM])
@pytest.mark.slow
def test_killing_the_measured_process_before_its_run_is_reported(
    number: signal.Signals, backend: str, tmp_path: Path
) -> None:
    process = start(*LONG, "--backend", f"{FAULTY}:{backend}", "--out", str(tmp_path / "r"))
    while not children(process.pid):
        assert process.poll() is None
    time.sleep(1.5)
    for pid in children(process.pid):
        os.kill(pid, number)
    done = ended(process)
    assert done.status == 3
    assert f"the measured process was killed by {number.name} before its first" in done.said
    assert codes(tmp_path / "r.partial") == ["did-not-start"]


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, *only_all(signal.SIGTERM, signal.SIGINT, signal.SIGRTMIN + 4)]
)
def test_killing_the_measured_process_is_reported(number: int, tmp_path: Path) -> None:
    """Bug: SIGINT and real-time signals caused a traceback."""
    process = start(*LONG, "--out", str(tmp_path / "r"))
    wait_until_it_runs(process, tmp_path / "r.partial")
    for pid in children(process.pid):
        os.kill(pid, number)
    done = ended(process)
    assert done.status == 5
    assert f"the measured process was killed by {signal_name(number)} in the run" in done.said
    assert codes(tmp_path / "r.partial") == ["died"]


@pytest.mark.slow
def test_a_stopped_and_continued_process_is_flagged(tmp_path: Path) -> None:
    process = start(*SERVER, "--target-qps", "500", "--duration", "8s", "--out", f"{tmp_path}/r")
    wait_until_it_runs(process, tmp_path / "r.partial")
    (measured,) = children(process.pid)
    os.kill(measured, signal.SIGSTOP)
    subprocess.run(["sleep", "3"], check=True)
    os.kill(measured, signal.SIGCONT)
    assert ended(process).status == 4
    assert codes(tmp_path / "r") == ["slo-missed"]
    assert "stalled" in doubts(tmp_path / "r")


@pytest.mark.slow
def test_stopping_both_processes_of_a_stream_is_flagged(tmp_path: Path) -> None:
    """A paused container stops both processes; no query is late, because none is issued during the pause."""
    streams = ("--scenario", "single-stream", "--duration", "4s", "--mode", "performance")
    process = start(*streams, "--out", f"{tmp_path}/r")
    wait_until_it_runs(process, tmp_path / "r.partial")
    stopped = [process.pid, *children(process.pid)]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(3)
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    done = ended(process)
    assert done.status == 0, done.said + done.printed
    assert "stalled" in doubts(tmp_path / "r")
    assert check(tmp_path / "r") == []


@pytest.mark.slow
def test_a_process_stopped_for_good_is_reported_as_hung(tmp_path: Path) -> None:
    process = start(*LONG, *SOON, "--out", f"{tmp_path}/r")
    wait_until_it_runs(process, tmp_path / "r.partial")
    (measured,) = children(process.pid)
    os.kill(measured, signal.SIGSTOP)
    assert ended(process).status == 5
    assert codes(tmp_path / "r.partial") == ["hung"]
    assert gone([measured])


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--backend-option", "processes=on")])
def test_the_first_process_of_a_container_runs(more: tuple[str, ...], tmp_path: Path) -> None:
    """Bug: the run ended with status 3, and the measured process exited before its first query."""
    container = ("unshare", "--pid", "--fork", "--mount-proc")
    if subprocess.run([*container, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no right to make a PID namespace here")
    done = run(
        *SERVER, *SHORT, "--mode", "performance", *more, "--out", f"{tmp_path}/r", prefix=container
    )
    assert done.status == 0, done.said + done.printed
    assert result(tmp_path / "r")["queries"]["samples_answered"] == 700


@pytest.mark.slow
def test_a_wall_clock_stepped_in_the_measured_process_is_invalid(tmp_path: Path) -> None:
    env = {**clock_library(tmp_path), "STEP_CLOCK_FILE": str(tmp_path / "step")}
    process = start(
        *SERVER, "--target-qps", "500", "--duration", "4s", "--out", f"{tmp_path}/r", env=env
    )
    wait_until_it_runs(process, tmp_path / "r.partial")
    (tmp_path / "step").write_text("")
    done = ended(process)
    assert done.status == 4
    assert "clock-jumped" in codes(tmp_path / "r")


@pytest.mark.slow
def test_an_affinity_mask_of_one_core_is_one_instance_with_one_thread(tmp_path: Path) -> None:
    one = ("taskset", "-c", str(min(os.sched_getaffinity(0))))
    done = run(*SERVER, *SHORT, "--mode", "performance", "--out", f"{tmp_path}/r", prefix=one)
    assert done.status == 0, done.said + done.printed
    assert "1 instance of 1 thread on 1 core, batch" in done.said
    plan = result(tmp_path / "r")["plan"]
    assert (plan["instances"], plan["threads"], plan["cores"]) == (1, 1, 1)
    assert check(tmp_path / "r") == []
    done = run(*SERVER, *SHORT, "--instances", "2", "--out", f"{tmp_path}/s", prefix=one)
    assert done.status == 2
    assert "2 instances x 1 thread need 2 threads, but 1 can compute at the same time" in done.said
    assert not (tmp_path / "s.partial").exists()


@pytest.mark.slow
def test_a_meter_that_vanishes_in_the_run_gives_a_reason(tmp_path: Path) -> None:
    root = powercap(tmp_path / "powercap")
    counter = root / "intel-rapl:0/energy_uj"
    arguments = (*SERVER, "--target-qps", "500", "--duration", "4s", "--slo", "p99=1s")
    with counting(counter, watts=80.0):
        process = start(*arguments, "--meter", f"rapl={root}", "--out", f"{tmp_path}/r")
        wait_until_it_runs(process, tmp_path / "r.partial")
    counter.unlink()
    done = ended(process)
    assert done.status == 0
    found = result(tmp_path / "r")
    assert found["power"] is None
    assert "rapl:package-0: its readings ended " in found["power_reason"]
    assert "FileNotFoundError" in found["power_reason"]
    assert "power-missing" in doubts(tmp_path / "r")
    assert check(tmp_path / "r") == []
    metrics = (tmp_path / "r/metrics.prom").read_text()
    assert "\nharness_power_watts{" not in metrics
    assert "\nharness_energy_joules_total{" in metrics, "what was counted until then"


@pytest.mark.slow
@pytest.mark.parametrize("meter", ["hwmon", "command"])
def test_a_sensor_that_vanishes_in_the_run_gives_no_power(meter: str, tmp_path: Path) -> None:
    sensor = files(tmp_path / "hwmon/hwmon0", {"name": "board", "power1_input": 9_000_000})
    sensor /= "power1_input"
    loop = f"while [ -e {sensor} ]; do echo 9 W; sleep 0.05; done; exit 3"
    argument = {"hwmon": sensor.parent.parent, "command": f"sh -c {shlex.quote(loop)}"}[meter]
    process = start(
        *SERVER, "--target-qps", "500", "--duration", "4s", "--slo", "p99=1s",
        "--meter", f"{meter}={argument}", "--out", str(tmp_path / "r"),
    )  # fmt: skip
    wait_until_it_runs(process, tmp_path / "r.partial")
    sensor.unlink()
    done = ended(process)
    assert done.status == 0, done.printed + done.said
    found = result(tmp_path / "r")
    assert found["power"] is None
    assert "its readings ended " in found["power_reason"]
    assert "power-missing" in doubts(tmp_path / "r")
    assert check(tmp_path / "r") == []
    metrics = (tmp_path / "r/metrics.prom").read_text()
    assert "\nharness_power_watts{" not in metrics
    assert "\nharness_energy_joules_total{" in metrics


@pytest.mark.slow
def test_power_readings_before_a_signal_are_kept(tmp_path: Path) -> None:
    process = start(*LONG, "--meter", "estimate", "--out", str(tmp_path / "r"))
    wait_until_it_runs(process, tmp_path / "r.partial")
    process.send_signal(signal.SIGINT)
    assert ended(process).status == 130
    assert codes(tmp_path / "r.partial") == ["interrupted"]
    for name in ("power.csv", "host.csv"):
        assert len((tmp_path / "r.partial" / name).read_text().splitlines()) > 2
    told = result(tmp_path / "r.partial")
    assert told["power"] is None
    assert told["power_reason"] == "LoadGen's log does not contain the start and the end of the run"


@pytest.mark.slow
def test_a_results_folder_deleted_during_the_run_loses_no_number(tmp_path: Path) -> None:
    process = start(*SERVER, "--target-qps", "1000", "--duration", "3s", "--out", f"{tmp_path}/r")
    wait_until_it_runs(process, tmp_path / "r.partial")
    shutil.rmtree(tmp_path / "r.partial")
    done = ended(process)
    assert done.status == 4
    assert "cannot be written (No such file or directory)" in done.said
    assert "not-saved" in done.printed
    assert "p99" in done.printed


@pytest.mark.slow
def test_a_full_disk_loses_no_number(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", "200k") as small:
        done = run(*SERVER, "--target-qps", "3000", "--duration", "2s", "--out", f"{small}/r")
        assert done.status == 4
        assert "No space left on device" in done.said
        assert done.printed.startswith("INVALID")
        assert "p99" in done.printed


@pytest.mark.slow
def test_a_full_disk_at_the_report_keeps_the_run(tmp_path: Path) -> None:
    """The disk has room for all measurements, but not for plotly's 4 MB script."""
    pytest.importorskip("plotly")
    with small_disk(tmp_path / "small", "2m") as small:
        done = run(*SERVER, *SHORT, "--mode", "performance", "--out", f"{small}/r")
        assert done.status == 0
        assert result(small / "r")["verdict"] == "VALID"
        line = (
            f"harness: no report: {small}/r/report.html cannot be written: No space left on device"
        )
        assert line in done.said
        assert "report " not in done.printed
        assert check(small / "r") == []
        assert [p.name for p in small.iterdir() if "plotly" in p.name] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_read_only_results_folder_is_reported_in_one_line(tmp_path: Path) -> None:
    """Runs as an unprivileged user, because root can read and write everything."""
    unprivileged(tmp_path)
    (tmp_path / "results").mkdir(mode=0o555)
    done = run(*SERVER, "--out", f"{tmp_path}/results/r", prefix=NOBODY)
    assert done.status == 2
    assert done.said == (
        f"harness: {tmp_path}/results/r.partial cannot be created (Permission denied): pass --out\n"
    )


@pytest.mark.slow
def test_two_runs_started_in_the_same_second_do_not_collide(tmp_path: Path) -> None:
    arguments = (*SERVER, *SHORT, "--mode", "performance")
    script = f"import os, sys; os.chdir({str(tmp_path)!r}); sys.path.insert(0, {str(ROOT)!r}); \
from harness.cli.main import main; sys.exit(main({list(arguments)!r}))"
    both = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in both:
        printed, said = process.communicate(timeout=60)
        assert process.returncode == 0, printed + said
    finished = [p for p in (tmp_path / "results").iterdir() if p.is_dir() and not p.is_symlink()]
    assert len(finished) == 2
