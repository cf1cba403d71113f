"""Clients that watch the run or take its port, and files left behind, must not change the result."""

import json
import re
import socket
import sqlite3
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from harness.results.recheck import check
from tests.faults.command import (
    LIMIT_S,
    SERVER,
    SHORT,
    Ended,
    codes,
    ended,
    only_all,
    result,
    run,
    start,
)

QUICK = ("--mode", "performance", "--backend", "null", *SERVER, *SHORT)


def test_a_requested_port_that_is_taken_ends_the_command(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run(*QUICK, "--metrics", place, "--out", str(tmp_path / "r"))
    assert (done.status, done.printed) == (2, "")
    assert done.said == (
        f"harness: --metrics {place} cannot be used (Address already in use): choose a different address, or use --no-metrics\n"
    )
    assert list(tmp_path.iterdir()) == []


@contextmanager
def _default_port_taken() -> Iterator[None]:
    """Waits until runs of other tests free the port, because those runs might otherwise free the port during this test."""
    deadline = time.monotonic() + LIMIT_S
    server = None
    while server is None:
        with suppress(OSError):
            server = socket.create_server(("127.0.0.1", 9464))
        assert server or time.monotonic() < deadline, "port 9464 was never free"
        time.sleep(0.05)
    with server:
        yield


def test_a_taken_default_port_is_reported_and_the_run_continues(tmp_path: Path) -> None:
    with _default_port_taken():
        done = run(*QUICK, "--out", str(tmp_path / "r"), default_port=True)
    assert done.status == 0, done.printed + done.said
    (told,) = [line for line in done.said.splitlines() if "metrics" in line]
    at = r"http://127\.0\.0\.1:\d+/metrics"
    assert re.fullmatch(rf"harness: metrics at {at}, because port 9464 is taken", told)
    assert "\nharness_run_valid{" in (tmp_path / "r/metrics.prom").read_text()


@pytest.mark.slow
def test_a_start_error_is_the_only_line_if_the_default_port_is_taken(
    tmp_path: Path,
) -> None:
    """Bug: a line about the port appeared before every error."""
    words = ("--metric", "squad_f1", "--mode", "both", "--out", str(tmp_path / "r"))
    with _default_port_taken():
        done = run(*QUICK, *words, default_port=True)
    assert done.status == 2
    (line,) = done.said.splitlines()
    assert line.startswith("harness: metric 'squad_f1' cannot score the model's answers: ")


_Answers = list[bytes]
"""The endpoint's reply to each client that it accepted."""


def _scrapes(host: str, port: int, answers: _Answers) -> None:
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=10) as answer:
        answers.append(answer.read())


def _says_nothing(host: str, port: int, answers: _Answers) -> None:
    with socket.create_connection((host, port), timeout=10) as client:
        # The answer is empty if the endpoint has reached its limit of clients.
        answers.append(client.recv(1))


def _leaves_at_once(host: str, port: int, answers: _Answers) -> None:
    with socket.create_connection((host, port), timeout=10) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
    answers.append(b"")
    time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("client", [_scrapes, *only_all(_says_nothing, _leaves_at_once)])
def test_a_storm_of_clients_changes_nothing(
    client: Callable[[str, int, _Answers], None], tmp_path: Path
) -> None:
    process = start(*QUICK, "--metrics", "127.0.0.1:0", "--out", str(tmp_path / "r"))
    assert process.stderr is not None
    url = urllib.parse.urlsplit(process.stderr.readline().split()[-1])
    answers: _Answers = []

    def storm() -> None:
        while process.poll() is None:
            # The port may not be open yet, may be closed already, or may have too many clients.
            with suppress(OSError):
                client(url.hostname or "", url.port or 0, answers)

    threads = [threading.Thread(target=storm) for _ in range(20)]
    for thread in threads:
        thread.start()
    done = ended(process)
    for thread in threads:
        thread.join()
    assert answers
    assert done.status == 0, done.printed
    assert result(tmp_path / "r")["queries"]["samples_answered"] == 700
    assert check(tmp_path / "r") == []
    completed = [
        line
        for line in (tmp_path / "r/metrics.prom").read_text().splitlines()
        if line.startswith("harness_samples_completed_total{")
    ]
    assert [float(line.split()[-1]) for line in completed] == [700]


def _run_with_full(name: str, out: Path, *more: str) -> Ended:
    """Runs with a disk that lacks the space for one file of the run."""
    process = start(*QUICK, *more, "--out", str(out))
    partial = out.with_name(f"{out.name}.partial")
    while not (partial / "result.json").is_file():
        assert process.poll() is None
        time.sleep(0.005)
    (partial / name).symlink_to("/dev/full")
    return ended(process)


@pytest.mark.slow
def test_a_full_disk_at_the_metrics_loses_no_number(tmp_path: Path) -> None:
    done = _run_with_full("metrics.prom", tmp_path / "r")
    assert done.status == 0, done.printed
    assert [line for line in done.said.splitlines() if "metrics.prom" in line] == [
        (
            f"harness: {tmp_path}/r.partial/metrics.prom was not written (No space left on device): "
            "the run's numbers are in its other files"
        )
    ]
    assert not (tmp_path / "r/metrics.prom").is_symlink()
    assert result(tmp_path / "r")["verdict"] == "VALID"
    assert check(tmp_path / "r") == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["host.csv", "power.csv"])
def test_a_full_disk_at_the_measurements_makes_the_run_invalid(name: str, tmp_path: Path) -> None:
    done = _run_with_full(name, tmp_path / "r", "--meter", "estimate")
    assert done.status == 4
    assert f"{tmp_path}/r.partial cannot be written (No space left on device)" in done.said
    assert "p99" in done.printed
    assert codes(tmp_path / "r.partial") == ["not-saved"]
    assert not (tmp_path / "r").exists()


@pytest.mark.slow
def test_a_locked_database_is_reported_and_the_run_is_whole(
    tmp_path: Path,
) -> None:
    database = tmp_path / "runs.sqlite"
    with closing(sqlite3.connect(database)) as other:
        other.execute("BEGIN EXCLUSIVE")
        done = run(*QUICK, "--out", str(tmp_path / "r"))
    assert done.status == 0, done.printed
    assert [line for line in done.said.splitlines() if "runs.sqlite" in line] == [
        (
            f"harness: {database}: the run was not added (database is locked), so `runs` does not list r"
        )
    ]
    assert result(tmp_path / "r")["verdict"] == "VALID"
    assert check(tmp_path / "r") == []


@pytest.mark.slow
def test_a_database_that_is_unlocked_soon_gets_its_row(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "runs.sqlite")) as other:
        other.execute("BEGIN EXCLUSIVE")
        process = start(*QUICK, "--out", str(tmp_path / "r"))
        # The loop waits for the folder's final name, which comes before the new row in the database.
        while not (tmp_path / "r").is_dir():
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(1)
        other.execute("COMMIT")
        done = ended(process)
    assert done.status == 0, done.printed
    assert "runs.sqlite" not in done.said
    (row,) = json.loads(run("runs", "--results", str(tmp_path), "--format", "json").printed)
    assert (row["folder"], row["verdict"]) == ("r", "VALID")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["text", "folder"])
def test_a_file_that_is_not_a_database_costs_only_the_row(kind: str, tmp_path: Path) -> None:
    database = tmp_path / "runs.sqlite"
    if kind == "text":
        database.write_text("my list of runs")
    else:
        database.mkdir()
    done = run(*QUICK, "--out", str(tmp_path / "r"))
    assert done.status == 0, done.printed
    (line,) = [line for line in done.said.splitlines() if "runs.sqlite" in line]
    assert line.startswith(f"harness: {database}: the run was not added (")
    assert result(tmp_path / "r")["verdict"] == "VALID"
    assert database.is_dir() or database.read_text() == "my list of runs"
