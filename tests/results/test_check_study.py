"""On a study's folder, `check` checks the seal of the study and then each run in it."""

import shutil
from pathlib import Path

import pytest

from harness.cli.comparisons import _new_folder
from harness.explain.profile import job as _profile
from harness.results import recheck, run_folder
from harness.results.seal import digests
from harness.run.study import Study
from harness.search import repeats
from harness.search.grid import job as _grid
from harness.search.overhead import job as _overhead
from harness.search.peak import job as _peak
from harness.search.runtimes import job as _runtimes
from harness.search.sweep import job as _sweep
from harness.search.tune import job as _tune
from harness.search.workers import job as _workers
from tests.builders.edited import edit
from tests.builders.refusals import Said
from tests.golden.make_runs import FOLDERS

VALID = "result.json agrees with the files; the run is VALID"


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Returns a --repeats folder with two golden runs in it."""
    folder = tmp_path / "all"
    for number, name in enumerate(("closed-loop", "closed-loop-again"), 1):
        shutil.copytree(FOLDERS / name, folder / f"run-{number}")
    (folder / run_folder.REPEATS).write_text('{"numbers": {}}')
    digests.write(folder)
    return folder


def test_every_study_is_known_by_its_file() -> None:
    assert all((_grid, _overhead, _peak, _profile, _runtimes, _sweep, _tune, _workers, repeats))
    ours = [one for one in Study.__subclasses__() if one.__module__.startswith("harness.")]
    assert {one.file for one in ours} == {*run_folder.STUDIES}


def test_check_of_a_study_checks_each_run(study: Path, prints: Said) -> None:
    """Bug: on the folder of a sweep, a grid or --repeats, `check` asked whether it is a run's folder."""
    assert prints("check", study).splitlines() == [
        f"{study}: its files match SHA256SUMS",
        f"{study}/run-1: {VALID}",
        f"{study}/run-2: {VALID}",
    ]


def test_an_edited_table_of_a_study_is_found(study: Path, prints: Said) -> None:
    """Bug: the files of a study had no seal."""
    (study / run_folder.REPEATS).write_text('{"numbers": {"p99": 1}}')
    first, *others = prints("check", study, status=4).splitlines()
    assert first.startswith(f"{study}/repeats.json was changed after the run")
    assert others == [f"{study}/run-1: {VALID}", f"{study}/run-2: {VALID}"]


def test_change_in_a_run_of_a_study_is_reported_once(study: Path, prints: Said) -> None:
    path = study / "run-1" / run_folder.RESULT
    edit(path, lambda said: said["latency_ns"].update(p99=1))
    (study / "run-2" / "findings.json").write_text("[]")
    edit(study / "run-2/result.json", lambda said: said.update(accuracy={"value": 1}))
    out = prints("check", study, status=4)
    assert out.count(f"{path} was changed after the run") == 1
    assert "\nlatency_ns.p99: result.json has 1, but the files have" in out
    assert f"{study}/run-2/findings.json is not" in out


def test_a_study_without_a_seal_differs_and_its_broken_runs_are_left_out(
    study: Path, prints: Said
) -> None:
    digests.remove(study)
    (study / "run-1" / run_folder.CONFIG).unlink()
    assert prints("check", study, status=4).splitlines() == [
        f"{study} has no SHA256SUMS, which every finished run or study has",
        f"{study}/run-2: {VALID}",
    ]


@pytest.mark.parametrize(
    ("code", "count"), [("slo-missed", 1), ("did-not-finish", 0), ("not-saved", 0)]
)
def test_an_invalid_run_has_a_seal_unless_it_was_killed(code: str, count: int, study: Path) -> None:
    """Bug: the seal of an INVALID run could be removed unnoticed."""
    run = study / "run-1"
    digests.remove(run)
    stored = {"verdict": "INVALID", "reasons": [{"code": code, "text": ""}]}
    assert len(list(recheck._seal_differences(run, stored))) == count


@pytest.mark.parametrize("broken", [{"reasons": 3}, {"reasons": [None]}, {"accuracy": [1]}])
def test_a_malformed_result_is_reported_without_traceback(
    broken: dict[str, object], study: Path, prints: Said
) -> None:
    path = study / "run-1" / run_folder.RESULT
    edit(path, lambda said: said.update(broken))
    digests.remove(study / "run-1")
    assert f"{path} was changed after the run" in prints("check", study, status=4)


def test_a_rerun_is_outside_every_sealed_folder(study: Path, tmp_path: Path) -> None:
    """Bug: `rerun` of a probe wrote into the folder of `peak`, and thereby broke its seal."""
    assert _new_folder(study / "run-1", "rerun") == tmp_path / "all-run-1-rerun"
    (tmp_path / "all-run-1-rerun").mkdir()
    assert _new_folder(study / "run-1", "rerun") == tmp_path / "all-run-1-rerun-2"
    digests.remove(study)  # a killed sweep has no digests, and its runs are its points
    assert _new_folder(study / "run-1", "rerun") == tmp_path / "all-run-1-rerun-2"
    assert _new_folder(study, "rerun") == tmp_path / "all-rerun"
