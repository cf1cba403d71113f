"""With `--meter ptdaemon`, one command makes a complete session, and each error is one line.

These tests use their own client (tests/stand_ins/power_dev.py); test_ptdaemon_client.py uses power-dev's client.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.cli.main import main
from harness.errors import ConfigError, HarnessError, PluginUnavailable, RunDied, RunInvalid
from harness.machine.power.meters.ptdaemon import USAGE, PtdaemonMeter
from harness.machine.power.ptdaemon_client import PowerClient
from tests.builders.refusals import Said
from tests.stand_ins.power_dev import REFUSES, checkout

ROOT = Path(__file__).parents[3]
RUN = ("--scenario", "single-stream", "--backend", "null", "--mode", "performance")
SHORT = (*RUN, "--queries", "20000", "--no-metrics")


def meter(power_dev: Path) -> tuple[str, str]:
    return "--meter", f"ptdaemon={power_dev},director=127.0.0.1,ntp=ntp.example.com"


def result(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return content


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes a session that power-dev's checker refuses, started next to a foreign folder `harness`."""
    folder = tmp_path_factory.mktemp("session")
    power_dev = checkout(folder / "power-dev", checker=REFUSES)
    (folder / "harness").mkdir()
    (folder / "harness/__init__.py").write_text("raise SystemExit('imported from here')\n")
    with contextlib.chdir(folder):
        assert main([*SHORT, "--quiet", "--out", str(folder / "run"), *meter(power_dev)]) == 0
    return folder / "run"


@pytest.mark.slow
def test_the_workload_imports_nothing_that_its_command_did_not(finished: Path) -> None:
    """Bug: `mlperf-harness`, started next to a folder `harness`, ran the code in that folder."""
    assert f"{sys.executable} -P -m harness " in (finished / "workload.sh").read_text()


def test_session_is_one_result_folder_with_power_of_the_testing_phase(finished: Path) -> None:
    content = result(finished)
    (reading,) = content["power"]["readings"]
    assert (reading["source"], reading["mean_watts"]) == ("ptdaemon", 50.0)
    assert reading["joules"] == pytest.approx(50.0 * content["power"]["seconds"])
    assert (
        content["power"]["note"]
        == "not an MLPerf Power result: power-dev's checker reported Check UUID"
    )
    assert content["verdict"] == "VALID"
    assert content["environment"]["machine"]
    left = {p.relative_to(finished).as_posix() for p in finished.rglob("*")}
    assert left >= {
        "workload.sh", "power-client.log", "power-check.log", "metrics.prom", "host.csv",
        "performance/power/server.json", "performance/ranging/spl.txt",
        "performance/run_1/spl.txt", "performance/run_1/ptd_out.txt",
        "performance/run_1/completions.npz", "ranging/result.json",
    }  # fmt: skip
    assert not left & {"runs", "session"}
    assert (finished.parent / "latest").resolve() == finished
    assert not (finished.parent / "run.partial").exists()


def test_both_phases_are_the_same_load(finished: Path) -> None:
    plans = [
        json.loads((folder / "performance/run_1/run.json").read_text())["plan"]
        for folder in (finished, finished / "ranging")
    ]
    assert plans[0] == plans[1]
    asked, measured = (
        yaml.safe_load((folder / "config.yaml").read_text())
        for folder in (finished / "ranging", finished)
    )
    ptdaemon = measured.pop("meter")
    assert asked == measured
    power_dev = finished.parent / "power-dev"
    assert ptdaemon == [f"ptdaemon={power_dev},director=127.0.0.1:4950,ntp=ntp.example.com"]


def test_check_derives_the_power_again_and_finds_edits(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(finished)]) == 0
    path = finished / "performance/run_1/spl.txt"
    before = path.read_text()
    path.write_text(before.replace("Watts,50.0", "Watts,40.0"))
    try:
        assert main(["check", str(finished)]) == 4
    finally:
        path.write_text(before)
    assert "power.readings: result.json has" in capsys.readouterr().out


def test_the_database_has_the_session_as_one_run(finished: Path, prints: Said) -> None:
    rows = json.loads(prints("runs", "--results", finished.parent, "--format", "json"))
    assert [row["folder"] for row in rows] == ["run"]


def test_all_problems_are_reported_before_the_director_is_contacted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--scenario", "server", "--data-dir", "/nosuch", *meter(tmp_path), *meter(ROOT)]
    assert main([*arguments, "--out", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.splitlines() == [
        (
            f"harness: meter 'ptdaemon': {tmp_path}/ptd_client_server/client.py does not exist: name a "
            "checkout of github.com/mlcommons/power-dev"
        ),
        "harness: meter 'ptdaemon' measures a performance run: add --mode performance",
        "harness: --meter ptdaemon appears twice: keep one",
        "harness: --data-dir /nosuch does not exist",
    ]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            lambda c: (c / "ptd_client_server/client.py").write_text("#"),
            (
                "client.py in {c}/ptd_client_server differs from sources_checksums.json, and the checker "
                "refuses results from changed sources: take a fresh checkout"
            ),
        ),
        (
            lambda c: (c / "ptd_client_server/lib/more.py").write_text("#"),
            "lib/more.py in {c}/ptd_client_server differs from sources_checksums.json, and",
        ),
        (
            lambda c: (c / "compliance/check.py").unlink(),
            "{c}/compliance/check.py does not exist: name a checkout of",
        ),
        (
            lambda c: (c / "compliance/sources_checksums.json").write_text("{"),
            "{c}/compliance/sources_checksums.json cannot be read (Expecting property name",
        ),
        (
            lambda c: (c / "compliance/sources_checksums.json").write_text("[1]"),
            "{c}/compliance/sources_checksums.json cannot be read ('int' object is not iterable",
        ),
        (
            lambda c: (c / "compliance/sources_checksums.json").write_text("[]"),
            "client.py in {c}/ptd_client_server differs from sources_checksums.json",
        ),
    ],
)
def test_a_changed_or_incomplete_checkout_is_refused(
    change: Any, line: str, tmp_path: Path
) -> None:
    made = checkout(tmp_path)
    used = PtdaemonMeter(f"{made},director=host,ntp=host")
    assert list(used.problems()) == []
    change(made)
    (problem,) = used.problems()
    assert problem.startswith(f"meter 'ptdaemon': {line.format(c=made)}")


@pytest.mark.parametrize(
    ("argument", "line"),
    [
        ("", "it needs a checkout of MLCommons' power-dev, a director with PTDaemon and an NTP"),
        ("power-dev", "it needs a checkout of MLCommons' power-dev, a director"),
        (",director=a,ntp=b", "it needs a checkout"),
        ("p,director=a,ntp=b,port=4", "it needs a checkout"),
        ("p,director=a,director=b", "it needs a checkout"),
        ("p,director=a:b:c,ntp=b", "director=a:b:c: write HOST or HOST:PORT, e.g. 192.168.1.2:4950"),
        ("p,director=a:70000,ntp=b", "director=a:70000: write HOST or HOST:PORT"),
        ("p,director=--help,ntp=b", "director=--help: write HOST or HOST:PORT"),
        ("p,director=a,ntp=b:123", "ntp=b:123: write HOST, without a port"),
        ("p,director=a,ntp=-x", "ntp=-x: write HOST, without a port"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_refused_with_the_right_form(argument: str, line: str) -> None:
    with pytest.raises(ConfigError, match=f"^meter 'ptdaemon': {re.escape(line)}") as raised:
        PtdaemonMeter(argument)
    assert "needs" not in line or str(raised.value).endswith(USAGE)


def test_an_argument_is_valid_in_any_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    made = PtdaemonMeter("~/power-dev, director=10.0.0.2:5000, ntp=time.lab")
    assert made.argument == "/home/me/power-dev,director=10.0.0.2:5000,ntp=time.lab"
    assert PtdaemonMeter(made.argument).argument == made.argument


INFO, ERROR = (f"client 2026-11-21 10:04:11,123 [{x}] " for x in ("INFO", "CRITICAL"))
RANGING = INFO + "Running workload in ranging mode\n"


@pytest.mark.parametrize(
    ("output", "status", "has_run", "kind", "line"),
    [
        (
            INFO + "Synchronizing with the server and with ntp.example.com...\n" + ERROR
            + "Handshake failed, expected 'v3', got None\n",
            1, False, ConfigError,
            ("MLPerf Power's client failed before the ranging phase: Handshake failed, expected 'v3', "
            "got None: use the same version of power-dev on both machines"),
        ),
        (
            RANGING + INFO + "Got response: 'Error: the ranging measurement ended too fast'\n"
            + ERROR + "Got an unexpecting response from the server\n",
            1, True, RunInvalid,
            ("MLPerf Power's client failed in the ranging phase: Got an unexpecting response from the "
            "server; Error: the ranging measurement ended too fast: see {log}"),
        ),
        (
            RANGING + "harness: a notice\nharness: no such option\nTraceback (most recent call last):"
            "\nsubprocess.CalledProcessError: Command 'sh /r/workload.sh' returned non-zero exit status 3.\n",
            1, True, PluginUnavailable,
            "the run in the ranging phase ended with status 3: no such option",
        ),
        (
            RANGING + "subprocess.CalledProcessError: Command \"sh '/r 1/workload.sh'\" returned non-zero exit status 137.",
            1, True, RunDied, "the run in the ranging phase ended with status 137",
        ),
        (
            RANGING + INFO + "Running workload in testing mode\n" + ERROR
            + "Could not synchronize with the server\n",
            0, True, RunInvalid,
            ("MLPerf Power's client failed in the testing phase: Could not synchronize with the "
            "server: let both machines' clocks follow one NTP server, or correct ntp="),
        ),
        (RANGING, -9, False, RunInvalid, "MLPerf Power's client failed in the ranging phase: it ended with status -9 and did not write its files: see {log}"),
        ("python: can't open file\n", 2, False, RunInvalid, "MLPerf Power's client failed before the ranging phase: python: can't open file: see {log}"),
    ],
)  # fmt: skip
def test_a_failure_of_the_client_becomes_one_line(
    output: str, status: int, has_run: bool, kind: type[HarnessError], line: str, tmp_path: Path
) -> None:
    log = tmp_path / "power-client.log"
    client = PowerClient(log, quiet=True)
    script = f"import sys; sys.stdout.write({output!r})"
    assert client.run([sys.executable, "-c", script]) == 0
    error = client.failure(status, has_run=has_run)
    assert type(error) is kind
    assert str(error) == line.format(log=log)


def test_a_refused_run_ends_the_session_with_its_own_status(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    power_dev = checkout(tmp_path / "power-dev")
    out = tmp_path / "run"
    arguments = [*SHORT, "--backend", "ort", "--backend-option", "nosuch=1", "--out", str(out)]
    assert main([*arguments, *meter(power_dev)]) == 2
    output = capfd.readouterr().err.splitlines()
    assert output[-1].startswith("harness: the run in the ranging phase ended with status 2: ")
    assert "nosuch" in output[-1]
    assert "harness: the stand-in has no director" in output
    assert not list(tmp_path.glob("run*"))


@pytest.mark.slow
def test_an_invalid_run_is_measured_to_its_end_with_other_meters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    power_dev, out = checkout(tmp_path / "power-dev"), tmp_path / "run"
    arguments = [*SHORT, "--slo", "p90=1ns", "--meter", "estimate", *meter(power_dev), "--json"]
    assert main([*arguments, "--quiet", "--out", str(out)]) == 4
    content = result(out)
    assert json.loads(capsys.readouterr().out)["power"] == content["power"]
    assert "slo-missed" in [r["code"] for r in content["reasons"]]
    power = content["power"]
    found = {row["source"] for row in [*power["readings"], *power["missing"]]}
    assert found == {"ptdaemon", "estimate:cpu"}
    assert power["readings"][0]["mean_watts"] == 50.0
    assert main(["check", str(out)]) == 0


@pytest.mark.slow
def test_ctrl_c_stops_the_client_and_its_run(tmp_path: Path) -> None:
    """The run saves its data and keeps its folder."""
    power_dev, out = checkout(tmp_path / "power-dev"), tmp_path / "run"
    arguments = [*RUN, "--duration", "60s", "--no-metrics", "--out", str(out), *meter(power_dev)]
    words = [sys.executable, "-m", "harness", *arguments]
    with subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        detail = Path(f"{out}.partial/runs/ranging.partial/performance/run_1/mlperf_log_detail.txt")
        deadline = time.monotonic() + 30
        while not detail.is_file():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, output = process.communicate(timeout=30)
    assert process.returncode == 130
    assert output.splitlines()[-2:] == [
        "harness: stopped by SIGINT before the end of the session",
        f"harness: the files written so far are in {out}.partial",
    ]
    stopped = result(detail.parents[2])
    assert stopped["reasons"][0]["code"] == "interrupted"
    left = [p for p in Path("/proc").glob("[0-9]*/cmdline") if _names(p, str(out))]
    assert left == []


def _names(cmdline: Path, text: str) -> bool:
    try:
        return os.fsencode(text) in cmdline.read_bytes() and cmdline.parent.name != str(os.getpid())
    except OSError:
        return False
