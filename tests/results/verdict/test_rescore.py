"""The verb `score` scores the answers of a run again after the user's scoring program has failed."""

import json
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from harness.core.files import sha256
from harness.results.rescore import is_pending
from harness.results.seal import digests as digests_of_seal
from tests.builders.refusals import refused
from tests.builders.submit import generated_data as made
from tests.faults.command import run_here
from tests.stand_ins.servers import makers
from tests.stand_ins.servers.json_services import serving_json

SCORER = Path(__file__).parents[2] / "stand_ins/reference/accuracy_coco.py"
LOG = "accuracy/mlperf_log_accuracy.json"


def names(monkeypatch: pytest.MonkeyPatch, script: Path) -> None:
    monkeypatch.setenv("IMAGE_SCORER", shlex.join([sys.executable, str(script)]))


def failing(folder: Path) -> Path:
    path = folder / "accuracy_coco.py"
    path.write_text("print('no network'); raise SystemExit(1)")
    return path


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of an accuracy run whose scoring program failed."""
    folder = tmp_path_factory.mktemp("failed")
    made.coco(folder / "data", 4)
    with pytest.MonkeyPatch.context() as monkeypatch, serving_json(makers.draws()) as url:
        names(monkeypatch, failing(folder))
        done = run_here(
            *("--model", "stable-diffusion-xl", "--backend", "http-json", "--url", url),
            *("--scenario", "single-stream", "--mode", "accuracy"),
            *("--data-dir", str(folder / "data"), "--out", str(folder / "run")),
        )
    assert done.status == 4
    return folder / "run"


@pytest.fixture
def run(failed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(failed, tmp_path / "run"))


def digests(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): sha256(p) for p in folder.rglob("*") if p.is_file()}


def test_answers_are_scored_again_and_stay_as_they_were(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = digests(run)
    names(monkeypatch, SCORER)
    assert is_pending(run)
    done = run_here("score", str(run))
    assert (done.status, done.said) == (0, "")
    assert "VALID" in done.printed
    after = digests(run)
    changed = {name for name in before | after if before.get(name) != after.get(name)}
    written = {"result.json", "findings.json", "SHA256SUMS", "accuracy/accuracy.txt"}
    assert changed == {*written, "report.html", "metrics.prom"}
    accuracy = json.loads((run / "result.json").read_text())["accuracy"]
    assert (accuracy["value"], accuracy["scorer"]) == (31.75, f"accuracy_coco.py {sha256(SCORER)}")
    when = json.loads((run / "findings.json").read_text())["scored_again"]
    assert (
        accuracy["scored_again"] == when > json.loads((run / "result.json").read_text())["started"]
    )
    assert run_here("check", str(run)).status == 0
    assert not is_pending(run)
    assert refused("score", str(run)) == [
        f"{run} is not a run in which only the scoring program failed: `check` recomputes the verdict of any run"
    ]


def test_a_run_whose_answers_no_program_can_score_agrees_with_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: `check` derived VALID, because it ignored the stored reason."""

    def answer(_asked: object) -> tuple[int, object]:
        return 200, {"created": 0, "data": [{"b64_json": "bm8gaW1hZ2U="}]}

    made.coco(tmp_path / "data", 4)
    names(monkeypatch, SCORER)
    with serving_json(answer) as url:
        done = run_here(
            *("--model", "stable-diffusion-xl", "--backend", "http-json", "--url", url),
            *("--scenario", "single-stream", "--mode", "accuracy"),
            *("--data-dir", str(tmp_path / "data"), "--out", str(tmp_path / "run")),
        )
    assert (done.status, "answers-unusable" in done.printed) == (4, True), done
    assert run_here("check", str(tmp_path / "run")).status == 0


@pytest.fixture
def scored(run: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    names(monkeypatch, SCORER)
    assert run_here("score", str(run)).status == 0
    return run


@pytest.mark.parametrize(
    ("file", "old", "new", "found"),
    [
        ("accuracy/accuracy.txt", "'CLIP_SCORE': '31.75'", "'CLIP_SCORE': '31.95'", "states 31.95, but the score in result.json contains no such number"),
        ("accuracy/accuracy.txt", "'FID_SCORE': '23.5'", "'FID_SCORE': '23.97'", "states 23.97, but the score"),
        ("accuracy/accuracy.txt", "'CLIP_SCORE': '31.75'", "'CLIP_SCORE': '23.5'", "does not state 31.75, the score in result.json"),
        ("result.json", "31.75", "31.95", "states 31.75, but the score"),
    ],
)  # fmt: skip
def test_an_edited_score_of_a_program_is_found_without_running_it(
    file: str, old: str, new: str, found: str, scored: Path
) -> None:
    """Bug: the line in accuracy.txt was compared with itself, so that a tree with an edited score passed."""
    path = scored / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    digests_of_seal.write(scored)
    done = run_here("check", str(scored))
    assert (done.status, found in done.printed) == (4, True), done.printed


def test_another_failure_of_the_program_changes_nothing(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = digests(run)
    names(monkeypatch, failing(tmp_path))
    done = run_here("score", str(run))
    assert done.status == 4
    assert done.said == (
        f"harness: {run} still has no score: scoring with 'clip-fid' raised ValueError: "
        "IMAGE_SCORER: the program ended with status 1: no network\n"
    )
    monkeypatch.delenv("IMAGE_SCORER")
    assert refused("score", str(run))[0].startswith(
        "IMAGE_SCORER is not set, but MLCommons' accuracy_coco"
    )
    assert digests(run) == before


@pytest.mark.parametrize("name", [LOG, "accuracy/mlperf_log_detail.txt", "config.yaml"])
def test_the_answers_of_a_changed_run_are_not_scored(
    name: str, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names(monkeypatch, SCORER)
    (run / name).write_bytes((run / name).read_bytes() + b"\n")
    before = digests(run)
    lines = refused("score", str(run))
    assert f"{run / name} was changed after the run: its SHA-256 differs from SHA256SUMS" in lines
    assert digests(run) == before


def test_a_score_that_misses_the_target_leaves_the_run_invalid(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    low = tmp_path / "accuracy_coco.py"
    low.write_text(SCORER.read_text().replace("31.75 * share", "3 * share"))
    names(monkeypatch, low)
    assert run_here("score", str(run)).status == 4
    (reason,) = json.loads((run / "result.json").read_text())["reasons"]
    assert reason["code"] == "accuracy-below-target"
    assert run_here("check", str(run)).status == 0


def test_a_score_with_another_time_is_found_by_check(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names(monkeypatch, SCORER)
    assert run_here("score", str(run)).status == 0
    path = run / "result.json"
    content = json.loads(path.read_text())
    content["accuracy"].pop("scored_again")
    path.write_text(json.dumps(content))
    assert "accuracy.scored_again" in run_here("check", str(run)).printed


@pytest.mark.parametrize("codes", [["accuracy-incomplete"], ["accuracy-failed", "log-changed"], []])
def test_only_a_failed_scoring_is_repeated(codes: list[str], run: Path) -> None:
    path = run / "result.json"
    content = json.loads(path.read_text())
    content["reasons"] = [{"code": code, "text": ""} for code in codes]
    path.write_text(json.dumps(content))
    assert not is_pending(run)
