"""A closed submission for a language task: its runs, TEST06 with logged answers, and refusals."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.loadgen.logs import ACCURACY, DetailLog, read_logged_answers
from harness.submit.pack.audit import pack_audit
from harness.submit.plan import execute
from harness.submit.plan.finished_run import FinishedRun
from harness.submit.plan.matrix import DONE, FAILED, STALE, plan, problems, write_audits
from harness.submit.plan.request import Request
from harness.submit.rules import accuracy, settings
from harness.submit.rules import audit as audit_rules
from harness.submit.rules import run as run_rules
from harness.submit.rules.tree.consistency import verify_consistency
from harness.submit.rules.tree.rounds import load_round
from harness.submit.rules.tree.submission import RunLog
from harness.submit.rules.tree.tree import Tree
from tests.builders.refusals import refusals
from tests.stand_ins.fake_submission_runs import make_run

LLAMA = Request(
    division="closed",
    submitter="LabOrg",
    system="box",
    category="datacenter",
    benchmark="llama2-70b-99.9",
    options={
        "model": "llama2-70b",
        "backend": "openai",
        "url": ["http://10.0.0.2:8000"],
        "backend_option": ["max_tokens=1024", "answer=text"],
    },
)
END = 2
REST = "EOS check pass: True\nSample length check pass: True\nTEST06 verification complete\n"
PASSED = {
    "Offline": f"First token check pass: Skipped\n{REST}",
    "Server": f"First token check pass: True\n{REST}",
}


def tokens_of(ids: Sequence[int]) -> str:
    return np.array(ids, np.int32).tobytes().hex().upper()


def rows(*answers: tuple[Sequence[int], int | None], begun: Sequence[int] | None = None) -> str:
    """Returns an accuracy log. answers: the token ids, and the token count reported to LoadGen.

    begun: the first token of each answer as reported to LoadGen; None: not reported, as in Offline.
    """
    logged = []
    for i, (ids, told) in enumerate(answers):
        first = {} if begun is None else {"token_data": tokens_of(begun)}
        count = {} if told is None else {"token_count": told}
        logged.append({"seq_id": i, "qsl_idx": i, "data": tokens_of(ids), **first, **count})
    return json.dumps(logged)


def verified(folder: Path, log: str, scenario: str, dtype: str = "int32") -> str:
    (folder / ACCURACY).write_text(log)
    return verify_consistency(read_logged_answers(folder / ACCURACY), dtype, (END,), scenario)


@pytest.mark.parametrize(
    ("answers", "failed"),
    [
        ([([5, 6, END], 3), ([7, 8], 2)], ""),
        # The script never reads the first token, so an answer of END alone passes.
        ([([END], 1), ([END, END], 2)], ""),
        ([([5, 6, END, END], 4)], "EOS"),
        ([([5, END, 6, END], 4)], ""),
        ([([5, 6, END], 3), ([5, 6], 3)], "Sample length"),
        ([([5, 6], None)], "Sample length"),
        ([], "Sample length"),
    ],
)
def test_answers_have_the_tokens_reported_to_loadgen_and_one_end(
    answers: list[tuple[list[int], int | None]], failed: str, tmp_path: Path
) -> None:
    text = verified(tmp_path, rows(*answers), "Offline")
    assert (text == PASSED["Offline"]) == (not failed)
    assert not failed or f"{failed} check pass: False" in text


@pytest.mark.parametrize(
    ("begun", "passed"), [([5], True), ([5, 6], True), ([6], False), ([], False), (None, False)]
)
@pytest.mark.parametrize("scenario", ["Server", "Interactive"])
def test_answer_begins_with_the_first_token_reported_to_loadgen(
    scenario: str, begun: list[int] | None, passed: bool, tmp_path: Path
) -> None:
    second = [5, 6] if begun == [5, 6] else [5, 7]
    text = verified(tmp_path, rows(([5, 6, END], 3), (second, 2), begun=begun), scenario)
    assert (text == PASSED["Server"]) == passed
    assert text.startswith(f"First token check pass: {passed}\n")


def test_texts_are_refused_as_tokens(tmp_path: Path) -> None:
    text = verified(tmp_path, rows(([5, 6, END], 3)), "Offline", dtype="uint8")
    assert "Sample length check pass: False" in text


def test_a_closed_language_task_needs_server_offline_and_test06(tmp_path: Path) -> None:
    write_audits(LLAMA, tmp_path)
    planned = plan(LLAMA, tmp_path)
    assert [row.name for row in planned] == [
        "Server-performance", "Server-accuracy", "Server-TEST06",
        "Offline-performance", "Offline-accuracy", "Offline-TEST06",
    ]  # fmt: skip
    assert all(row.config.mlperf_model == "llama2-70b" for row in planned)
    options = [dict(row.config.backend_option) for row in planned]
    assert [one["answer"] for one in options] == ["text", "text", "ids"] * 2
    assert {one["max_tokens"] for one in options} == {"1024"}
    assert planned[-1].queries == 100
    assert (tmp_path / "TEST06.config").read_text().split("\n") == [
        "*.*.mode = 2",
        "*.*.accuracy_log_rng_seed = 720381539243781796",
        "*.*.accuracy_log_sampling_target = 100",
        "*.*.min_query_count = 100",
        "*.*.min_duration = 0",
        "*.*.sample_concatenate_permutation = 0",
        "",
    ]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"benchmark": "gpt-oss-120b"}, "--benchmark gpt-oss-120b: TEST07 needs a separate data set"),
        (
            {"benchmark": "qwen3.6-27b", "category": "edge"},
            "--benchmark qwen3.6-27b: its speed is measured with mlcommons/endpoints, which replays recorded sessions of an agent: use",
        ),
        ({"scenarios": ("Offline",)}, "--scenarios: the closed division requires Offline and one of Interactive, Server"),
        ({"scenarios": ("Server", "Offline", "SingleStream")}, "--scenarios SingleStream: the category datacenter has no submission of llama2-70b-99.9"),
        (
            {
                "scenarios": ("Offline", "Server", "Interactive"),
                "options": {**LLAMA.options, "target_qps": 2.0},
            },
            "--target-qps would give Server and Interactive the same rate: set both in a file, as llama2-70b.",
        ),
        (
            {"benchmark": "qwen3-vl-235b-a22b", "scenarios": ("Offline", "Interactive")},
            "--scenarios Interactive: LoadGen has no Interactive settings for qwen3-vl-235b-a22b",
        ),
        (
            {"rehearsal": True, "options": {**LLAMA.options, "duration": "3s"}},
            "--duration: the result of llama2-70b-99.9 counts tokens, and LoadGen",
        ),
        # Bug: no audit counts the tokens of llama3.1-8b-edge, so a planned rehearsal always ended
        # with findings.
        (
            {
                "rehearsal": True,
                "benchmark": "llama3.1-8b-edge",
                "category": "edge",
                "options": {**LLAMA.options, "duration": "3s"},
            },
            "--duration: the result of llama3.1-8b-edge counts tokens, and LoadGen",
        ),
        (
            {
                "division": "open",
                "scenarios": ("Server",),
                "options": {**LLAMA.options, "slo": "p99=9s"},
            },
            "--slo p99=9s: the round bounds the token times of llama2-70b-99.9: search with `peak",
        ),
    ],
)  # fmt: skip
def test_unsupported_submission_is_refused_in_one_line(changed: dict[str, Any], told: str) -> None:
    assert any(line.startswith(told) for line in refusals(replace, LLAMA, **changed))


RATES = "llama2-70b.Server.target_qps = 4\nllama2-70b-interactive.Server.target_qps = 1\n"


def test_interactive_has_loadgens_settings_and_a_rate_of_its_own(tmp_path: Path) -> None:
    conf = tmp_path / "user.conf"
    conf.write_text(RATES)
    options = {**LLAMA.options, "user_conf": str(conf)}
    request = replace(LLAMA, scenarios=("Interactive", "Offline", "Server"), options=options)
    write_audits(request, tmp_path)
    planned = {row.name: row for row in plan(request, tmp_path)}
    assert [*planned] == [
        f"{scenario}-{kind}"
        for scenario in ("Server", "Interactive", "Offline")
        for kind in ("performance", "accuracy", "TEST06")
    ]
    keys = [planned[f"{s}-performance"].config.mlperf_model for s in request.chosen_scenarios]
    assert keys == ["llama2-70b", "llama2-70b-interactive", "llama2-70b"]
    assert {row.config.scenario for row in planned.values()} == {"server", "offline"}
    assert [planned[f"{s}-performance"].queries for s in ("Server", "Interactive")] == [
        24_576,
        24_576,
    ]
    assert not [p for p in problems(request, [*planned.values()]) if "rate" in p]


@pytest.mark.parametrize("scenario", ["Server", "Interactive"])
def test_token_scenario_without_a_rate_is_refused_with_advice(
    scenario: str, tmp_path: Path
) -> None:
    request = replace(LLAMA, scenarios=("Offline", scenario))
    found = [p for p in problems(request, plan(request, tmp_path)) if "rate" in p]
    assert [p.split(" found ")[0] for p in found] == [
        f"{scenario} needs a rate: pass --target-qps or --user-conf with a rate"
    ]


def test_the_open_division_has_no_audits(tmp_path: Path) -> None:
    options = {**LLAMA.options, "target_qps": 2.0}
    benchmark: dict[str, Any] = {"benchmark": "gpt-oss-120b", "scenarios": ("Offline", "Server")}
    request = replace(LLAMA, division="open", options=options, **benchmark, accuracy_data="/a")
    assert [row.name for row in plan(request, tmp_path)] == [
        "Server-performance", "Server-accuracy", "Offline-performance", "Offline-accuracy"
    ]  # fmt: skip


GPT_OSS = replace(
    LLAMA,
    division="open",
    benchmark="gpt-oss-120b",
    scenarios=("Offline",),
    accuracy_data="/other.jsonl",
    options={
        "model": "gpt-oss-120b",
        "backend": "openai",
        "url": ["http://10.0.0.2:8000"],
        "data_dir": "/prompts.jsonl",
    },
)


def test_accuracy_runs_may_have_data_of_their_own(tmp_path: Path) -> None:
    """Bug: a submission accepted one data set, but gpt-oss-120b needs two, so no tree could pass the check."""
    performance, accuracy = plan(GPT_OSS, tmp_path)
    found = [(str(row.config.data_dir), row.config.performance_count) for row in (performance, accuracy)]  # fmt: skip
    assert found == [("/prompts.jsonl", 6396), ("/other.jsonl", 4395)]
    most = [dict(row.config.backend_option).get("max_tokens") for row in (performance, accuracy)]
    assert most == [None, "32768"]
    told = [f"--data-dir {name} does not exist" for name in ("/prompts.jsonl", "/other.jsonl")]
    assert [p for p in problems(GPT_OSS, [performance, accuracy]) if "exist" in p] == told
    mine = replace(GPT_OSS, options={**GPT_OSS.options, "backend_option": ["max_tokens=9"]})
    assert dict(plan(mine, tmp_path)[1].config.backend_option)["max_tokens"] == "9"


@pytest.mark.parametrize(("request_", "state"), [(GPT_OSS, DONE), (LLAMA, STALE)])
def test_only_an_accuracy_run_with_its_own_data_has_another_digest(
    request_: Request, state: str, tmp_path: Path
) -> None:
    write_audits(request_, tmp_path)
    for row in plan(request_, tmp_path):
        settings = make_run(row, tmp_path, "[\n]\n") / "config.yaml"
        if row.kind == "accuracy":
            settings.write_text(
                settings.read_text().replace("dataset_digest: d", "dataset_digest: e")
            )
    rows = {row.name: row.state for row in plan(request_, tmp_path)}
    assert (rows["Offline-performance"], rows["Offline-accuracy"]) == (DONE, state)


def test_only_a_benchmark_with_two_data_sets_takes_and_needs_both() -> None:
    (lacking,) = refusals(replace, GPT_OSS, accuracy_data="")
    assert lacking.startswith("--accuracy-data is missing: pass the separate data set of ")
    assert lacking.endswith(" of gpt-oss-120b")
    assert replace(GPT_OSS, accuracy_data="", rehearsal=True).accuracy_data == ""
    (more,) = refusals(replace, LLAMA, accuracy_data="/a")
    assert more.startswith("--accuracy-data: llama2-70b-99.9 has one data set for all runs")


@pytest.mark.parametrize(
    ("kind", "samples", "why"),
    [
        ("performance", 6396, ""),
        ("accuracy", 4395, ""),
        ("performance", 4395, "its data set has 4,395 samples instead of the round's 6,396"),
        ("accuracy", 6396, "its data set has 6,396 samples instead of the round's 4,395"),
    ],
)
def test_each_data_set_must_have_its_own_size(
    kind: str, samples: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = FinishedRun("Offline", kind, Path("run"))
    monkeypatch.setattr(FinishedRun, "loaded", SimpleNamespace(total_count=samples))
    assert run.wrong_size(GPT_OSS.of_round) == why


SHORT = {"code": "too-short", "text": "min_duration was 0 ms"}
LOST = {"code": "samples-lost", "text": "3 answers are missing"}
EARLY = {"code": "loadgen-invalid", "text": "not satisfied: early stopping"}


@pytest.mark.parametrize(
    ("told", "reasons", "state", "why"),
    [
        (3, [SHORT], DONE, ""),
        (3, [EARLY, SHORT], DONE, ""),
        (3, [EARLY], FAILED, "not satisfied"),
        (3, [SHORT, LOST], FAILED, "min_duration was 0 ms"),
        (4, [SHORT], FAILED, "its answers are not consistent: First token check pass: "),
    ],
)
def test_the_audit_counts_by_its_answers_and_not_by_its_length(
    told: int, reasons: list[dict[str, str]], state: str, why: str, tmp_path: Path
) -> None:
    request = replace(LLAMA, rehearsal=True)
    write_audits(request, tmp_path)
    for row in plan(request, tmp_path):
        short = row.kind == "TEST06"
        outcome: dict[str, Any] = {"verdict": "INVALID", "reasons": reasons} if short else {}
        made = make_run(row, tmp_path, "[\n]\n", **outcome)
        if short:
            logs = made / "performance" / "run_1"
            begun = [5] if row.scenario == "Server" else None
            (logs / ACCURACY).write_text(rows(([5, 6, END], told), begun=begun))
            (logs / "run.json").write_text(json.dumps({"ended": {"answer_dtype": "int32"}}))
    planned = plan(request, tmp_path)
    assert {row.state for row in planned if row.kind != "TEST06"} == {DONE}
    for audit in (row for row in planned if row.kind == "TEST06"):
        assert (audit.state, audit.why.startswith(why)) == (state, True)


def test_an_audit_that_its_settings_make_short_ends_as_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: a good TEST06 was reported as `exit status 4: too-short`."""
    # The metric is exact_match, because rouge needs an extra.
    options = {**LLAMA.options, "target_qps": 2.0, "metric": "exact_match"}
    request = replace(LLAMA, rehearsal=True, options=options)
    write_audits(request, tmp_path)
    *others, audit = plan(request, tmp_path)
    for row in others:
        make_run(row, tmp_path, "[\n]\n")

    def start(*_: object, **_more: object) -> SimpleNamespace:
        made = make_run(audit, tmp_path, "[\n]\n", verdict="INVALID", reasons=[SHORT])
        logs = made / "performance" / "run_1"
        (logs / ACCURACY).write_text(rows(([5, 6, END], 3)))
        (logs / "run.json").write_text(json.dumps({"ended": {"answer_dtype": "int32"}}))
        return SimpleNamespace(wait=lambda _limit_s: 4)

    monkeypatch.setattr(execute, "start", start)
    assert execute.execute(request, tmp_path, "Offline") == 0
    assert capsys.readouterr().err.splitlines()[-2] == "harness: 3 of 3: Offline-TEST06 done, 0:00"


def test_the_packed_audit_has_the_text_and_the_whole_log(tmp_path: Path) -> None:
    run = FinishedRun("Offline", "TEST06", tmp_path)
    run.logs.mkdir(parents=True)
    run.accuracy_log.write_text(rows(([5, 6, END], 3)))
    (run.logs / "run.json").write_text(json.dumps({"ended": {"answer_dtype": "int32"}}))
    packed = pack_audit("TEST06", run, run, run, None, LLAMA)
    assert packed.texts == {"verify_accuracy.txt": PASSED["Offline"]}
    assert packed.accuracy_texts == {ACCURACY: run.accuracy_log.read_text()}


def test_every_audit_has_either_a_config_or_unmet_needs() -> None:
    rules = load_round()
    for name, audit in rules.audits.items():
        assert bool(audit.config) != bool(audit.needs), name
    for name, benchmark in rules.benchmarks.items():
        assert bool(benchmark.end_tokens) == ("TEST06" in benchmark.audits), name


@pytest.mark.parametrize(
    ("division", "tokens", "refused"),
    [
        ("closed", 294.45, False),
        ("closed", 264.9, True),
        ("closed", 324.0, True),
        ("open", 264.9, False),
    ],
)
def test_the_tokens_of_the_accuracy_run_must_be_in_the_rounds_range(
    division: str, tokens: float, refused: bool, tmp_path: Path
) -> None:
    scores = {"rouge1": 44.5, "rouge2": 22.1, "rougeL": 28.7}
    request = replace(LLAMA, division=division, scenarios=("Offline", "Server"))
    row = next(r for r in plan(request, tmp_path) if r.kind == "accuracy")
    run = FinishedRun("Offline", "accuracy", make_run(row, tmp_path, "[\n]\n"))
    (run.folder / "accuracy/accuracy.txt").write_text(
        f"{scores} {{'gen_tok_len': 1, 'tokens_per_sample': {tokens:.4f}}}\n"
    )
    found = [why for why in run.forbidden(request, accelerated=True) if "TOKENS" in why]
    assert [f"its score is {tokens:g}, " in why for why in found] == [True] * refused


@pytest.mark.parametrize(("benchmark", "found"), [("llama2-70b-99.9", 0), ("resnet", 1)])
def test_a_task_of_tokens_has_no_bound_of_the_latency(benchmark: str, found: int) -> None:
    """Bug: the check required a bound, but real submissions of llama2-70b log an `effective_target_latency_ns` of 0."""
    logged = {"effective_scenario": "Server", "effective_target_latency_ns": 0}
    run = RunLog("run_1", DetailLog(values=logged), {})
    result: Any = SimpleNamespace(scenario="Server", measured_scenario="Server")
    rules = load_round().benchmarks[benchmark]
    assert len([*run_rules._latency(result, run, "detail", rules)]) == found


@pytest.mark.parametrize(("limit_ms", "found"), [(1500, 0), (1501, 1), (60_000, 1)])
def test_an_interactive_folder_has_the_limit_of_interactive(limit_ms: int, found: int) -> None:
    """Bug: LoadGen logs Interactive as Server, so the limit of Interactive was never checked."""
    logged = {"effective_scenario": "Server", "effective_target_latency_ns": limit_ms * 10**6}
    run = RunLog("run_1", DetailLog(values=logged), {})
    result: Any = SimpleNamespace(scenario="Interactive", measured_scenario="Server")
    rules = load_round().benchmarks["qwen3-vl-235b-a22b"]
    assert len([*run_rules._latency(result, run, "detail", rules)]) == found


@pytest.mark.parametrize(
    ("performance", "of_accuracy", "found"),
    [
        ((48_289, 48_289), (48_289, 8000), set()),
        ((48_289, 48_289), (8000, 8000), set()),
        ((8000, 8000), (8000, 8000), {"performance-samples"}),
        ((48_289, 48_289), (48_289, 48_289), {"dataset-size"}),
        ((48_289, 48_289), (5000, 5000), {"dataset-size"}),
    ],
)
def test_interactive_may_score_a_part_of_the_data(
    performance: tuple[int, int], of_accuracy: tuple[int, int], found: set[str]
) -> None:
    """MLCommons' checker also accepts 48,289 products in memory and 8,000 answers."""

    def log(total: int, **more: int) -> RunLog:
        return RunLog("log", DetailLog(values={"qsl_reported_total_count": total, **more}), {})

    benchmark = load_round().benchmarks["qwen3-vl-235b-a22b"]
    run = log(performance[0], effective_performance_sample_count=performance[1])
    scored = log(of_accuracy[0], effective_accuracy_sample_count=of_accuracy[1])
    result: Any = SimpleNamespace(scenario="Interactive", accuracy=scored)
    findings = [
        *settings.samples(result, run, benchmark),
        *accuracy._counts(scored, benchmark, "Interactive"),
    ]
    assert {one.rule for one in findings} == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{'exact_match': 90.0, 'tokens_per_sample': 5000.0}", []),
        ("{'exact_match': 1.2.3, 'tokens_per_sample': 5000.0}", ["not a number"]),
        ("{'tokens_per_sample': 5000.0}", ["missing"]),
        ("{'exact_match': 90.0}", ["missing"]),
        ("{'exact_match': 80.0, 'tokens_per_sample': 20000.0}", ["80", "20000"]),
    ],
)
def test_a_score_that_is_missing_is_out_of_bounds(text: str, found: list[str]) -> None:
    rules = load_round()
    benchmark = rules.benchmarks["gpt-oss-120b"]
    bounds = benchmark.targets, benchmark.limits
    scores = rules.scores(text, {**bounds[0], **bounds[1]})
    assert [actual for actual, _ in accuracy.out_of_bounds(scores, *bounds)] == found


@pytest.mark.parametrize(
    ("scenario", "log", "found"),
    [
        ("Offline", rows(([5, 6, END], 3)), []),
        ("Offline", rows(([5, 6, END], 2)), ["audit-failed"]),
        ("Offline", rows(([5, END, END], 3)), ["audit-failed"]),
        ("Server", rows(([5, 6, END], 3), begun=[5]), []),
        ("Server", rows(([5, 6, END], 3)), ["audit-failed"]),
        ("Offline", "[\n...\n]", ["accuracy-log"]),
        # The log may be missing, because the official checker requires only the text.
        ("Offline", None, []),
        # The log exceeds one MiB, like the log of a reasoning model.
        ("Offline", rows(([*range(5, 200_000), END], 3)), ["audit-failed"]),
    ],
)
def test_the_audits_log_in_a_folder_is_verified_again(
    scenario: str, log: str | None, found: list[str], tmp_path: Path
) -> None:
    if log is not None:
        (tmp_path / "accuracy").mkdir()
        (tmp_path / "accuracy" / ACCURACY).write_text(log)
    benchmark = load_round().benchmarks["llama2-70b-99.9"]
    result: Any = SimpleNamespace(tree=Tree(tmp_path), benchmark=benchmark, scenario=scenario)
    assert [finding.rule for finding in audit_rules._consistency(result, "")] == found


def test_a_closed_submission_of_summaries_needs_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    changed: dict[str, Any] = {
        "benchmark": "llama3.1-8b",
        "options": {**LLAMA.options, "model": "llama3.1-8b"},
    }
    monkeypatch.setattr("harness.accuracy.rouge.sentence_splitter", lambda: None)
    assert refusals(replace, LLAMA, **changed) == [
        "--benchmark llama3.1-8b: rougeLsum needs nltk's sentence tokenizer: run python -m nltk.downloader punkt_tab"
    ]
    assert replace(LLAMA, **changed, rehearsal=True).rehearsal
    monkeypatch.setattr("harness.accuracy.rouge.sentence_splitter", lambda: str.split)
    assert replace(LLAMA, **changed).benchmark == "llama3.1-8b"
