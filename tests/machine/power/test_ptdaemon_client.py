"""power-dev's client and server with a stand-in for PTDaemon; needs HARNESS_POWER_DEV=CHECKOUT."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.submit.rules.tree.rounds import load_round
from harness.submit.rules.validate import validate
from tests.stand_ins.ptd_stand_in import NTP_ADDRESS, ntp_server

ROOT = Path(__file__).parents[3]
CHECKOUT = os.environ.get("HARNESS_POWER_DEV", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHECKOUT, reason="HARNESS_POWER_DEV names no checkout of power-dev"),
]

REFUSED = [
    "Check PTD commands and replies",
    "Check errors and warnings from PTD logs",
    "Check PTD configuration",
    "Check debug is disabled on server-side",
]
"""Checks that pass only with a real PTDaemon and a server that does not shorten waits (MLPP_DEBUG)."""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yields an NTP server without ntpdate, so that no program sets this machine's clock."""
    (tmp_path / "bin").mkdir()
    for name in ("ntpdate", "sudo"):
        (tmp_path / "bin" / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    try:
        with ntp_server() as address:
            yield address
    except OSError as e:
        pytest.skip(f"power-dev asks NTP on port 123 only: {e}")


@contextmanager
def director(folder: Path) -> Iterator[tuple[int, "subprocess.Popen[str]"]]:
    """Yields the port and the process of power-dev's server, which uses a stand-in for PTDaemon and short waits."""
    ptd, port = folder / "ptd", free_port()
    ptd.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" "{ROOT}/tests/stand_ins/ptd_stand_in.py" "$@"\n'
    )
    ptd.chmod(0o755)
    conf = folder / "server.conf"
    conf.write_text(
        f"[server]\nntpServer: {NTP_ADDRESS}\nlisten: 127.0.0.1 {port}\n"
        f"[ptd]\nptd: {ptd}\nanalyzerCount: 1\n"
        f"[analyzer1]\nnetworkPort: {free_port()}\ndeviceType: 0\ninterfaceFlag:\ndevicePort: none\n"
    )
    with subprocess.Popen(
        [sys.executable, f"{CHECKOUT}/ptd_client_server/server.py", "-c", str(conf)],
        env={**os.environ, "MLPP_DEBUG": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stderr is not None
        output = []
        for line in server.stderr:
            output.append(line)
            if "Ready to accept" in line:
                break
        else:
            pytest.fail("".join(output))
        reader = threading.Thread(target=server.stderr.read)
        reader.start()
        try:
            yield port, server
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(20)
            reader.join()


def meter(port: int, ntp: str = NTP_ADDRESS) -> tuple[str, str]:
    return "--meter", f"ptdaemon={CHECKOUT},director=127.0.0.1:{port},ntp={ntp}"


RUN = ("--scenario", "single-stream", "--backend", "null", "--mode", "performance")


@pytest.mark.usefixtures("clock")
def test_a_session_measures_the_run_and_the_checker_refuses_the_stand_in(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    with director(tmp_path) as (port, _):
        arguments = [*RUN, "--duration", "4s", "--no-metrics", "--out", str(out), *meter(port)]
        assert main(arguments) == 0, capfd.readouterr().err
    output = capfd.readouterr().err
    phases = re.findall(r"^harness: Running workload in (\w+) mode$", output, re.MULTILINE)
    assert phases == ["ranging", "testing"]
    content = json.loads((out / "result.json").read_text())
    (reading,) = content["power"]["readings"]
    assert reading["source"] == "ptdaemon"
    assert 50 <= reading["mean_watts"] <= 51
    assert reading["joules"] == pytest.approx(reading["mean_watts"] * content["power"]["seconds"])
    assert reading["readings"] >= 2
    assert content["power"]["note"] == (
        f"not an MLPerf Power result: power-dev's checker reported {', '.join(REFUSED)}"
    )
    performance = out / "performance"
    assert sorted(p.name for p in (performance / "power").iterdir()) == sorted(
        ["client.json", "client.log", "ptd_logs.txt", "server.json", "server.log"]
    )
    assert (performance / "ranging" / "spl.txt").is_file()
    counts = [
        json.loads((folder / "performance/run_1/run.json").read_text())["plan"]["query_count"]
        for folder in (out, out / "ranging")
    ]
    assert counts[0] == counts[1]
    assert main(["check", str(out)]) == 0
    place = tmp_path / "tree/closed/LabOrg/results/box/resnet/SingleStream/performance"
    shutil.copytree(performance, place)
    found = {f.rule for f in validate(tmp_path / "tree", load_round()).findings}
    assert {rule for rule in found if rule.startswith("power-")} == {
        # Power-dev's checker also refuses the values that these rules find.
        "power-meter", "power-log", "power-session",
        "power-files",  # the rule concerns the files with the analyser's table and power settings
    }  # fmt: skip


@pytest.mark.usefixtures("clock")
def test_a_rehearsal_with_power_goes_from_plan_to_the_packed_session(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The tree contains the session, and the validator reports only that a stand-in made the session."""
    words = ["--rehearsal", "--duration", "3s", "--division", "open", "--submitter", "LabOrg"]
    words += ["--system", "box", "--category", "edge", "--benchmark", "resnet", "--model", "digits"]
    words += ["--scenarios", "SingleStream", "--work", str(tmp_path / "work")]
    with director(tmp_path) as (port, _):
        assert main(["submit", "run", *words, *meter(port)]) == 0, capfd.readouterr().err
    tree = tmp_path / "tree"
    pack = ["submit", "pack", "--work", str(tmp_path / "work"), "--to", str(tree)]
    assert main(pack) == 4
    rules = [f.rule for f in validate(tree, load_round()).counted(shortened=True)]
    assert set(rules) == {"power-meter", "power-log", "power-session"}
    (performance,) = tree.rglob("performance")
    assert sorted(p.name for p in (performance / "run_1").iterdir()) == [
        "mlperf_log_detail.txt", "mlperf_log_summary.txt", "spl.txt"
    ]  # fmt: skip
    assert "StandIn,no meter" in (performance.parent / "analyzer_table.md").read_text()


@pytest.mark.usefixtures("clock")
def test_director_without_a_server_is_one_line_and_leaves_no_folder(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    assert main([*RUN, "--quiet", "--out", str(tmp_path / "run"), *meter(port)]) == 2
    assert capfd.readouterr().err == (
        "harness: MLPerf Power's client failed before the ranging phase: Could not "
        f"connect to the server 127.0.0.1:{port} [Errno 111] Connection refused: start power-dev's "
        "server.py there, or correct director=\n"
    )
    assert not list(tmp_path.glob("run*"))


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("offset_s", [None, 5.0], ids=["silent", "ahead"])
def test_clocks_that_cannot_be_checked_are_reported_in_one_line(
    offset_s: float | None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    address = "127.0.0.124"
    arguments = [*RUN, "--quiet", "--out", str(tmp_path / "run")]
    with director(tmp_path) as (port, _):
        if offset_s is None:
            status = main([*arguments, *meter(port, address)])
        else:
            with ntp_server(address, offset_s):
                status = main([*arguments, *meter(port, address)])
    (line,) = capfd.readouterr().err.splitlines()
    assert status == 2
    assert line.startswith("harness: MLPerf Power's client failed before the ranging phase: ")
    assert "Could not synchronize" in line
    assert line.endswith(": let both machines' clocks follow one NTP server, or correct ntp=")
    assert not list(tmp_path.glob("run*"))


@pytest.mark.usefixtures("clock")
def test_a_director_whose_ptdaemon_does_not_start_is_reported_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    with director(tmp_path) as (port, _):
        (tmp_path / "ptd").write_text("#!/bin/sh\nexit 1\n")
        assert main([*RUN, "--quiet", "--no-metrics", "--out", str(out), *meter(port)]) == 4
    assert capfd.readouterr().err.splitlines() == [
        f"harness: the files written so far are in {out}.partial",
        (
            "harness: MLPerf Power's client failed in the ranging phase: The server is disconnected: see "
            f"{out}.partial/power-client.log"
        ),
    ]
    assert (tmp_path / "run.partial" / "power-client.log").is_file()


@pytest.mark.usefixtures("clock")
def test_a_director_that_dies_in_the_testing_phase_loses_no_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    runs = tmp_path / "run.partial" / "runs"
    arguments = [*RUN, "--duration", "2s", "--quiet", "--no-metrics", "--out", str(out)]

    def kill() -> None:
        deadline = time.monotonic() + 60
        while not (runs / "testing.partial").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        server.kill()

    with director(tmp_path) as (port, server):
        killer = threading.Thread(target=kill)
        killer.start()
        assert main([*arguments, *meter(port)]) == 4
        killer.join()
    assert capfd.readouterr().err.splitlines()[-1] == (
        "harness: MLPerf Power's client failed in the testing phase: The server is disconnected: see "
        f"{out}.partial/power-client.log"
    )
    verdicts = [json.loads((runs / r / "result.json").read_text())["verdict"]
                for r in ("ranging", "testing")]  # fmt: skip
    assert verdicts == ["VALID", "VALID"]
