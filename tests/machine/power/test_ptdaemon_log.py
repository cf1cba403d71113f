"""The harness computes the energy from spl.txt with MLPerf's formula, and reports in a note whether the energy is
official.
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from harness.core.units import NS_PER_MS, NS_PER_S
from harness.machine.power.energy import Energy, NoReading, PowerLog
from harness.machine.power.ptdaemon_log import PtdaemonLog
from harness.results.power import NOT_OFFICIAL, OFFICIAL, report
from harness.types import PowerSource

SESSION = "2026-11-21_10-04-11_server_digits"
BEGIN = datetime(2026, 11, 21, 10, 4, 30, 107_000, tzinfo=UTC)
BEGIN_NS = int(BEGIN.timestamp()) * NS_PER_S + 107 * NS_PER_MS
LOGGED = {"power_begin": "11-21-2026 10:04:30.107", "power_end": "11-21-2026 10:04:34.107"}
WINDOW = (BEGIN_NS, BEGIN_NS + 4 * NS_PER_S)


def sample(at_ms: int, watts: float, more: str = "", mark: str = f"{SESSION}_testing") -> str:
    """Returns a line of spl.txt. at_ms: time since the start of the run."""
    at = (BEGIN + timedelta(milliseconds=at_ms)).strftime("%m-%d-%Y %H:%M:%S.%f")[:-3]
    return (
        f"Time,{at},Watts,{watts:.6f},Volts,228.570000,Amps,0.206430,PF,0.486400,Mark,{mark}{more}"
    )


def session(performance: Path, lines: Sequence[str], refused: Sequence[str] = ()) -> PtdaemonLog:
    """Writes the client's files: client.json, and the samples of the testing phase."""
    for name in ("power", "run_1"):
        (performance / name).mkdir(parents=True, exist_ok=True)
    (performance / "power/client.json").write_text(json.dumps({"session_name": SESSION}))
    (performance / "run_1/spl.txt").write_text("\n".join([*lines, "", ""]))
    return PtdaemonLog.from_files({"refused": list(refused)}, performance)


SAMPLES = [sample(ms, watts) for ms, watts in
           [(-600, 90), (400, 20), (1404, 24), (2408, 22), (3412, 26), (4416, 90)]]  # fmt: skip


def test_energy_is_the_mean_of_the_samples_in_the_window_times_its_length(tmp_path: Path) -> None:
    log = session(tmp_path, SAMPLES)
    assert log.energy(WINDOW) == Energy(joules=92.0, mean_watts=23.0, peak_watts=26.0, readings=4)
    assert log.samples[1] == (BEGIN_NS + 400 * NS_PER_MS, 20.0)


def test_a_sample_on_an_end_of_the_window_does_not_count(tmp_path: Path) -> None:
    lines = [sample(0, 90), *SAMPLES[1:5], sample(4000, 90)]
    assert session(tmp_path, lines).energy(WINDOW) == Energy(92.0, 23.0, 26.0, 4)


@pytest.mark.parametrize(
    "more",
    [
        ",Ch1,Watts,11.0,Volts,228.0,Amps,0.1,PF,0.4,Ch2,Watts,12.0,Volts,228.0,Amps,0.1,PF,0.4",
        f",Analyzer1,{SAMPLES[1]},Analyzer2,{SAMPLES[1]}",
    ],
    ids=["channels", "analysers"],
)
def test_the_sum_of_channels_and_analysers_is_read(more: str, tmp_path: Path) -> None:
    lines = [sample(ms, 23, more) for ms in (500, 1500, 2500, 3500)]
    found = session(tmp_path, lines).energy(WINDOW)
    assert found == Energy(92.0, 23.0, 23.0, 4)


def test_one_lost_sample_is_bridged(tmp_path: Path) -> None:
    # In this log, the first sample arrives 2.408 s after the start.
    found = session(tmp_path, SAMPLES[3:]).energy(WINDOW)
    assert found == Energy(96.0, 24.0, 26.0, 2)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([], "spl.txt has no sample between the run's start and end"),
        (SAMPLES[:1], "spl.txt has no sample between the run's start and end"),
        (SAMPLES[:2], "no sample for 3.60 s in the run; at most 2.50 s is allowed"),
        ([*SAMPLES[:2], sample(3412, 26)], "no sample for 3.01 s in the run; at most 2.50 s"),
        ([*SAMPLES[:4], sample(3412, -1)], "1 of the 4 samples in the run are not above 0 W"),
        (["Time,soon,Watts,x"], "ValueError: spl.txt, line 1 is not in PTDaemon's format"),
        (["Time,11-21-2026 10:04:31.000,Watts,5"], "ValueError: spl.txt, line 1 is not in PTDaemon's format"),
        ([SAMPLES[2], SAMPLES[1]], "ValueError: spl.txt, line 2 has an impossible time or power"),
        ([sample(400, float("nan"))], "ValueError: spl.txt, line 1 has an impossible time or power"),
        ([sample(400, 5, mark="x_testing")], "ValueError: spl.txt, line 1 is from a different measurem"),
        ([sample(400, 5, mark=f"{SESSION}_ranging")], "ValueError: spl.txt, line 1 is from a different"),
    ],
)  # fmt: skip
def test_untrustworthy_samples_give_no_reading(
    lines: list[str], reason: str, tmp_path: Path
) -> None:
    found = session(tmp_path, lines).energy(WINDOW)
    assert isinstance(found, NoReading)
    assert found.reason.startswith(reason)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("run_1/spl.txt", None, "spl.txt: No such file or directory"),
        ("power/client.json", None, "client.json: No such file or directory"),
        ("power/client.json", "{", "JSONDecodeError: "),
        ("power/client.json", "{}", "KeyError: 'session_name'"),
        ("power/client.json", "[]", "TypeError: "),
    ],
)
def test_a_missing_or_broken_file_is_the_reason(
    name: str, content: str | None, reason: str, tmp_path: Path
) -> None:
    session(tmp_path, SAMPLES)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_text(content)
    found = PtdaemonLog.from_files({"refused": []}, tmp_path).energy(WINDOW)
    assert isinstance(found, NoReading)
    assert reason in found.reason


def reported(log: PtdaemonLog, others: PowerLog | None = None, *, under_rules: bool = True) -> Any:
    return report(others, LOGGED, 1000, 1000, log, under_rules=under_rules)


def test_only_an_accepted_official_run_has_the_official_note(tmp_path: Path) -> None:
    good = session(tmp_path, SAMPLES)
    assert reported(good)["power"]["note"] == OFFICIAL
    assert reported(good, under_rules=False)["power"]["note"] == (
        "not an MLPerf Power result: a quick run, not under the official rules"
    )
    refused = session(tmp_path, SAMPLES, refused=["Check UUID", "Check session name"])
    assert reported(refused)["power"]["note"] == (
        "not an MLPerf Power result: power-dev's checker reported Check UUID, Check session name"
    )
    assert "not an MLPerf Power result" not in OFFICIAL


def test_the_note_calls_readings_of_other_meters_unofficial(tmp_path: Path) -> None:
    at = [BEGIN_NS + n * 100 * NS_PER_MS for n in range(-2, 43)]
    board = PowerSource("hwmon:board", "board", "W")
    others = PowerLog((board,), {board.name: [(t, 5.0) for t in at]})
    power = reported(session(tmp_path, SAMPLES), others)["power"]
    assert [r["source"] for r in power["readings"]] == ["ptdaemon", "hwmon:board"]
    assert power["note"] == f"{OFFICIAL}; the others are not"
    power = reported(session(tmp_path, []), others)["power"]
    assert [m["source"] for m in power["missing"]] == ["ptdaemon"]
    assert power["note"] == NOT_OFFICIAL


def test_the_reading_has_the_fields_of_other_meters(tmp_path: Path) -> None:
    (reading,) = reported(session(tmp_path, SAMPLES))["power"]["readings"]
    assert reading == {
        "source": "ptdaemon",
        "domain": "everything wired to the analyser: at the wall, the whole system",
        "provenance": "measured",
        "joules": 92.0,
        "mean_watts": 23.0,
        "peak_watts": 26.0,
        "readings": 4,
        "idle_watts": None,
        "joules_per_query": 0.092,
        "joules_per_sample": 0.092,
    }
