"""`submit` with MLCommons' scoring program, if the program fails or is removed later."""

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.submit.plan.finished_run import FinishedRun
from harness.submit.plan.matrix import FAILED, UNSCORED, plan
from tests.builders.submit import generated_data as made
from tests.faults.command import run_here
from tests.stand_ins.fake_submission_runs import CLOSED, make_run, make_runs
from tests.stand_ins.servers import makers
from tests.stand_ins.servers.json_services import serving_json

SCORER = Path(__file__).parents[1] / "stand_ins/reference/accuracy_coco.py"


def names(monkeypatch: pytest.MonkeyPatch, script: Path) -> None:
    monkeypatch.setenv("IMAGE_SCORER", shlex.join([sys.executable, str(script)]))


@pytest.mark.slow
@pytest.mark.limit_s(900)
@pytest.mark.usefixtures("real_runs")
def test_a_failed_scoring_is_repeated_without_a_new_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.coco(tmp_path / "data", 12)
    fails = tmp_path / "accuracy_coco.py"
    fails.write_text("raise SystemExit(1)")
    work = ("--work", str(tmp_path / "work"))
    names(monkeypatch, fails)
    with serving_json(makers.paced(makers.draws(), 0.15)) as url:
        words = [
            *("--rehearsal", "--duration", "1s", "--division", "closed", "--submitter", "LabOrg"),
            *("--system", "box", "--category", "edge", "--benchmark", "stable-diffusion-xl"),
            *("--model", "stable-diffusion-xl", "--url", url),
            *("--backend", "http-json", "--data-dir", str(tmp_path / "data")),
        ]
        first = run_here("submit", "run", *work, *words, "--only", "SingleStream")
        assert first.status == 4, first
        (row,) = [
            r
            for r in run_here("submit", "plan", *work).printed.splitlines()
            if "SingleStream-accuracy" in r
        ]
        assert "unscored" in row
        assert "the program ended with status 1" in row
        again = run_here("submit", "run", *work, "--only", "SingleStream")
        assert again.status == 4
        assert (
            "SingleStream-accuracy already has its answers, which are now scored again"
            in again.said
        )
        names(monkeypatch, SCORER)
        assert run_here("submit", "run", *work).status == 0
    folder = tmp_path / "work/runs/SingleStream-accuracy"
    assert [p.name for p in folder.glob("attempt-*/")] == ["attempt-1"]
    accuracy = json.loads((folder / "attempt-1/result.json").read_text())["accuracy"]
    assert (accuracy["value"], "scored_again" in accuracy) == (31.75, True)

    monkeypatch.delenv("IMAGE_SCORER")
    why = "its samples need a score: IMAGE_SCORER is not set, but MLCommons' accuracy_coco.py computes the score: export IMAGE_SCORER="
    planned = run_here("submit", "plan", *work)
    assert f"`submit pack` refuses it: {why}" in planned.printed
    refused = run_here("submit", "pack", *work)
    assert (refused.status, len(refused.said.splitlines())) == (2, 2), refused
    assert f"SingleStream-TEST01: {why}" in refused.said
    names(monkeypatch, SCORER)
    assert run_here("submit", "pack", *work).status == 0


def test_only_unchanged_answers_are_unscored_and_others_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons = [{"code": "accuracy-failed", "text": "no network"}]
    request = replace(CLOSED, category="edge")
    make_runs(request, tmp_path)
    (row,) = [row for row in plan(request, tmp_path) if row.name == "Offline-accuracy"]
    folder = make_run(row, tmp_path, "", number=2, verdict="INVALID", reasons=reasons)

    def found() -> tuple[str, str]:
        rows = {row.name: row for row in plan(request, tmp_path)}
        return rows["Offline-accuracy"].state, rows["Offline-accuracy"].why

    # The run failed instead of waiting for its score, because top1 needs no program.
    assert found() == (FAILED, "no network")
    monkeypatch.setattr("harness.submit.plan.matrix.is_pending", lambda _folder: True)
    assert found() == (UNSCORED, "no network")
    log = folder / "accuracy/mlperf_log_accuracy.json"
    log.write_text(log.read_text() + "\n")
    monkeypatch.setattr(FinishedRun, "differences", lambda _run, **_: ["the log was changed"])
    assert found() == (FAILED, "its files do not agree: the log was changed")
