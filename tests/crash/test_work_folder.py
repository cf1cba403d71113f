"""After a crash or a disk error at any write of `submit`'s work folder, the remaining files are readable."""

import errno
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.cli.main import main
from harness.core.files import PARTIAL
from harness.core.formats.strict_yaml import write_yaml
from harness.submit.plan import data_size, execute
from harness.submit.plan.attempts import RUNS
from harness.submit.plan.finished_run import FinishedRun
from harness.submit.plan.matrix import DONE, plan
from harness.submit.plan.request import FILE, Request
from harness.submit.plan.request_file import read_request
from tests.builders.submission.trees import TEST01_ROWS
from tests.crash.writes import Act, writes
from tests.stand_ins.fake_submission_runs import ANSWERS, CLOSED, make_run, right_answers

REQUESTS = {
    "open": replace(CLOSED, division="open", category="edge", scenarios=("Offline",)),
    "closed": replace(CLOSED, category="edge", benchmark="whisper", scenarios=("Offline",)),
}
"""Plans for two runs, and for three runs with an audit; `pack` refuses the second plan because of its weights."""

STATUSES = (0, 2, 4)
"""Exit statuses of a verb that reads or continues a work folder: success, or a one-line error."""


def words(request: Request) -> list[str]:
    names = ("division", "submitter", "system", "category", "benchmark")
    options = [word for name in names for word in (f"--{name}", str(getattr(request, name)))]
    runs = ["--model", "digits", "--backend", "ort"]
    return [*options, "--scenarios", ",".join(request.scenarios), *runs, "--target-qps", "2000"]


@pytest.fixture(autouse=True)
def made_up_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the runs with runs that take no time; tests/crash/test_result_folder.py tests the writes of a real run."""
    numbers = count()

    def start(_module: str, arguments: Sequence[str], **_more: Any) -> SimpleNamespace:
        out = Path(arguments[arguments.index("--out") + 1])
        work = out.parents[2]
        scratch = tmp_path / f"scratch-{next(numbers)}"
        row = next(r for r in plan(read_request(work), work) if r.name == out.parent.name)
        answers, now = right_answers(TEST01_ROWS, 50), datetime.now(UTC).isoformat()
        notes = ["random weights"] if row.config.mlperf_model == "whisper" else []
        made = make_run(row, scratch, answers, started=now, not_for_submission=notes)
        partial = out.with_name(out.name + PARTIAL)
        made.rename(partial)
        partial.rename(out)
        return SimpleNamespace(wait=lambda _limit_s: 0)

    monkeypatch.setattr(execute, "start", start)
    monkeypatch.setattr(FinishedRun, "differences", lambda _run, **_: [])
    monkeypatch.setattr(data_size, "samples_of", lambda _config: None)


def submit(work: Path, request: Request) -> list[int]:
    """Returns the exit statuses of `submit run` and `submit pack`."""
    (facts := work.with_name("facts.yaml")).unlink(missing_ok=True)
    write_yaml(facts, ANSWERS)
    pack = ["--describe", str(facts), "--to", str(work / "tree")]
    run = main(["submit", "run", *words(request), "--work", str(work)])
    return [run, main(["submit", "pack", "--work", str(work), *pack])]


def finished(request: Request) -> list[int]:
    return [0, 0 if request.division == "open" else 2]


def files(folder: Path) -> set[Path]:
    """Returns the files that are not empty."""
    return {p.relative_to(folder) for p in folder.rglob("*") if p.is_file() and p.stat().st_size}


def hold(work: Path, whole: Path) -> None:
    """Checks that every verb reads `work`, and that a run or tree that passes equals its counterpart in `whole`."""
    if (work / FILE).is_file():
        assert main(["submit", "plan", "--work", str(work)]) in STATUSES
        for row in plan(read_request(work), work):
            if row.state == DONE:
                assert row.folder is not None
                assert files(row.folder) == files(whole / RUNS / row.name / "attempt-1")
    for tree in (work / "tree", work / f"tree{PARTIAL}"):
        if tree.is_dir():
            status = main(["submit", "check", str(tree)])
            assert status in STATUSES
            assert status or files(tree) == files(whole / "tree")
            assert tree.suffix == PARTIAL or not status


def goes_on(work: Path, request: Request) -> None:
    """Finishes the work with the same commands, which report a half-written tree that blocks them."""
    for rest in ("tree", f"tree{PARTIAL}", "tree-raw"):
        shutil.rmtree(work / rest, ignore_errors=True)
    assert submit(work, request) == finished(request)


def crash_before_each(parent: Path, subject: str, step: int) -> None:
    request, work, snapshots = REQUESTS[subject], parent / "work", parent / "snapshots"
    work.mkdir(parents=True)
    opened: dict[int, Path] = {}

    def keep(number: int, kind: str, path: Path) -> None:
        if number % step == 1 % step:
            shutil.copytree(work, snapshots / str(number))
        if kind == "open":
            opened[number + 1] = path.relative_to(work)

    with writes(work, keep) as seen:
        assert submit(work, request) == finished(request)
    assert len(seen) > 20
    for snapshot in sorted(snapshots.iterdir(), key=lambda path: int(path.name)):
        try:
            hold(snapshot, work)
            half = snapshot / opened.get(int(snapshot.name), "")
            # The test cuts the file, as if the process had died while writing it.
            if half.is_file() and half.stat().st_size:
                os.truncate(half, half.stat().st_size // 2)
                hold(snapshot, work)
            goes_on(snapshot, request)
        except BaseException as e:
            e.add_note(f"before operation {snapshot.name}: {seen[int(snapshot.name) - 1]}")
            raise


def fail_at_each(parent: Path, subject: str, step: int, *, lasting: bool) -> None:
    request, whole = REQUESTS[subject], parent / "whole"
    whole.mkdir(parents=True)
    with writes(whole, lambda *_: None) as seen:
        submit(whole, request)
    for at in range(1, len(seen) + 1, step):
        (work := parent / str(at)).mkdir()
        with writes(work, failing(at, lasting=lasting)):
            assert all(status in STATUSES for status in submit(work, request))
        hold(work, whole)
        goes_on(work, request)


def failing(at: int, *, lasting: bool) -> Act:
    def fail(number: int, kind: str, path: Path) -> None:
        if number == at or (lasting and number > at and kind not in ("os.remove", "os.rmdir")):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    return fail


def test_a_crash_before_a_write_leaves_a_readable_work_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    crash_before_each(tmp_path, "open", step=24)
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("subject", REQUESTS)
def test_a_crash_before_any_write_leaves_a_readable_work_folder(
    subject: str, tmp_path: Path
) -> None:
    crash_before_each(tmp_path, subject, step=1)


@pytest.mark.slow
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from-then-on"])
@pytest.mark.parametrize("subject", REQUESTS)
def test_a_disk_error_at_any_write_is_reported_in_one_line(
    subject: str, lasting: bool, tmp_path: Path
) -> None:
    fail_at_each(tmp_path, subject, 1, lasting=lasting)
