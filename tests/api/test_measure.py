"""A run started from Python works in any thread, prints nothing, and raises errors as exceptions."""

import json
import logging
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from harness import Result, RunConfig, measure, read_run
from harness.errors import ConfigError, RunDied
from tests.faults.command import LIMIT_S, ROOT


def quick(out: Path, **changed: object) -> RunConfig:
    return RunConfig.of(
        **{
            "scenario": "server",
            "backend": "null",
            "mode": "performance",
            "target_qps": 200,
            "queries": 100,
            "slo": "p90=5s",
            "out": out,
            **changed,
        }
    )


def test_a_run_in_a_thread_matches_its_folder_and_prints_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    results: list[Result] = []
    config = quick(tmp_path / "run", performance_count=10**6)
    with caplog.at_level(logging.INFO, "harness"):
        thread = threading.Thread(target=lambda: results.append(measure(config)))
        thread.start()
        thread.join(LIMIT_S)
    (run,) = results
    assert capfd.readouterr() == ("", "")
    assert any("all are loaded" in record.message for record in caplog.records)
    assert run.verdict == "VALID", run.reasons
    assert run.content == read_run(run.folder).content
    assert run.content == json.loads((tmp_path / "run/result.json").read_text())
    assert len(run.latencies_ns) == 100
    assert run.latency_ns["max"] == pytest.approx(run.latencies_ns.max(), rel=0.5)
    assert not (run.folder / "report.html").exists()


def test_options_accept_file_syntax_and_report_all_problems_at_once() -> None:
    config = RunConfig.of(scenario="server", duration="3s", slo="p99=20ms", meter=["rapl"])
    assert (config.duration_ns, [*map(str, config.slo)]) == (3_000_000_000, ["p99=20ms"])
    assert config.meter == (("rapl", ""),)
    with pytest.raises(ConfigError) as raised:
        RunConfig.of(scenario="server", duration="3", target="x", pin="yes")
    assert str(raised.value).splitlines() == [
        "RunConfig.of: duration: '3' is not a duration: write it with its unit, e.g. 500us, 15ms, 2s",
        "RunConfig.of: unknown key 'target': did you mean 'target_qps'?",
        "RunConfig.of: pin: 'yes' is neither true nor false",
    ]


def test_errors_before_the_run_raise_and_leave_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no backend named 'nul': did you mean 'null'"):
        measure(quick(tmp_path / "run", backend="nul"))
    with pytest.raises(ConfigError, match=r"^measure\(\) cannot run a session of --meter ptdaemon"):
        measure(quick(tmp_path / "run", meter=["ptdaemon=localhost:1"]))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_run_that_dies_raises_an_exception_naming_its_folder(tmp_path: Path) -> None:
    config = quick(tmp_path / "run", backend="tests.faults.faulty:Segfaults")
    with pytest.raises(RunDied, match=rf"the measured process .*: see {tmp_path}/run\.partial$"):
        measure(config)


@pytest.mark.slow
def test_an_invalid_run_is_a_result(tmp_path: Path) -> None:
    run = measure(quick(tmp_path / "run", slo="p99=1ns"))
    assert run.verdict == "INVALID"
    assert run.reasons


@pytest.mark.slow
def test_ctrl_c_keeps_the_folder_and_raises_keyboard_interrupt(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, signal, threading, time\n"
        "from harness import RunConfig, measure\n"
        "config = RunConfig.of(scenario='server', backend='null', mode='performance',\n"
        "    target_qps=100, duration='60s', slo='p90=5s', out='run')\n"
        "def interrupt():\n"
        "    while not [*pathlib.Path('run.partial').glob('performance/run_1/mlperf_log_*')]:\n"
        "        time.sleep(0.1)\n"
        "    time.sleep(2)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "threading.Thread(target=interrupt, daemon=True).start()\n"
        "try:\n"
        "    measure(config)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("interrupted\n", "")
    content = json.loads((tmp_path / "run.partial/result.json").read_text())
    assert [reason["code"] for reason in content["reasons"]] == ["interrupted"]
