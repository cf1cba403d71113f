"""Finished runs become the round's tree, but some runs are never packed."""

import errno
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.cli.main import main
from harness.errors import ConfigError, UnusableAnswer
from harness.loadgen.logs import ACCURACY, DETAIL
from harness.results.verdict.score import of_some
from harness.submit.pack.describe import read_answers_file, template
from harness.submit.pack.pack import Packed, pack
from harness.submit.plan.matrix import UNSCORED, plan
from harness.submit.plan.request import Request
from harness.submit.plan.request_file import write_request
from harness.submit.rules.rows import CUT
from harness.submit.rules.tree.verify import PASS
from harness.submit.rules.validate import validate
from harness.types import Score
from tests.builders.refusals import refusal, refusals
from tests.builders.submission.trees import ROUND, SAMPLES, TEST01_ROWS
from tests.stand_ins.fake_submission_runs import (
    ANSWERS,
    CLOSED,
    SLEPT,
    make_run,
    make_runs,
    right_answers,
)

SCENARIOS = ("SingleStream", "MultiStream", "Server", "Offline")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("work")
    make_runs(CLOSED, folder)
    return folder


def packed(request: Request, work: Path, out: Path, answers: Mapping[str, Any] = ANSWERS) -> Packed:
    return pack(request, plan(request, work), answers, out, None)


def test_a_closed_submission_keeps_every_rule(work: Path, tmp_path: Path) -> None:
    found = packed(CLOSED, work, tmp_path / "tree")
    checked = validate(found.tree, ROUND, raw=found.raw)
    assert [f.lines() for f in checked.findings] == []
    assert checked.results == [f"closed/LabOrg/results/box/resnet/{s}" for s in sorted(SCENARIOS)]


def test_package_holds_only_requested_files(work: Path, tmp_path: Path) -> None:
    found = packed(CLOSED, work, tmp_path / "tree")
    names = {p.name for p in found.tree.rglob("*") if p.is_file()}
    kinds = ("performance", "accuracy", "TEST01", "TEST04")
    runs = {f"{s}-{k}.yaml" for s in SCENARIOS for k in kinds}
    assert names == runs | {
        "box.json", "calibration.md", "digits.yaml", "README.md", "measurements.json", "user.conf",
        "mlperf_log_detail.txt", "mlperf_log_summary.txt", "mlperf_log_accuracy.json",
        "accuracy.txt", "verify_accuracy.txt", "verify_performance.txt", "TEST01.config",
        "TEST04.config",
    }  # fmt: skip
    text = (found.tree / "closed/LabOrg/results/box/resnet/Server/README.md").read_text()
    assert "    python -m harness --config src/resnet/Server-performance.yaml\n" in text
    audit = "--config src/resnet/Server-TEST01.yaml --audit src/resnet/TEST01.config"
    assert f"    python -m harness {audit}\n" in text
    assert str(work) not in text


def test_logs_are_truncated_and_the_whole_ones_kept_outside(work: Path, tmp_path: Path) -> None:
    found = packed(CLOSED, work, tmp_path / "tree")
    inside = "closed/LabOrg/results/box/resnet/Offline/accuracy"
    shown = (found.tree / inside / ACCURACY).read_bytes()
    whole = (found.raw / inside / ACCURACY).read_bytes()
    head, _, tail = shown.partition(CUT)
    assert whole == right_answers(SAMPLES).encode()
    assert whole.startswith(head)
    assert whole.endswith(tail)
    assert len(head) == len(tail) == 4096


def test_system_is_read_from_the_machine_and_the_rest_is_requested(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = packed(CLOSED, work, tmp_path / "tree")
    system = json.loads((found.tree / "closed/LabOrg/systems/box.json").read_text())
    assert set(system) == set(ROUND.system_keys.required)
    assert system["host_processor_model_name"] == "A 'fast' CPU"
    assert system["host_memory_capacity"] == "32 GiB"
    assert (system["accelerators_per_node"], system["cooling"]) == ("0", "air")
    assert int(system["host_processors_per_node"]) >= 1
    given = {k: v for k, v in ANSWERS.items() if k not in ("cooling", "retraining")}
    with pytest.raises(ConfigError) as raised:
        packed(CLOSED, work, tmp_path / "other", given)
    assert [line.split()[0] for line in str(raised.value).splitlines()] == ["cooling", "retraining"]
    assert 'cooling: ""  # e.g. air' in capsys.readouterr().out


def test_the_template_is_a_file_that_is_read(tmp_path: Path) -> None:
    path = tmp_path / "describe.yaml"
    path.write_text(template())
    assert read_answers_file(path, ROUND) == {}
    assert set(yaml.safe_load(template())) > set(ANSWERS)
    path.write_text("coolling: air\n")
    with pytest.raises(ConfigError, match="unknown keys coolling"):
        read_answers_file(path, ROUND)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"not_for_submission": ["random weights"]}, "Server-performance: random weights"),
        ({"not_for_submission": ["synthetic data"]}, "Server-accuracy: synthetic data"),
        ({"not_for_submission": ["null backend: no model"]}, "Server-TEST01: null backend"),
        ({"not_for_submission": ["a quick run"]}, "Offline-TEST04: a quick run"),
        (
            {"backend_description": {"framework": "none"}},
            "Server-TEST01: its backend reports no framework",
        ),
    ],
)
def test_run_not_for_submission_is_refused(
    changed: Mapping[str, Any], told: str, tmp_path: Path
) -> None:
    make_runs(CLOSED, tmp_path, **changed)
    lines = refusals(packed, CLOSED, tmp_path, tmp_path / "tree")
    assert any(told in line for line in lines)
    assert len(lines) == 16
    assert not (tmp_path / "tree.partial").exists()


def test_a_backend_that_sleeps_is_refused(tmp_path: Path) -> None:
    note = "its backend waited instead of computing: the run's own note"
    make_runs(CLOSED, tmp_path, not_for_submission=[note], **SLEPT)
    lines = refusals(packed, CLOSED, tmp_path, tmp_path / "tree")
    assert len(lines) == 16
    assert lines[0].startswith(
        "SingleStream-performance: its backend waited instead of computing: it computed or waited "
        "for a core for 10.0 % of"
    )
    packed(CLOSED, tmp_path, tmp_path / "tree", {**ANSWERS, "accelerators_per_node": "2"})


@pytest.mark.slow
def test_computing_backend_is_not_refused_as_a_sleeping_one(tmp_path: Path) -> None:
    """Bug: time spent waiting for a core was counted as sleep."""
    make_runs(CLOSED, tmp_path / "a", **{**SLEPT, "measured_process": {"cpu_s_per_query": 600e-6}})
    packed(CLOSED, tmp_path / "a", tmp_path / "tree")
    waiting = {"cpu_s_per_query": 60e-6, "busy_over_infer": 0.3}
    make_runs(CLOSED, tmp_path / "b", **{**SLEPT, "measured_process": waiting})
    packed(CLOSED, tmp_path / "b", tmp_path / "other")


def test_failed_packing_leaves_nothing_behind(tmp_path: Path) -> None:
    request = replace(CLOSED, division="open")
    make_runs(request, tmp_path / "work")
    log = tmp_path / "work/runs/Server-accuracy/attempt-1/accuracy" / ACCURACY
    answers = log.read_bytes()
    log.unlink()
    with pytest.raises(ConfigError, match=f"^{log} cannot be read or written \\(No such file"):
        packed(request, tmp_path / "work", tmp_path / "tree")
    assert [p.name for p in tmp_path.iterdir()] == ["work"]
    log.write_bytes(answers)
    packed(request, tmp_path / "work", tmp_path / "tree")


def test_a_full_disk_is_named_as_the_cause(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: the advice was to correct the permissions."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "there")

    monkeypatch.setattr("harness.submit.pack.pack.copy_logs", full)
    line = refusal(packed, CLOSED, work, tmp_path / "tree")
    assert line.endswith("No space left on device): free some space, or pass a different --to")


def test_data_that_were_moved_are_named_once(tmp_path: Path) -> None:
    """Bug: the advice was to remove each accuracy run, although only the data had been moved."""
    data = tmp_path / "data"
    data.mkdir()
    request = replace(CLOSED, options={**CLOSED.options, "data_dir": str(data)}, division="open")
    make_runs(request, tmp_path / "work")
    data.rmdir()
    told = refusals(packed, request, tmp_path / "work", tmp_path / "tree")
    assert told == [f"--data-dir {data} does not exist: restore it"]


def test_a_rehearsal_whose_score_can_be_computed_is_not_packed_without_it(
    work: Path, tmp_path: Path
) -> None:
    """Bug: a rehearsal passed although its judge had failed."""
    request = replace(CLOSED, rehearsal=True)
    rows = [
        row._replace(state=UNSCORED, why="no network") if row.kind == "accuracy" else row
        for row in plan(CLOSED, work)
    ]
    told = refusals(pack, request, rows, ANSWERS, tmp_path / "tree", None)
    assert len(told) == 4
    assert told[0].endswith("is unscored: no network: start it with `submit run`")


def test_settings_mark_the_values_of_another_machine(tmp_path: Path) -> None:
    """The settings mark values that differ on another machine, and the commands supply all other values."""
    hook, plugin = tmp_path / "my hook.py", tmp_path / "mine.py"
    for path in (hook, plugin):
        path.write_text("")
    options = {"backend": f"{plugin}:Mine", "hook": str(hook), "data_dir": str(tmp_path)}
    request = replace(CLOSED, options={**CLOSED.options, **options}, division="open")
    make_runs(request, tmp_path / "work")
    answers = {**ANSWERS, "starting_weights_filename": "mine.bin"}
    found = packed(request, tmp_path / "work", tmp_path / "tree", answers)
    text = (found.tree / "open/LabOrg/results/box/resnet/Offline/README.md").read_text()
    assert "-accuracy.yaml --data-dir DATA --hook src/resnet/my_hook.py\n" in text
    assert "First correct backend in these files" in text
    assert (found.tree / "open/LabOrg/src/resnet/my_hook.py").exists()


def test_an_invalid_run_is_refused(tmp_path: Path) -> None:
    reasons = [{"code": "slo-missed", "text": "too late"}]
    make_runs(CLOSED, tmp_path, verdict="INVALID", reasons=reasons)
    told = "Server-performance is failed: too late: start it with `submit run`"
    lines = refusals(packed, CLOSED, tmp_path, tmp_path / "tree")
    assert any(line.startswith(told) for line in lines)


@pytest.mark.parametrize("changed", [None, {}, "text", {"machine": 1}])
def test_a_changed_result_is_reported_in_one_line(changed: object, tmp_path: Path) -> None:
    make_runs(CLOSED, tmp_path, environment=changed)
    with pytest.raises(ConfigError, match="some files do not belong to a run"):
        packed(CLOSED, tmp_path, tmp_path / "tree")


def test_an_accuracy_run_without_compared_answers_is_refused(tmp_path: Path) -> None:
    """Bug: `pack` accepted a backend that computed nothing in performance runs."""
    make_runs(CLOSED, tmp_path, accuracy={"value": 99.2, "compared": None})
    assert refusals(packed, CLOSED, tmp_path, tmp_path / "tree") == [
        f"{scenario}-accuracy: its answers were not compared with the answers of a performance run"
        for scenario in SCENARIOS
    ]


def test_a_subset_is_refused(work: Path, tmp_path: Path) -> None:
    make_runs(CLOSED, tmp_path)
    path = tmp_path / "runs/Server-accuracy/attempt-1/findings.json"
    content = json.loads(path.read_text())
    content["loaded"]["total_count"] = 1000
    path.write_text(json.dumps(content))
    told = r"^Server-accuracy is failed: its data set has 1,000 samples instead of the round's 50,000: start it "
    with pytest.raises(ConfigError, match=told):
        packed(CLOSED, tmp_path, tmp_path / "tree")


@pytest.mark.slow
def test_rehearsal_is_marked_everywhere_and_accepts_any_run(tmp_path: Path) -> None:
    request = replace(CLOSED, rehearsal=True)
    make_runs(request, tmp_path, not_for_submission=["random weights"])
    row = next(r for r in plan(request, tmp_path) if r.name == "Offline-accuracy")
    assert row.folder is not None
    (row.folder / "accuracy/accuracy.txt").unlink()
    found = packed(request, tmp_path, tmp_path / "tree", {})
    checked = validate(found.tree, ROUND)
    assert checked.findings[0].rule == "rehearsal"
    assert {f.rule for f in checked.findings[1:]} == {"accuracy-text"}
    # The runs are full-length and use the round's data.
    assert {f.rule for f in checked.counted(shortened=True)} == {"accuracy-text"}
    assert (found.tree / "REHEARSAL.md").is_file()
    top = found.tree / "closed/Rehearsal"
    assert [p.name for p in (top / "results").iterdir()] == ["box_REHEARSAL"]
    system = json.loads((top / "systems/box_REHEARSAL.json").read_text())
    assert system["sw_notes"].startswith("REHEARSAL")
    assert "not a submission" in (top / "results/box_REHEARSAL/resnet/Server/README.md").read_text()


def test_an_open_model_is_mapped(tmp_path: Path) -> None:
    only: dict[str, Any] = {"folder": "digits", "category": "edge", "scenarios": ("Offline",)}
    request = replace(CLOSED, division="open", **only)
    make_runs(request, tmp_path / "work")
    found = packed(request, tmp_path / "work", tmp_path / "tree")
    assert [f.lines() for f in validate(found.tree, ROUND).findings] == []
    mapping = json.loads((found.tree / "open/LabOrg/model_mapping.json").read_text())
    assert mapping == {"digits": "resnet"}
    assert not list(found.tree.rglob("TEST0*"))


def test_different_answers_are_shown_with_their_scores(tmp_path: Path) -> None:
    """TEST01 still passes, because the scores of the same samples differ by less than 1 %."""
    request = replace(CLOSED, category="edge")
    make_runs(request, tmp_path)
    answers = right_answers(TEST01_ROWS, 300)
    first = answers.index('"data" : "') + len('"data" : "')
    other = answers[:first] + "0700000000000000" + answers[first + 16 :]
    assert other != answers
    for row in plan(request, tmp_path):
        if row.kind == "TEST01":
            make_run(row, tmp_path, other, number=2)
    found = packed(request, tmp_path, tmp_path / "tree")
    audit = found.tree / "closed/LabOrg/results/box/resnet/Offline/TEST01"
    assert PASS not in (audit / "verify_accuracy.txt").read_text()
    baseline = (audit / "accuracy/baseline_accuracy.txt").read_text()
    assert baseline == "accuracy=100.000%, good=300, total=300\n"
    compliance = (audit / "accuracy/compliance_accuracy.txt").read_text()
    assert compliance == "accuracy=99.667%, good=299, total=300\n"
    assert [f.lines() for f in validate(found.tree, ROUND).findings] == []


def test_the_command_packs_and_checks(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_request(work, CLOSED)
    (tmp_path / "describe.yaml").write_text(yaml.safe_dump(ANSWERS))
    words = ["submit", "pack", "--work", str(work), "--describe", str(tmp_path / "describe.yaml")]
    assert main([*words, "--to", str(tmp_path / "tree")]) == 0
    out = capsys.readouterr().out
    assert out.endswith(f"passed: 4 results, 0 findings\n{tmp_path / 'tree'}\n")
    assert main([*words, "--to", str(tmp_path / "tree")]) == 2
    assert "already exists: pass a different --to" in capsys.readouterr().err
    for to in (".", "..", "/"):
        assert main([*words, "--to", to]) == 2
        assert "already exists: pass a different --to" in capsys.readouterr().err
    assert main([*words, "--to", str(tmp_path / "other"), "--official", str(tmp_path)]) == 2
    assert "pass a checkout of mlcommons/inference" in capsys.readouterr().err
    assert not list(tmp_path.glob("other*"))


@pytest.mark.slow
def test_a_tree_with_findings_keeps_its_partial_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run with a VALID result has a truncated log, which the check of the packed tree finds."""
    make_runs(CLOSED, tmp_path / "work")
    write_request(tmp_path / "work", CLOSED)
    log = tmp_path / "work/runs/Server-performance/attempt-1/performance/run_1" / DETAIL
    log.write_text(log.read_text()[:-40])
    (tmp_path / "describe.yaml").write_text(yaml.safe_dump(ANSWERS))
    words = ["submit", "pack", "--work", str(tmp_path / "work"), "--to", str(tmp_path / "tree")]
    assert main([*words, "--describe", str(tmp_path / "describe.yaml")]) == 4
    assert "log-incomplete" in capsys.readouterr().out
    assert not (tmp_path / "tree").exists()
    assert (tmp_path / "tree.partial").is_dir()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            UnusableAnswer("the answer to sample 0 is not an image"),
            "SingleStream-TEST01: the answer to sample 0 is not an image: remove {folder} and repeat `submit run`",
        ),
        (
            ValueError("IMAGE_SCORER: the program failed"),
            "SingleStream-TEST01: its samples have no score: IMAGE_SCORER: the program failed",
        ),
    ],
)
def test_samples_without_a_score_are_named_with_their_run(
    error: ValueError, told: str, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores: list[Score] = []

    def failing(*arguments: Any) -> Score:
        if scores:
            raise error
        scores.append(of_some(*arguments))
        return scores[0]

    rows = plan(CLOSED, work)
    monkeypatch.setattr("harness.submit.plan.finished_run.of_some", failing)
    (row,) = [r for r in rows if r.name == "SingleStream-TEST01"]
    line = refusal(pack, CLOSED, rows, ANSWERS, tmp_path / "tree", None)
    assert line == told.format(folder=row.folder)
