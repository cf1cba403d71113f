"""The request, the matrix of runs, and the runs that are missing."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.cli.main import main
from harness.core import child, registry
from harness.core.config.options import flag_name
from harness.errors import ConfigError
from harness.loadgen.logs import DETAIL, read_detail
from harness.run.progress import Progress
from harness.submit.pack.pack import pack
from harness.submit.plan import checked, execute
from harness.submit.plan.attempts import next_number
from harness.submit.plan.finished_run import FinishedRun
from harness.submit.plan.matrix import (
    DONE,
    FAILED,
    MISSING,
    STALE,
    PlannedRun,
    lines,
    plan,
    problems,
    write_audits,
)
from harness.submit.plan.options import REFUSED
from harness.submit.plan.request import Request
from harness.submit.plan.request_file import _absolute, read_request, write_request
from tests.builders.refusals import refusals, refused
from tests.builders.submission.trees import changed_log
from tests.faults.command import ROOT, run_here
from tests.stand_ins.fake_submission_runs import (
    ANSWERS,
    CLOSED,
    FAKE,
    SLEPT,
    WORDS,
    make_run,
    make_runs,
    right_answers,
)


def rows_of(request: Request, work: Path) -> dict[str, PlannedRun]:
    return {row.name: row for row in plan(request, work)}


def states(request: Request, work: Path) -> dict[str, str]:
    return {name: row.state for name, row in rows_of(request, work).items()}


def test_submission_needs_the_checksum_and_licence_of_its_model(
    tmp_path: Path,
) -> None:
    manifest = tmp_path / "own.yaml"
    manifest.write_text(
        "name: own\nfiles: {onnx: {path: m.onnx}}\ndataset: synthetic\noutputs: [{name: y}]\n"
        "inputs: [{name: x, dtype: float32, shape: [batch, 4]}]\n"
    )
    request = replace(CLOSED, options={**CLOSED.options, "model": str(manifest)})
    unstated = [
        "model 'own' does not state a licence: add `licence` to its manifest",
        "model 'own' does not pin m.onnx: add its `sha256` to the manifest",
    ]
    assert [
        line for line in problems(request, plan(request, tmp_path)) if "'own'" in line
    ] == unstated
    rehearsal = replace(request, rehearsal=True)
    assert not any("'own'" in line for line in problems(rehearsal, plan(rehearsal, tmp_path)))


def test_a_closed_benchmark_needs_each_scenario_four_times(tmp_path: Path) -> None:
    rows = plan(CLOSED, tmp_path)
    assert len(rows) == 16
    assert {row.state for row in rows} == {MISSING}
    server = [row for row in rows if row.scenario == "Server"]
    assert [row.kind for row in server] == ["performance", "accuracy", "TEST01", "TEST04"]
    assert [row.config.mode for row in server] == [
        "performance", "accuracy", "performance", "performance"
    ]  # fmt: skip
    assert all(row.config.mlperf and row.config.mlperf_model == "resnet50" for row in rows)
    assert [row.config.audit for row in server] == [
        None, None, tmp_path / "TEST01.config", tmp_path / "TEST04.config"
    ]  # fmt: skip
    assert {row.config.target_qps for row in rows if row.scenario != "Server"} == {None}


def test_open_model_needs_only_the_requested_scenarios_and_no_audit(tmp_path: Path) -> None:
    request = replace(CLOSED, division="open", folder="mine", scenarios=("Offline", "SingleStream"))
    assert [row.name for row in plan(request, tmp_path)] == [
        "SingleStream-performance", "SingleStream-accuracy", "Offline-performance",
        "Offline-accuracy",
    ]  # fmt: skip


def test_expected_time_of_a_run_comes_from_rules_and_calibration(tmp_path: Path) -> None:
    rows = rows_of(CLOSED, tmp_path)
    assert rows["Server-performance"].expected_s == pytest.approx(605)
    assert rows["Server-performance"].queries == 1_200_000
    assert rows["Offline-performance"].expected_s == pytest.approx(5 + 600 * 1.43)
    assert rows["Offline-accuracy"].expected_s is None
    slow = replace(CLOSED, options={**CLOSED.options, "target_qps": 0.5})
    assert rows_of(slow, tmp_path)["Server-TEST04"].expected_s == pytest.approx(5 + 459 / 0.5)
    make_runs(CLOSED, tmp_path)
    rows = rows_of(CLOSED, tmp_path)
    assert rows["Offline-accuracy"].expected_s == pytest.approx(5 + 50_000 / 1000 + 10)
    assert list(lines(list(rows.values())))[-1] == "0 of 16 runs remain, about 0:00"


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({}, "12 of 12 runs remain, at least 1:43:39 and 3 of unknown length"),
        ({"division": "open", "scenarios": ("Offline",)}, "2 of 2 runs remain, at least 14:23 and 1 of unknown length"),
    ],
)  # fmt: skip
def test_the_time_of_unmeasured_runs_is_a_lower_bound(
    changed: dict[str, Any], told: str, tmp_path: Path
) -> None:
    """Bug: the sum of the durations in the rules was presented as an estimate of the time."""
    request = replace(CLOSED, category="edge", scenarios=(), options={"model": "digits"})
    assert list(lines(plan(replace(request, **changed), tmp_path)))[-1] == told


def test_the_time_of_runs_at_a_known_rate_is_an_estimate(tmp_path: Path) -> None:
    rows = rows_of(CLOSED, tmp_path)
    server = [rows[f"Server-{kind}"] for kind in ("performance", "TEST01")]
    assert list(lines(server))[-1] == "2 of 2 runs remain, about 20:10"


@pytest.mark.parametrize(
    ("run", "queries", "shown"),
    [
        ("Offline-performance", {"samples_issued": 860_000, "samples_per_query": 1}, (860_000, 612.5)),
        ("MultiStream-performance", {"samples_issued": 8000, "samples_per_query": 8}, (1000, 612.5)),
        ("Offline-accuracy", None, (50_000, 612.5)),
        ("Offline-performance", None, (858_000, 612.5)),
        ("Offline-performance", [], (858_000, 612.5)),
    ],
)  # fmt: skip
def test_the_row_of_a_finished_run_has_its_queries_and_time(
    run: str, queries: object, shown: tuple[int, float], tmp_path: Path
) -> None:
    """Bug: the row still showed the expected queries and time."""
    make_runs(CLOSED, tmp_path, queries=queries)
    (log,) = (tmp_path / "runs" / run).rglob("run.json")
    log.write_text('{"ended": {"answer_dtype": "int64", "used": {"wall_s": 612.5}}}')
    row = rows_of(CLOSED, tmp_path)[run]
    assert (row.state, row.queries, row.expected_s) == (DONE, *shown)


def test_a_server_run_with_equal_issue_takes_a_whole_set_of_samples(tmp_path: Path) -> None:
    request = replace(CLOSED, benchmark="qwen3-vl-235b-a22b", scenarios=())
    request = replace(request, options={**CLOSED.options, "target_qps": 20.0})
    row = rows_of(request, tmp_path)["Server-performance"]
    assert row.queries == 48_289  # the whole set has 48,289 samples, whereas 600 s need only 12,000
    assert row.expected_s == pytest.approx(5 + 48_289 / 20)


def test_audit_configs_are_as_in_the_compliance_folder(tmp_path: Path) -> None:
    write_audits(CLOSED, tmp_path)
    assert (tmp_path / "TEST01.config").read_text().split("\n") == [
        "*.*.mode = 2",
        "*.*.accuracy_log_rng_seed = 720381539243781796",
        "*.*.accuracy_log_sampling_target = 4096",
        "",
    ]
    assert "*.*.performance_issue_same_index = 3" in (tmp_path / "TEST04.config").read_text()


def test_a_run_with_other_options_or_of_another_model_is_stale(tmp_path: Path) -> None:
    make_runs(CLOSED, tmp_path)
    assert set(states(CLOSED, tmp_path).values()) == {DONE}
    faster = replace(CLOSED, options={**CLOSED.options, "target_qps": 3000.0})
    assert {n for n, s in states(faster, tmp_path).items() if s == STALE} == {
        "Server-performance", "Server-accuracy", "Server-TEST01", "Server-TEST04"
    }  # fmt: skip
    config = tmp_path / "runs/Offline-TEST04/attempt-1/config.yaml"
    config.write_text(config.read_text().replace("a" * 64, "b" * 64))
    rows = rows_of(CLOSED, tmp_path)
    assert rows["Offline-TEST04"].why == "its model_sha256 differs from the performance run"


def test_an_audit_older_than_its_performance_run_is_stale(tmp_path: Path) -> None:
    make_runs(CLOSED, tmp_path)
    row = rows_of(CLOSED, tmp_path)["Server-performance"]
    make_run(row, tmp_path, right_answers(50), number=2)
    found = states(CLOSED, tmp_path)
    assert (found["Server-performance"], found["Server-accuracy"]) == (DONE, DONE)
    assert (found["Server-TEST01"], found["Offline-TEST01"]) == (STALE, DONE)


def slowed(work: Path, run: str, factor: float) -> None:
    """Multiplies the latencies of a stand-in run by a factor."""
    log = work / "runs" / run / "attempt-1/performance/run_1" / DETAIL
    key = "early_stopping_latency_ss"
    value = read_detail(log).get(key)
    assert isinstance(value, int)
    log.write_text(changed_log(log.read_text(), {key: round(value * factor)}))


@pytest.mark.slow
def test_an_audit_that_fails_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: an audit that failed because of a different speed counted as done, so `submit run` never repeated the audit."""
    request = replace(CLOSED, category="edge", scenarios=())
    write_request(tmp_path, request)
    make_runs(request, tmp_path)
    slowed(tmp_path, "SingleStream-TEST01", 1.43)
    rows = rows_of(request, tmp_path)
    row = rows.pop("SingleStream-TEST01")
    assert {other.state for other in rows.values()} == {DONE}
    assert row.state == FAILED
    assert re.fullmatch(r"its score is \S+, but \S+ \(± 20 %\) in the performance run", row.why)
    short = replace(request, rehearsal=True, options={**request.options, "duration": "1s"})
    assert not checked._fault(
        FinishedRun(row.scenario, row.kind, tmp_path / "runs/SingleStream-TEST01/attempt-1"),
        {k: FinishedRun("SingleStream", k, tmp_path / f"runs/SingleStream-{k}/attempt-1")
         for k in ("performance", "accuracy")},
        short,
    )  # fmt: skip
    monkeypatch.setattr(execute, "_COMMAND", FAKE)
    assert execute.execute(request, tmp_path) == 0
    said = capsys.readouterr().err
    assert said.startswith("harness: 11 of 12 runs are done, 1 remain\n")
    assert (tmp_path / "runs/SingleStream-TEST01/attempt-2").is_dir()


def test_a_run_in_another_process_shows_its_time_and_the_total_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: without a terminal, nothing was printed during the hours that a submission takes."""
    monkeypatch.setattr("harness.run.progress.FIRST_S", 0.0)
    progress = Progress()
    progress.series("run 3 of 12: Offline-performance", 725.0)
    row = rows_of(CLOSED, Path("nowhere"))["Offline-performance"]
    execute._show(progress, row._replace(expected_s=600.0), 150.0)
    assert capsys.readouterr().err == (
        "harness: run 3 of 12: Offline-performance, about 12 min left in all: running 25 %, 2:30 of "
        "about 10:00\n"
    )


@pytest.mark.slow
def test_an_audit_with_other_answers_is_failed_with_both_scores(tmp_path: Path) -> None:
    make_runs(CLOSED, tmp_path)
    row = rows_of(CLOSED, tmp_path)["Offline-TEST01"]
    wrong = right_answers(50).replace('"data" : "0', '"data" : "1')
    make_run(row, tmp_path, wrong, number=2)
    failed = [r for r in plan(CLOSED, tmp_path) if r.state != DONE]
    assert [(r.name, r.state) for r in failed] == [("Offline-TEST01", FAILED)]
    assert failed[0].why == (
        "its answers differ: acc: 100 in the accuracy run, 0 in the audit, but only within 1 % is allowed"
    )


def test_plan_runs_no_metric_that_a_run_names(tmp_path: Path) -> None:
    """Bug: `plan` compared only the dataset, and scored a failed audit with any metric that config.yaml named."""
    make_runs(CLOSED, tmp_path)
    row = rows_of(CLOSED, tmp_path)["Offline-TEST01"]
    make_run(row, tmp_path, right_answers(50).replace('"data" : "0', '"data" : "1'), number=2)
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Own: ...\n")
    config = tmp_path / "runs/Offline-accuracy/attempt-1/config.yaml"
    config.write_text(config.read_text() + f"metric: {tmp_path}/own.py:Own\n")
    plan(CLOSED, tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_changed_run_is_failed_and_each_is_compared_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: `plan` trusted result.json without checking the run. The stand-ins have no journal, so this test only counts
    the comparisons; the slow rehearsal below makes real comparisons.
    """
    seen: list[str] = []

    def differences(run: FinishedRun, *, scores: bool) -> list[str]:
        # `plan` must not compute scores, because a slow metric takes minutes and `pack` computes
        # the score.
        assert not scores
        seen.append(f"{run.scenario}-{run.kind}")
        return ["latency_ns.p50: 1, not 2"] if (run.folder / "edited").exists() else []

    monkeypatch.setattr(FinishedRun, "differences", differences)
    make_runs(CLOSED, tmp_path)
    for _ in range(2):
        assert set(states(CLOSED, tmp_path).values()) == {DONE}
    assert len(seen) == len(set(seen)) == 16
    seen.clear()
    (tmp_path / "runs/Server-performance/attempt-1/edited").touch()
    rows = rows_of(CLOSED, tmp_path)
    assert rows["Server-performance"].state == FAILED
    assert rows["Server-performance"].why == "its files do not agree: latency_ns.p50: 1, not 2"
    assert seen == ["Server-performance"]


@pytest.mark.slow
def test_a_work_folder_can_be_copied_and_moved(tmp_path: Path) -> None:
    """Bug: every audit in a copy was stale, because the path of its audit.config was compared."""
    work = tmp_path / "work"
    make_runs(CLOSED, work)
    for place in (shutil.copytree(work, tmp_path / "copy"), work.rename(tmp_path / "moved")):
        assert set(states(CLOSED, place).values()) == {DONE}
        found = pack(CLOSED, plan(CLOSED, place), ANSWERS, place / "tree", None)
        sources = found.tree / "closed/LabOrg/src/resnet"
        assert (sources / "TEST01.config").read_text().startswith("*.*.mode = 2\n")


def test_an_audit_of_another_audit_config_is_stale(tmp_path: Path) -> None:
    make_runs(CLOSED, tmp_path)
    copy = tmp_path / "runs/Server-TEST04/attempt-1/performance/run_1/audit.config"
    copy.write_text(copy.read_text().replace("= 3", "= 4"))
    rows = rows_of(CLOSED, tmp_path)
    assert (rows["Server-TEST04"].state, rows["Server-TEST04"].why) == (
        STALE, "the run was made with other options"
    )  # fmt: skip


def test_run_that_pack_refuses_is_marked_in_the_plan(tmp_path: Path) -> None:
    """Bug: `plan` and `run` reported the run as done, but `pack` refused it hours later."""
    make_runs(CLOSED, tmp_path, not_for_submission=["random weights"])
    rows = plan(CLOSED, tmp_path)
    assert {row.state for row in rows} == {DONE}
    assert {row.why for row in rows} == {"`submit pack` refuses it: random weights"}


@pytest.mark.parametrize(
    ("changed", "state"),
    [({}, FAILED), ({"division": "open"}, DONE), ({"rehearsal": True}, DONE)],
)
def test_a_run_on_a_part_of_the_data_is_failed(
    changed: dict[str, Any], state: str, tmp_path: Path
) -> None:
    """Bug: a run on 3 of 2,515 pages counted as done, and only `pack` refused it."""
    request = replace(CLOSED, scenarios=(), **changed)
    make_runs(request, tmp_path)
    path = tmp_path / "runs/Offline-accuracy/attempt-1/findings.json"
    path.write_text(path.read_text().replace('"total_count": 50000', '"total_count": 3'))
    row = rows_of(request, tmp_path)["Offline-accuracy"]
    assert (row.state, "3 samples instead of the round's 50,000" in row.why) == (
        state, not request.rehearsal
    )  # fmt: skip


@pytest.mark.usefixtures("real_runs")
def test_a_part_of_the_data_is_refused_before_the_first_run(tmp_path: Path) -> None:
    """Bug: `submit run` measured 3 pages instead of 2,515 without refusing."""
    (pages := tmp_path / "pages").mkdir()
    for number in range(3):
        (pages / f"{number}.html").write_text("<p>a page</p>")
    request = (
        *("--division", "closed", "--submitter", "LabOrg", "--system", "box", "--category", "datacenter"),
        *("--benchmark", "e2e-rag-db", "--model", "e2e-rag-db", "--backend", "http-json"),
        *("--url", "http://127.0.0.1:9", "--data-dir", str(pages), "--work", str(tmp_path / "w")),
    )  # fmt: skip
    (line,) = refused("submit", "run", *request)
    assert line == (
        "dataset 'documents' has 3 samples instead of the round's 2,515 for e2e-rag-db: pass the whole data set with "
        "--data-dir, or add --rehearsal"
    )
    assert not (tmp_path / "w/runs").exists()


def test_a_run_that_waited_needs_an_accelerator_according_to_the_plan(tmp_path: Path) -> None:
    """Bug: `plan` reported that `pack` refuses the run even if the user describes the accelerator."""
    make_runs(CLOSED, tmp_path, **SLEPT)
    whys = {row.why for row in plan(CLOSED, tmp_path)}
    assert len(whys) == 1
    start = "`submit pack` accepts it only if the system has an accelerator: its backend waited"
    assert whys.pop().startswith(start)


@pytest.mark.parametrize("content", ["", "[]", '{"verdict": "VALID"', '{"verdict": 3}', "null"])
def test_a_broken_run_is_failed_and_not_an_error(content: str, tmp_path: Path) -> None:
    make_runs(CLOSED, tmp_path)
    (tmp_path / "runs/Server-performance/attempt-1/result.json").write_text(content)
    found = states(CLOSED, tmp_path)
    assert (found["Server-performance"], found["Server-TEST01"]) == (FAILED, STALE)


def test_server_needs_a_rate(tmp_path: Path) -> None:
    request = replace(CLOSED, options={"model": "digits"})
    assert [p.partition(":")[0] for p in problems(request, plan(request, tmp_path))] == [
        "Server needs a rate"
    ]
    rehearsal = replace(request, rehearsal=True)
    assert list(problems(rehearsal, plan(rehearsal, tmp_path))) == []


WITHOUT_MODEL = "a run without --model uses digits, which is not the model of resnet: pass --model"


@pytest.mark.parametrize(
    ("benchmark", "model", "more", "told"),
    [
        ("resnet", None, {}, [WITHOUT_MODEL]),
        ("resnet", None, {"division": "open"}, []),
        ("resnet", None, {"rehearsal": True}, []),
        ("bert-99", "resnet50", {}, [
            "--model resnet50 is the model of resnet, not of bert-99: pass a different --model, --division open, or --rehearsal"
        ]),
        ("bert-99", "dlrm-v3", {}, [
            "--model dlrm-v3 is the model of dlrm-v3, not of bert-99: pass a different --model, --division open, or --rehearsal"
        ]),
        ("bert-99", "resnet50", {"rehearsal": True}, []),
        ("resnet", "resnet50-tf", {}, []),
        ("resnet", "digits", {}, []),
    ],
)  # fmt: skip
def test_the_model_of_another_benchmark_is_a_problem(
    benchmark: str, model: str | None, more: dict[str, Any], told: list[str], tmp_path: Path
) -> None:
    """Bug: `--benchmark bert-99 --model resnet50` was planned silently, and without --model `digits` was measured."""
    options = {"backend": "ort", **({"model": model} if model else {})}
    request = replace(
        CLOSED, category="edge", scenarios=(), benchmark=benchmark, options=options, **more
    )
    found = problems(request, plan(request, tmp_path))
    assert [p for p in found if "the model of" in p] == told


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"division": "shut"}, "--division shut: choose from closed; open"),
        ({"category": "desk"}, "--category desk: choose from edge;"),
        ({"benchmark": "vgg"}, "--benchmark vgg: choose from resnet;"),
        ({"benchmark": "resnet50"}, "--benchmark resnet50: did you mean resnet?"),
        ({"benchmark": "bert"}, "--benchmark bert: did you mean bert-99 or bert-99.9?"),
        ({"submitter": ""}, "--submitter is missing"),
        ({"system": "my box"}, "--system 'my box' is not a valid folder name"),
        ({"system": "../box"}, "--system '../box' is not a valid folder name"),
        ({"system": "b" * 101}, f"--system '{'b' * 101}' is not a valid folder name"),
        ({"submitter": "Rehearsal"}, "--submitter Rehearsal marks a rehearsal"),
        ({"system": "box_REHEARSAL"}, "--system box_REHEARSAL marks a rehearsal"),
        (
            {"division": "open", "benchmark": "yolo-95", "folder": "resnet50"},
            "--folder resnet50 is the round's name for resnet: choose a different name",
        ),
        ({"folder": "mine"}, "--folder is only for the open division"),
        (
            {"category": "datacenter"},
            "--benchmark resnet is not in the category datacenter: pass --category edge",
        ),
        ({"scenarios": ("Offline",)}, "--scenarios: the closed division requires SingleStream"),
        ({"scenarios": ("offline",)}, "--scenarios offline: choose from SingleStream"),
        ({"options": {"mode": "both"}}, "--mode is set by the round"),
        ({"options": {"metrics_linger": "5s"}}, "--metrics-linger is for a single run"),
        ({"options": {"concurrency": "4"}}, "--concurrency sets when queries arrive"),
        ({"options": {"duration": "3s"}}, "--duration is only for --rehearsal"),
        ({"round": "v5.0"}, "no round named 'v5.0'"),
    ],
)
def test_wrong_request_is_refused_before_anything_runs(changed: dict[str, Any], told: str) -> None:
    assert any(told in line for line in refusals(replace, CLOSED, **changed))


@pytest.mark.parametrize("verb", ["plan", "run", "pack"])
def test_help_shows_only_options_that_the_verb_takes(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: `submit plan --help` listed --mode, which the verb refuses."""
    with pytest.raises(SystemExit):
        main(["submit", verb, "--help-all"])
    shown = set(re.findall(r"^  (--[a-z-]+)", capsys.readouterr().out, re.MULTILINE))
    assert {"--model", "--target-qps", "--meter", "--duration"} <= shown
    assert shown.isdisjoint(flag_name(key) for key in REFUSED)


def test_missing_benchmark_is_reported_once() -> None:
    assert [line.split(":")[0] for line in refusals(replace, CLOSED, benchmark="")] == [
        "--benchmark is missing"
    ]


@pytest.mark.parametrize("verb", ["run", "pack"])
def test_all_benchmarks_are_only_for_plan(verb: str, tmp_path: Path) -> None:
    assert refused("submit", verb, *WORDS, "--benchmark", "all", "--work", tmp_path / "w") == [
        "--benchmark all is only for `submit plan`, which lists the benchmarks that fit on this machine: name one of them"
    ]
    assert not (tmp_path / "w").exists()


def test_a_quiet_plan_prints_its_rows_alone(tmp_path: Path) -> None:
    write_request(tmp_path, replace(CLOSED, options={"model": "digits", "backend": "ort"}))
    words = ("submit", "plan", "--work", str(tmp_path))
    loud = run_here(*words)
    assert loud.status == 0
    assert "Server needs a rate" in loud.said
    assert run_here(*words, "--quiet") == (0, loud.printed, "")


def test_the_paths_of_a_request_are_valid_in_every_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: a file of lengths and a model that is a folder were stored with relative paths."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lengths.txt").write_text("8\n")
    (tmp_path / "smdir/saved").mkdir(parents=True)
    options = {
        "model": "smdir/saved",
        "lengths": ["length=lengths.txt", "other=lognormal:median=128,sigma=0.6,max=512"],
    }
    assert _absolute(options) == {
        "model": str(tmp_path / "smdir/saved"),
        "lengths": [f"length={tmp_path}/lengths.txt", options["lengths"][1]],
    }


def test_a_file_of_lengths_must_exist(tmp_path: Path) -> None:
    """Bug: `submit plan` stored the path of a missing file of lengths."""
    words = ["submit", "plan", "--work", str(tmp_path / "w"), *WORDS, "--lengths", "length=no.txt"]
    assert refused(*words) == ["--lengths length=no.txt does not exist"]
    assert not (tmp_path / "w").exists()


def test_the_request_is_kept_and_not_replaced(tmp_path: Path) -> None:
    """Bug: when the user gave one option for a stored request, the message named five options that "are missing"."""
    words = ("submit", "plan", "--work", str(tmp_path / "w"))
    assert "has no request.yaml: pass --division" in refused(*words)[0]
    first = run_here(*words, *WORDS)
    assert first.status == 0
    assert "16 of 16 runs remain" in first.printed
    for same in ((), ("--target-qps", "2000")):
        assert run_here(*words, *same)[:2] == first[:2]
    (tmp_path / "w/runs/Offline-performance/attempt-1.partial").mkdir(parents=True)
    file = tmp_path / "w/request.yaml"
    advice = "edit that file, or pass a different --work"
    assert refused(*words, *WORDS, "--threads", "1") == [f"{file} has no threads: {advice}"]
    assert refused(*words, "--target-qps", "200", "--system", "other") == [
        f"{file} has system box, not other: {advice}",
        f"{file} has target_qps 2000, not 200: {advice}",
    ]
    assert read_request(tmp_path / "w").options == {
        "model": "digits", "backend": "ort", "target_qps": "2000"
    }  # fmt: skip


def test_later_options_are_stored_until_a_run_exists(tmp_path: Path) -> None:
    """Bug: `plan` asked for --target-qps and then refused the option: "request.yaml has no target_qps: edit that file"."""
    words = ("submit", "plan", "--work", str(tmp_path))
    assert "Server needs a rate: pass --target-qps" in run_here(*words, *WORDS[:-2]).said
    folder = tmp_path / "runs/Server-performance"
    folder.mkdir(parents=True)
    (folder / "attempt-1.log").touch()  # the file is left by a run that refused its settings
    later = run_here(*words, "--target-qps", "3", "--system", "other")
    assert later.status == 0
    assert later.said == f"harness: {tmp_path}/request.yaml now has system other, target_qps 3\n"
    kept = read_request(tmp_path)
    assert (kept.system, kept.options["target_qps"], kept.options["model"]) == ("other", "3", "digits")  # fmt: skip
    (folder / "attempt-2").mkdir()
    assert "has target_qps 3, not 4: edit" in refused(*words, "--target-qps", "4")[0]
    assert read_request(tmp_path) == kept


@pytest.mark.parametrize(
    "content", ["[]", "a: 1", "division: [closed]", "x: {", "", "division: open"]
)
def test_a_broken_request_file_is_reported_in_one_line(content: str, tmp_path: Path) -> None:
    (tmp_path / "request.yaml").write_text(content)
    with pytest.raises(ConfigError):
        read_request(tmp_path)


def test_the_remedy_for_an_invalid_request_file_works(tmp_path: Path) -> None:
    """Bug: `submit plan` itself gave the advice `let submit plan write it`."""
    words = ("submit", "plan", "--work", str(tmp_path), *WORDS)
    file = tmp_path / "request.yaml"
    file.write_text("[]")
    assert refused(*words) == [
        f"{file} is not a valid request file: delete it, and pass its options to `submit plan` again"
    ]
    file.unlink()
    assert run_here(*words).status == 0
    assert read_request(tmp_path).submitter == "LabOrg"


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("submitter: LabOrg\n", "", "submitter is missing$"),
        ("rehearsal: false", "rehearsal: maybe", "rehearsal must be true or false"),
        ("scenarios: []", "scenarios: {a: 1}", "scenarios must be a list"),
        ("round: v6.1", "round: [v6.1]", "round must be a string"),
        ("folder: ''", "folder: 5", "folder must be a string"),
        ("backend: ort", "5: ort", "keys of options must be strings"),
    ],
)
def test_a_changed_request_file_is_reported_in_one_line(
    before: str, after: str, told: str, tmp_path: Path
) -> None:
    write_request(tmp_path, CLOSED)
    file = tmp_path / "request.yaml"
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))
    with pytest.raises(ConfigError, match=told):
        read_request(tmp_path)


@pytest.mark.slow
def test_a_failed_run_leaves_its_audits_out_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    request = replace(CLOSED, category="edge", benchmark="whisper")
    write_request(tmp_path, request)
    (tmp_path / "fail-Offline-performance").touch()
    monkeypatch.setattr(execute, "_COMMAND", FAKE)
    assert execute.execute(request, tmp_path) == 4
    told = capsys.readouterr().err
    assert "Offline-performance exit status 5" in told
    assert "Offline-accuracy and Offline-TEST01 are skipped: Offline-performance is missing" in told
    (tmp_path / "fail-Offline-performance").unlink()
    assert execute.execute(request, tmp_path) == 0
    told = capsys.readouterr().err
    assert told.startswith("harness: 0 of 3 runs are done, 3 remain\n")
    assert "3 of 3: Offline-TEST01 done" in told
    assert execute.execute(request, tmp_path) == 0
    assert capsys.readouterr().err.startswith("harness: 3 of 3 runs are done, 0 remain\n")
    # Bug: the option was unknown.
    assert main(["submit", "run", "--work", str(tmp_path), "--quiet"]) == 0
    assert " remain" not in capsys.readouterr().err
    assert set(states(request, tmp_path).values()) == {DONE}
    assert (tmp_path / "runs/Offline-performance/attempt-1.log").exists()
    assert (tmp_path / "runs/Offline-performance/attempt-2").is_dir()


def ended_with(monkeypatch: pytest.MonkeyPatch, logs: Mapping[str, tuple[int, str]]) -> list[str]:
    """Replaces the runs. logs: maps a run to its exit status and the text of its log; all other runs end with status 5.

    Returns the names of the started runs, a list that grows with each start.
    """
    started: list[str] = []

    def start(_module: str, words: Sequence[str], **more: Any) -> SimpleNamespace:
        name = Path(words[words.index("--out") + 1]).parent.name
        started.append(name)
        status, text = logs.get(name, (5, ""))
        more["log"].write(text.encode())
        return SimpleNamespace(wait=lambda _limit_s: status)

    monkeypatch.setattr(execute, "start", start)
    return started


EDGE = replace(CLOSED, category="edge", scenarios=())


def test_a_failed_performance_run_leaves_out_the_rest_of_its_scenario(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: the accuracy run was made in spite of the failure, and was stale after the next performance run."""
    started = ended_with(monkeypatch, {})
    assert execute.execute(EDGE, tmp_path) == 4
    assert started == [f"{scenario}-performance" for scenario in EDGE.chosen_scenarios]
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if "skipped" in line] == [
        f"harness: {s}-accuracy, {s}-TEST01 and {s}-TEST04 are skipped: {s}-performance is missing"
        for s in EDGE.chosen_scenarios
    ]


@pytest.mark.parametrize(
    ("status", "log", "told"),
    [
        (5, "harness: loading\nharness: the process died: see performance.log\n", "the process died: see performance.log"),
        (4, "INVALID\n  reason  died: 3 samples failed\n\nresults here\n", "died: 3 samples failed: see {log}"),
        (1, "harness: loading\nTraceback:\n  x()\nKeyError: 'x'\n\n", "KeyError: 'x': see {log}"),
        (5, "", "see {log}"),
    ],
)  # fmt: skip
def test_the_line_of_a_failed_run_has_the_last_error_of_its_log(
    status: int, log: str, told: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Bug: the line named only the log, and the last lines named logs of runs that had never been made."""
    ended_with(monkeypatch, {"Offline-performance": (status, log)})
    assert execute.execute(EDGE, tmp_path, "Offline") == 4
    said = capsys.readouterr().err.splitlines()
    file = tmp_path / "runs/Offline-performance/attempt-1.log"
    told = told.replace("{log}", str(file))
    assert said[1] == f"harness: 1 of 4: Offline-performance exit status {status}: {told}, 0:00"
    assert said[3:] == [
        f"harness: Offline-performance missing: see {file}",
        *(f"harness: Offline-{kind} missing: it was not started" for kind in ("accuracy", "TEST01", "TEST04")),
        f"harness: 0 of 12 runs done; next: python -m harness submit run --work {tmp_path}",
    ]  # fmt: skip


def test_a_work_folder_that_was_moved_during_a_run_has_no_error_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: a traceback was printed, because the log was gone."""
    ended_with(monkeypatch, {})
    real = child.wait

    def moved(*words: Any) -> int:
        (tmp_path / "work").rename(tmp_path / "elsewhere")
        return real(*words)

    monkeypatch.setattr("harness.submit.plan.execute.wait", moved)
    assert execute.execute(EDGE, tmp_path / "work", "Offline") == 4
    log = tmp_path / "work/runs/Offline-performance/attempt-1.log"
    assert f"Offline-performance exit status 5: see {log}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("names", "number"),
    [
        ([], 1),
        (["1-asked.yaml", "attempt-1", "attempt-1.log"], 2),
        (["2-asked.yaml", "attempt-2.log"], 3),
        (["attempt-9.partial"], 10),
        (["latest", "runs.sqlite", "12-checked.json"], 13),
    ],
)
def test_the_next_attempt_has_a_number_of_its_own(
    names: list[str], number: int, tmp_path: Path
) -> None:
    """Bug: after an attempt had been removed by hand, every new attempt got the number of the last attempt."""
    folder = tmp_path / "runs/Offline-accuracy"
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).touch()
    assert next_number(tmp_path, "Offline-accuracy") == number


def test_a_run_with_a_wrong_setting_ends_all_runs_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: a server that was down made every run in the matrix fail, one after another."""
    settings = tmp_path / "runs/SingleStream-performance/1-asked.yaml"
    error = "--url http://a:1 cannot be reached: start the server"
    log = f"harness: loading\nharness: {error} ({settings} sets --url)\n"
    started = ended_with(monkeypatch, {"SingleStream-performance": (2, log)})
    (line,) = refusals(execute.execute, EDGE, tmp_path)
    file = settings.with_name("attempt-1.log")
    assert line == f"SingleStream-performance: {error}: see {file}"
    assert started == ["SingleStream-performance"]


def test_interruption_keeps_the_finished_runs(tmp_path: Path) -> None:
    request = replace(CLOSED, category="edge", division="open", scenarios=("Offline",))
    write_request(tmp_path, request)
    (tmp_path / "hang-Offline-accuracy").touch()
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from harness.submit.plan import execute; from harness.submit.plan.request_file import read_request\n"
        f"from pathlib import Path; execute._COMMAND = {FAKE!r}; work = Path({str(tmp_path)!r})\n"
        f"from {FAKE} import skip_comparison; skip_comparison()\n"
        "sys.exit(execute.execute(read_request(work), work))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 300  # the time limit is long, because the machine may be busy
    while not (tmp_path / "hangs").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGTERM)
    _, told = process.communicate(timeout=100)
    assert process.returncode == 128 + signal.SIGTERM, told
    assert "to complete the remaining runs" in told
    found = states(request, tmp_path)
    assert (found["Offline-performance"], found["Offline-accuracy"]) == (DONE, FAILED)


def test_a_signal_while_runs_are_judged_stops_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: `submit run` ignored SIGTERM while it judged a run, which takes minutes."""
    calls: list[Path] = []

    def judged(request: Request, work: Path) -> list[PlannedRun]:
        calls.append(work)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGTERM)
            pytest.fail("the signal waits for the end of the judging")
        return plan(request, work)

    monkeypatch.setattr("harness.submit.plan.matrix.plan", judged)
    assert execute.execute(EDGE, tmp_path, "Offline") == 128 + signal.SIGTERM
    assert capsys.readouterr().err.endswith("repeat `submit run` to complete the remaining runs\n")


def test_missing_backend_and_data_are_reported_before_the_first_run(tmp_path: Path) -> None:
    words = [*WORDS, "--backend", "nosuch", "--data-dir", "/nowhere", "--work", str(tmp_path / "w")]
    told = (
        "harness: no backend named 'nosuch': choose from ",
        "harness: --data-dir /nowhere does not exist",
    )
    for verb, status in (("plan", 0), ("run", 2)):
        ended = run_here("submit", verb, *words)
        assert ended.status == status
        lines = ended.said.splitlines()
        assert [line.startswith(told[i]) for i, line in enumerate(lines)] == [True, True]
    assert not (tmp_path / "w/runs").exists()


def test_missing_scorer_is_reported_before_the_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package or a scoring program that a performance run does not need is missing."""
    monkeypatch.delenv("ANSWER_SCORER", raising=False)
    options = {"model": "deepseek-r1", "backend": "openai", "url": ["http://10.0.0.2:8000"]}
    request = replace(CLOSED, category="datacenter", benchmark="deepseek-r1", options=options)
    lacking = list(problems(request, plan(request, tmp_path)))
    assert any(one.startswith("ANSWER_SCORER is not set, but MLCommons' eval_accuracy.py computes the score") for one in lacking)  # fmt: skip
    entry = registry.METRICS["wer-whisper"]._replace(needs="no_such_module")
    monkeypatch.setitem(registry.METRICS, "wer-whisper", entry)
    whisper = replace(request, benchmark="whisper", options={**options, "model": "whisper"})
    lacking = list(problems(whisper, plan(whisper, tmp_path)))
    assert any(one.startswith("metric 'wer-whisper' needs the module 'no_such_module'") for one in lacking)  # fmt: skip


def test_an_empty_work_folder_is_not_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: with an unset variable, `--work "$WORK"` wrote request.yaml and runs into the working directory."""
    monkeypatch.chdir(tmp_path)
    for verb in ("plan", "run", "pack"):
        assert refused("submit", verb, *WORDS, "--work", "") == [
            "'' is not a path: name a file or a folder"
        ]
    assert list(tmp_path.iterdir()) == []


def test_two_commands_do_not_measure_at_the_same_time(tmp_path: Path) -> None:
    write_request(tmp_path, CLOSED)
    with execute._alone(tmp_path, ["Server"]):
        for words in ([], ["--only", "Server"]):
            told = refused("submit", "run", "--work", tmp_path, *words)[-1]
            assert f"{tmp_path}/Server.lock is locked by another `submit run`" in told
        # A run of Offline may begin during a run of Server.
        with execute._alone(tmp_path, ["Offline"]):
            pass
    assert not (tmp_path / "runs").exists()


def test_an_audit_is_a_performance_run_with_a_file_that_exists(tmp_path: Path) -> None:
    words = ("--scenario", "offline", "--audit", tmp_path / "audit.config")
    assert "--audit is a separate performance run" in "".join(refused(*words))
    assert "does not exist" in "".join(refused(*words, "--mode", "performance"))


@pytest.mark.slow
@pytest.mark.usefixtures("real_runs")
def test_a_rehearsal_with_digits_from_plan_to_check(tmp_path: Path) -> None:
    """Makes real runs of one second each, for three scenarios and both audits, then packs and checks the runs.

    Bug: `submit pack` accepted a run whose log was edited, although `check RUN` refused it.
    """
    work = str(tmp_path / "work")
    words = [*WORDS[:-2], "--rehearsal", "--duration", "1s"]
    # Server is left out, because a busy machine may miss its bound.
    words[words.index("datacenter,edge")] = "edge"
    assert main(["submit", "run", "--work", work, *words]) == 0
    assert main(["submit", "pack", "--work", work, "--to", str(tmp_path / "tree")]) == 0
    assert main(["submit", "check", str(tmp_path / "tree")]) == 4
    assert main(["submit", "check", str(tmp_path / "tree"), "--rehearsal"]) == 0
    result = tmp_path / "work/runs/SingleStream-performance/attempt-1/performance/run_1" / DETAIL
    text = result.read_text()
    result.write_text(re.sub(r'(early_stopping_latency_ss", "value": )\d+', r"\g<1>1000", text))
    assert main(["submit", "pack", "--work", work, "--to", str(tmp_path / "edited")]) == 2
    assert not (tmp_path / "edited").exists()
    found = states(read_request(tmp_path / "work"), tmp_path / "work")
    assert found["SingleStream-performance"] == FAILED
    assert found["Offline-performance"] == DONE
    logs = (tmp_path / "tree").rglob("TEST04/performance/run_1/mlperf_log_detail.txt")
    for log in logs:
        said = [json.loads(x.removeprefix(":::MLLOG ")) for x in log.read_text().splitlines()]
        values = {entry["key"]: entry["value"] for entry in said}
        assert values["effective_performance_issue_same"] is True
