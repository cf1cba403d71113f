"""After a crash or a disk error at any write of a result folder, the remaining files are readable."""

import contextlib
import errno
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.cli.main import main
from harness.core.files import read_json
from harness.errors import HarnessError
from harness.results import database
from harness.results.recheck import check
from harness.results.seal.digests import SEAL
from tests.builders.result import stored_result
from tests.crash.writes import Act, writes
from tests.simulation.simulated import CLOSED, Fault, World, simulate

ROOT = Path(__file__).parents[2]
STATUSES = (0, 2, 3, 4)
"""Exit statuses of a verb that reads a folder: success, or a one-line error."""


def run_in(results: Path, act: Act, subject: str, fault: Fault) -> int:
    """Writes one simulated run to results/run, and returns the number of file operations."""
    with writes(results, act) as seen, contextlib.suppress(HarnessError):
        simulate(World(subject, 0, fault), results / "run")
    return len(seen)


def verdict(run: Path) -> str | None:
    path = run / "result.json"
    return str(read_json(path)["verdict"]) if path.is_file() else None


def differences(run: Path) -> list[str]:
    """Returns the differences except those in dates, because the repeated log has the dates of the golden run."""
    return [line for line in check(run) if " in LoadGen's log" not in line]


def hold(results: Path, *, pages: bool) -> None:
    """Checks that every verb reads the files in `results`, and that no incomplete run is VALID."""
    assert main(["runs", "--results", str(results)]) == 0
    for run in [results / "run", results / "run.partial"]:
        if not run.is_dir():
            continue
        status = main(["check", str(run)])
        assert status in STATUSES
        if verdict(run) == "VALID" and run.suffix == ".partial":
            lines = differences(run)
            # A VALID run may still lack its seal, because the harness writes the seal last.
            assert lines == [] or any(SEAL in line for line in lines)
        elif verdict(run) == "VALID":
            assert differences(run) == []
        if pages:
            assert main(["report", str(run), "--out", str(results / "page.html")]) in STATUSES
            assert main(["compare", str(run), str(run)]) in STATUSES


def works_again(results: Path) -> None:
    """Checks that the next run writes to the same results folder and adds its row to the same database."""
    finished = simulate(World(CLOSED, 1, Fault()), results / "next")
    assert finished.status == 0
    assert "next" in {row["folder"] for row in database.newest_first(results)}


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_a_crash_before_any_write_leaves_a_readable_folder(
    step: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A process that is killed at an operation leaves the folder as it was on the disk before the operation."""
    results, snapshots = tmp_path / "results", tmp_path / "snapshots"
    results.mkdir()
    torn: dict[int, Path] = {}

    def keep(number: int, kind: str, path: Path) -> None:
        shutil.copytree(results, snapshots / str(number), symlinks=True)
        if kind == "open":
            torn[number + 1] = path.relative_to(results)

    count = run_in(results, keep, "server", Fault())
    assert count > 40
    for number in range(1, count + 1, step):
        kept = snapshots / str(number)
        hold(kept, pages=number % 3 == 0)
        half = kept / torn.get(number, "")
        # The test cuts the file, as if the process had died while writing it.
        if half.is_file() and half.stat().st_size:
            os.truncate(half, half.stat().st_size // 2)
            hold(kept, pages=True)
        if number % 8 == 1:
            works_again(kept)
    assert "Traceback" not in capsys.readouterr().err
    hold(results, pages=True)
    assert verdict(results / "run") == "VALID"


def fail_at(
    results: Path, at: int, number_of: int, fault: Fault, *, lasting: bool, subject: str
) -> None:
    def fail(number: int, kind: str, path: Path) -> None:
        if number == at or (lasting and number > at and kind != "os.remove"):
            if kind == "sqlite3.connect":
                raise sqlite3.OperationalError("database or disk is full")
            raise OSError(number_of, os.strerror(number_of), str(path))

    run_in(results, fail, subject, fault)
    hold(results, pages=False)
    if verdict(results / "run") == "VALID":
        assert differences(results / "run") == []
    works_again(results)


def fail_at_each(parent: Path, subject: str, fault: Fault, *, lasting: bool, step: int) -> None:
    (parent / "whole").mkdir()
    count = run_in(parent / "whole", lambda *_: None, subject, fault)
    for at in range(1, count + 1, step):
        results = parent / str(at)
        results.mkdir()
        number_of = (errno.ENOSPC, errno.EIO)[at % 2]
        try:
            fail_at(results, at, number_of, fault, lasting=lasting, subject=subject)
        except BaseException as e:
            e.add_note(f"operation {at} of {count} failed")
            raise


each_error = pytest.mark.parametrize("lasting", [False, True], ids=["once", "from-then-on"])


@each_error
def test_a_disk_error_at_a_write_is_reported_in_one_line(tmp_path: Path, lasting: bool) -> None:
    fail_at_each(tmp_path, CLOSED, Fault(), lasting=lasting, step=6)


@pytest.mark.slow
def test_a_full_disk_does_not_hide_why_a_model_was_not_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: the traceback of the failed write replaced the error of the plug-in."""
    fail_at_each(tmp_path, CLOSED, Fault("error", step=2, status=3), lasting=True, step=2)
    assert (
        "cannot be written (Input/output error): pass a different --out" in capsys.readouterr().err
    )


def test_a_full_disk_does_not_hide_a_bug_of_the_harness(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: the OSError of the last write replaced the error that the harness must report."""
    received: list[str] = []

    def note(message: dict[str, Any]) -> dict[str, Any]:
        received.append(message["event"])
        return message

    def fail(_number: int, _kind: str, path: Path) -> None:
        if "error" in received:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    world = World(CLOSED, 0, Fault("error", step=40, status=1), note)
    with (
        writes(tmp_path, fail),
        pytest.raises(RuntimeError, match="the measured process failed"),
    ):
        simulate(world, tmp_path / "run")
    assert "cannot be written (No space left on device)" in capsys.readouterr().err


FAULTS = (
    Fault(),
    Fault("error", step=2, status=2),
    Fault("error", step=2, status=3),
    Fault("error", step=40, status=3),
    Fault("die", step=40, status=-9),
    Fault("die", step=8, status=-9, phase=1),
)


@pytest.mark.slow
@each_error
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_disk_error_at_any_write_during_any_fault_is_handled(
    tmp_path: Path, lasting: bool, fault: Fault
) -> None:
    fail_at_each(tmp_path, "server", fault, lasting=lasting, step=1)


KILLED = """\
import os, signal, sys
from pathlib import Path
from harness.cli.main import main
from tests.crash.writes import writes

results, at = Path(sys.argv[1]), int(sys.argv[2])

def kill(number, kind, path):
    if number == at:
        os.kill(os.getpid(), signal.SIGKILL)

with writes(results, kill) as seen:
    words = "--scenario server --concurrency 2 --queries 64 --slo p90=5s --mode performance"
    main([*words.split(), "--no-metrics", "--quiet", "--out", str(results / "run")])
print(len(seen))
"""


def killed_at(results: Path, at: int) -> int:
    """Starts one real run and kills its supervisor at operation `at`. If `at` is 0, lets the run finish and returns its
    number of operations.
    """
    results.mkdir()
    command = [sys.executable, "-c", KILLED, str(results), str(at)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == (-signal.SIGKILL if at else 0), done.stderr
    hold(results, pages=True)
    works_again(results)
    return int(done.stdout.split()[-1]) if not at else 0


@pytest.mark.parametrize("at", [14])
@pytest.mark.slow
def test_a_killed_supervisor_leaves_a_readable_folder(at: int, tmp_path: Path) -> None:
    killed_at(tmp_path / "results", at)
    assert verdict(tmp_path / "results" / "run.partial") == "INVALID"


@pytest.mark.slow
def test_a_supervisor_killed_at_any_write_leaves_a_readable_folder(tmp_path: Path) -> None:
    count = killed_at(tmp_path / "whole", 0)
    for at in range(1, count + 1):
        killed_at(tmp_path / str(at), at)


ADDS = """\
import sys
from pathlib import Path
from harness.results import database
from tests.builders.result import stored_result

for number in range(100_000):
    database.add(Path(sys.argv[1]), f"run-{number}", stored_result(f"2026-11-22T00:00:{number:08}"))
    print(number, flush=True)
"""


def test_a_killed_writer_leaves_every_row_that_it_had_added(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ADDS, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for _ in range(25):
            writer.stdout.readline()
        writer.kill()
        last = [int(number) for number in writer.stdout.read().split()]
    rows = {row["folder"] for row in database.newest_first(tmp_path)}
    assert rows == {f"run-{number}" for number in range(len(rows))}
    assert len(rows) > max(last, default=23)
    database.add(tmp_path, "after", stored_result("2026-11-23T00:00:00"))
    assert len(database.newest_first(tmp_path)) == len(rows) + 1
