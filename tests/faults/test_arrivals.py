"""Our own scheduler handles the same faults as LoadGen's: wrong files, models that block or raise, and signals."""

import signal
import time
from pathlib import Path

import numpy as np
import pytest

from harness.loadgen.arrival_profiles import lines
from tests.faults.command import (
    FAULTY,
    SERVER,
    SOON,
    assert_nothing_left,
    children,
    codes,
    ended,
    gone,
    only_all,
    result,
    run,
    start,
)
from tests.faults.test_configuration import refused

NULL = (*SERVER, "--backend", "null", "--mode", "performance", "--slo", "p99=1s")


def schedule(folder: Path, queries: int = 700, every_ns: int = 2_000_000) -> Path:
    path = folder / "schedule.csv"
    path.write_text("\n".join(lines(np.arange(queries) * every_ns, "a test")))
    return path


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "has no arrivals"),
        ("0\n1\n0.5\n", "line 3 is earlier than line 2"),
        *only_all(
            ("0\n-1\n", "line 2: '-1' is negative"),
            ("0\nnan\n", "line 2: 'nan' is not a time"),
            ("1e300\n", "line 1: '1e300' is too large"),
            (
                "arrival,sample\n0,1\n1,999\n",
                "sample 999 is not in memory: the performance run holds samples 0 to 499",
            ),
            ("0\n\0\n", "is not a time"),
        ),
    ],
)
def test_a_file_that_cannot_be_replayed_is_reported_in_one_line(
    content: str, told: str, tmp_path: Path
) -> None:
    path = tmp_path / "schedule.csv"
    path.write_text(content)
    (line,) = refused(tmp_path, *SERVER, "--mode", "performance", "--arrivals", str(path))
    assert line.startswith(str(path))
    assert told in line


@pytest.mark.slow
@pytest.mark.parametrize("name", ["none.csv", ".", "/dev/zero"])
def test_a_path_that_is_not_a_file_is_reported_in_one_line(name: str, tmp_path: Path) -> None:
    (line,) = refused(tmp_path, *NULL, "--arrivals", str(tmp_path / name))
    assert line.startswith(f"--arrivals {tmp_path / name} ")


def test_contradictions_are_all_named(tmp_path: Path) -> None:
    path = str(schedule(tmp_path))
    asked = ("--arrivals", path, "--concurrency", "4", "--target-qps", "5", "--duration", "3s")
    assert refused(tmp_path, *SERVER, *asked) == [
        "--arrivals and --concurrency each set when queries arrive: keep one",
        "--arrivals sets when queries arrive: drop --target-qps",
        "--concurrency sets when queries arrive: drop --target-qps",
        "--duration cannot be set with --arrivals: the file sets the duration; --queries N replays its first N arrivals",
    ]
    assert refused(tmp_path, "--scenario", "offline", "--concurrency", "4", "--mlperf") == [
        "--concurrency belongs to --scenario server: drop it for offline",
    ]


WAYS = ["arrivals", *only_all("concurrency")]


def faulty(name: str, way: str, folder: Path, *more: str) -> int:
    asked = {
        "arrivals": ("--arrivals", str(schedule(folder))),
        "concurrency": ("--concurrency", "4", "--queries", "700"),
    }[way]
    words = (*SERVER, "--backend", f"{FAULTY}:{name}", "--mode", "performance", "--slo", "p99=1s")
    done = run(*words, *asked, *more, "--out", str(folder / "r"))
    assert_nothing_left(folder / "r")
    return done.status


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_model_that_raises_answers_all_queries_and_is_invalid(way: str, tmp_path: Path) -> None:
    assert faulty("Raises", way, tmp_path) == 4
    assert codes(tmp_path / "r") == ["batch-failed"]
    assert result(tmp_path / "r")["queries"]["samples_answered"] == 700


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_model_that_blocks_forever_ends_the_run_as_hung(way: str, tmp_path: Path) -> None:
    assert faulty("Blocks", way, tmp_path, *SOON) == 5
    assert codes(tmp_path / "r.partial") == ["hung"]
    assert result(tmp_path / "r.partial")["queries"]["samples_answered"] >= 100


@pytest.mark.slow
@pytest.mark.parametrize("way", ["arrivals", "concurrency"])
def test_measurements_before_the_model_dies_are_kept(way: str, tmp_path: Path) -> None:
    assert faulty("Segfaults", way, tmp_path) == 5
    assert codes(tmp_path / "r.partial") == ["died"]
    content = result(tmp_path / "r.partial")
    assert content["latency_ns"]["source"] == "interrupted, from the journal"


@pytest.mark.slow
def test_a_signal_in_the_run_keeps_what_was_measured(tmp_path: Path) -> None:
    path = schedule(tmp_path, queries=60_000, every_ns=1_000_000)
    process = start(*NULL, "--arrivals", str(path), "--out", str(tmp_path / "r"))
    kept = tmp_path / "r.partial/performance/run_1/schedule.npz"
    while not kept.is_file():
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(1.5)
    measured = children(process.pid)
    process.send_signal(signal.SIGINT)
    assert ended(process).status == 130
    assert codes(tmp_path / "r.partial") == ["interrupted"]
    assert result(tmp_path / "r.partial")["queries"]["samples_answered"] > 0
    assert gone(measured)


@pytest.mark.slow
def test_a_million_arrivals_are_replayed(tmp_path: Path) -> None:
    path = schedule(tmp_path, queries=1_000_000, every_ns=10_000)
    done = run(*NULL, "--arrivals", str(path), "--out", str(tmp_path / "r"))
    assert done.status == 0, done.said + done.printed
    content = result(tmp_path / "r")
    assert content["queries"]["samples_answered"] == 1_000_000
    assert content["throughput_per_s"]["scheduled"] == pytest.approx(100_000)


@pytest.mark.slow
def test_the_first_of_a_million_arrivals_are_replayed(tmp_path: Path) -> None:
    path = schedule(tmp_path, queries=1_000_000)
    done = run(*NULL, "--arrivals", str(path), "--queries", "700", "--out", str(tmp_path / "r"))
    assert done.status == 0, done.said + done.printed
    assert result(tmp_path / "r")["queries"]["samples_answered"] == 700
