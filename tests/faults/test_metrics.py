"""Whoever watches the run, or takes its port, must not change its outcome."""

import socket
import subprocess
import sys
import threading
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.faults.command import LIMIT_S, ROOT, SERVER, SHORT, ended, result, run, start

QUICK = ("--mode", "performance", "--backend", "null", *SERVER, *SHORT)


def test_a_port_that_was_asked_for_and_is_taken_ends_the_command(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run(*QUICK, "--metrics", place, "--out", str(tmp_path / "r"))
    assert (done.status, done.printed) == (2, "")
    assert done.said == (
        f"harness: --metrics {place}: Address already in use: choose another, or --no-metrics\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_the_default_port_taken_by_another_is_one_line_and_the_run_goes_on(tmp_path: Path) -> None:
    with ExitStack() as held:
        with suppress(OSError):  # by another run on this machine, just as well
            held.enter_context(socket.create_server(("127.0.0.1", 9464)))
        done = subprocess.run(
            [sys.executable, "-m", "harness", *QUICK, "--out", str(tmp_path / "r")],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line for line in done.stderr.splitlines() if "metrics" in line] == [
        (
            "harness: no metrics at 127.0.0.1:9464: Address already in use: "
            "--metrics HOST:PORT serves them elsewhere"
        )
    ]
    assert "\nharness_run_valid{" in (tmp_path / "r/metrics.prom").read_text()


@pytest.mark.slow
def test_a_storm_of_scrapes_changes_nothing(tmp_path: Path) -> None:
    process = start(*QUICK, "--metrics", "127.0.0.1:0", "--out", str(tmp_path / "r"))
    assert process.stderr is not None
    url = process.stderr.readline().split()[-1]
    scraped = []

    def storm() -> None:
        while process.poll() is None:
            try:
                with urllib.request.urlopen(url, timeout=10) as answer:
                    scraped.append(answer.read())
            except OSError:  # the run is over
                return

    threads = [threading.Thread(target=storm) for _ in range(20)]
    for thread in threads:
        thread.start()
    done = ended(process)
    for thread in threads:
        thread.join()
    assert done.status == 0, done.printed
    assert len(scraped) > 20
    assert result(tmp_path / "r")["queries"]["samples_answered"] == 700
