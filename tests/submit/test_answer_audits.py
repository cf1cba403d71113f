"""TEST08 compares the entropy of DLRM-v3's answers, and TEST09 limits the length of answers."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.loadgen.logs import ACCURACY, AccuracyLogError, read_logged_answers
from harness.submit.pack.audit import pack_audit
from harness.submit.plan.finished_run import FinishedRun
from harness.submit.plan.matrix import DONE, FAILED, plan, write_audits
from harness.submit.plan.request import Request
from harness.submit.rules import audit as audit_rules
from harness.submit.rules.official import verify_test08, verify_test09
from harness.submit.rules.rows import CUT
from harness.submit.rules.tree.entropy import verify_entropy
from harness.submit.rules.tree.lengths import OUTPUT, verify_lengths
from harness.submit.rules.tree.rounds import load_round
from harness.submit.rules.tree.tree import Tree
from harness.submit.rules.tree.verify import PASS
from tests.models.manifest.test_language_tasks import CHECKOUT
from tests.stand_ins.fake_submission_runs import make_run

DLRM = Request(
    division="closed",
    submitter="LabOrg",
    system="box",
    category="datacenter",
    benchmark="dlrm-v3",
    rehearsal=True,
    options={"model": "dlrm-v3", "backend": "ort", "target_qps": 600.0},
)
RAG = replace(
    DLRM,
    benchmark="e2e-rag-qna",
    options={"model": "e2e-rag-qna", "backend": "openai", "url": ["http://10.0.0.2:8000"]},
)
SETTINGS = load_round().audit_settings("TEST09", "e2e-rag-qna")


def log(rows: Sequence[Sequence[float]], dtype: Any = np.float32, tokens: Any = None) -> str:
    logged = []
    for i, row in enumerate(rows):
        counted = {} if tokens is None else {"token_count": tokens}
        data = np.asarray(row, dtype).tobytes().hex().upper()
        logged.append({"seq_id": i, "qsl_idx": i, "data": data, **counted})
    return json.dumps(logged)


def scored(request: int, *scores: float) -> list[float]:
    return [0, request, *scores]


def labelled(request: int, scores: Sequence[float], liked: Sequence[int]) -> list[float]:
    return [0, request, *scores, *liked, *[1] * len(scores), len(scores)]


SCORES, LIKED = (0.9, 0.2, 0.6), (1, 0, 1)
ACCURACY_ROWS = [labelled(q, SCORES, LIKED) for q in range(3)]
ENTROPY_CASES = {
    "the same answers": ([scored(1, *SCORES), scored(0, *SCORES), scored(1, *SCORES)], True),
    "rounded answers": ([scored(0, 0.90001, 0.2, 0.6)], True),
    "another answer": ([scored(0, *SCORES), scored(1, 0.9, 0.2, 0.5)], False),
    "an unknown request": ([scored(0, *SCORES), scored(7, *SCORES)], False),
    "no answer": ([], False),
}


def entropy(folder: Path, accuracy: Sequence[Sequence[float]], test: Sequence[Sequence[float]]) -> tuple[Path, Path]:  # fmt: skip
    paths = folder / "accuracy" / ACCURACY, folder / "test" / ACCURACY
    for path, rows in zip(paths, (accuracy, test), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(log(rows))
    return paths


@pytest.mark.parametrize("name", ENTROPY_CASES)
def test_entropy_must_be_that_of_the_accuracy_run(name: str, tmp_path: Path) -> None:
    rows, passes = ENTROPY_CASES[name]
    text = verify_entropy(*entropy(tmp_path, ACCURACY_ROWS, rows))
    assert (f"\n{PASS}\n" in text) == passes
    assert f"num_perf_log_entries = {len(rows)}\n" in text


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_mlcommons_script_has_the_same_verdict_on_entropy(seed: int, tmp_path: Path) -> None:
    checkout = os.environ.get(CHECKOUT)
    if not checkout:
        pytest.skip(f"set {CHECKOUT} to a checkout of mlcommons/inference")
    random = np.random.default_rng(seed)
    accuracy, test = [], []
    for request in range(50):
        count = int(random.integers(1, 9))
        scores, liked = random.random(count), random.integers(0, 2, count)
        accuracy.append(labelled(request, scores.tolist(), liked.tolist()))
        error = random.normal(0, 3e-4 if seed % 2 else 1e-5, count)
        test.append(scored(request, *np.clip(scores + error, 0, 1).tolist()))
    if seed % 5 == 4:
        test.append(scored(99, 0.5))
    paths = entropy(tmp_path, accuracy, test)
    theirs = verify_test08(Path(checkout), *(path.parent for path in paths))
    ours = verify_entropy(*paths)
    assert theirs.passed == (f"\n{PASS}\n" in ours)
    counted = [line for line in ours.splitlines() if " = " in line]
    assert all(line in theirs.texts["verify_accuracy.txt"] for line in counted)


@pytest.mark.parametrize(
    ("accuracy", "test"),
    [
        ([[0, 1, 0.5, 1]], [scored(0, 0.5)]),
        (ACCURACY_ROWS, [[float("nan"), 0, 0.5]]),
        (ACCURACY_ROWS, [[0]]),
    ],
)
def test_answers_of_another_form_are_refused(
    accuracy: list[list[float]], test: list[list[float]], tmp_path: Path
) -> None:
    with pytest.raises(AccuracyLogError):
        verify_entropy(*entropy(tmp_path, accuracy, test))


LENGTH_CASES = {
    "lengths within the bounds": ([[7] * 250, [7] * 290] * 412, None, True),
    "short answers": ([[7] * 240] * 824, None, False),
    "long answers": ([[7] * 302] * 824, None, False),
    "too few answers": ([[7] * 270] * 823, None, False),
    "as many tokens as LoadGen received": ([[7] * 270] * 824, 270, True),
    "other tokens than LoadGen received": ([[7] * 270] * 824, 27, False),
    "no answer": ([], None, False),
}


def lengths_log(folder: Path, rows: Sequence[Sequence[int]], tokens: int | None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ACCURACY).write_text(log(rows, np.int32, tokens))
    return folder / ACCURACY


@pytest.mark.parametrize("name", LENGTH_CASES)
def test_mean_length_must_lie_within_the_bounds(name: str, tmp_path: Path) -> None:
    rows, tokens, passes = LENGTH_CASES[name]
    path = lengths_log(tmp_path, rows, tokens)
    text = verify_lengths(read_logged_answers(path), "int32", SETTINGS)
    assert (f"\n{PASS}\n" in text) == passes
    assert f"Total samples: {len(rows)}\n" in text


def test_tokens_of_eight_bytes_fail_because_the_script_counts_them_twice(tmp_path: Path) -> None:
    (tmp_path / ACCURACY).write_text(log([[7] * 135] * 824, np.int64))
    text = verify_lengths(read_logged_answers(tmp_path / ACCURACY), "int64", SETTINGS)
    assert f"\n{PASS}\n" not in text


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in LENGTH_CASES if "LoadGen" not in name])
def test_mlcommons_script_has_the_same_verdict_on_lengths(name: str, tmp_path: Path) -> None:
    checkout = os.environ.get(CHECKOUT)
    if not checkout:
        pytest.skip(f"set {CHECKOUT} to a checkout of mlcommons/inference")
    rows, tokens, passes = LENGTH_CASES[name]
    if not rows:
        return  # the script writes no verdict for an empty log
    lengths_log(tmp_path / "test", rows, tokens)
    config = tmp_path / "audit.config"
    config.write_text("".join(f"*.*.{key} = {value}\n" for key, value in SETTINGS.items()))
    theirs = verify_test09(Path(checkout), tmp_path / "test", config)
    assert theirs.passed == (passes or name == "too few answers")
    ours = verify_lengths(read_logged_answers(tmp_path / "test" / ACCURACY), "int32", SETTINGS)
    if theirs.passed == passes:
        assert ours == theirs.texts[OUTPUT]


def test_a_closed_submission_of_dlrm_has_test08(tmp_path: Path) -> None:
    write_audits(DLRM, tmp_path)
    planned = {row.name: row for row in plan(DLRM, tmp_path)}
    assert [*planned] == [
        f"{scenario}-{kind}"
        for scenario in ("Server", "Offline")
        for kind in ("performance", "accuracy", "TEST08")
    ]
    assert "accuracy_log_sampling_target = 4096" in (tmp_path / "TEST08.config").read_text()
    conf = planned["Offline-performance"].config.user_conf
    assert conf is not None
    assert conf.read_text() == "dlrm-v3.Offline.min_query_count = 349823\n"
    assert planned["Server-performance"].config.user_conf is None


def test_a_benchmark_of_one_pass_has_no_least_duration(tmp_path: Path) -> None:
    given = tmp_path / "mine.conf"
    given.write_text("e2e-rag-qna.Offline.target_qps = 0.11\n")
    request = replace(RAG, options={**RAG.options, "user_conf": str(given)})
    write_audits(request, tmp_path / "work")
    planned = plan(request, tmp_path / "work")
    assert [row.kind for row in planned] == ["performance", "accuracy", "TEST09"]
    assert planned[0].queries == planned[2].queries == 824
    conf = planned[0].config.user_conf
    assert conf is not None
    assert conf.read_text() == (
        "e2e-rag-qna.Offline.min_duration = 0\n"
        "e2e-rag-qna.Offline.min_query_count = 824\n"
        "e2e-rag-qna.Offline.target_qps = 0.11\n"
    )
    assert [dict(row.config.backend_option).get("answer") for row in planned] == [None, None, "ids"]


SHORT = {"code": "too-short", "text": "min_duration was 0 ms"}


@pytest.mark.parametrize(("rows", "state"), [(824, DONE), (7, FAILED)])
def test_an_audit_of_lengths_counts_by_its_answers(rows: int, state: str, tmp_path: Path) -> None:
    write_audits(RAG, tmp_path)
    for row in plan(RAG, tmp_path):
        short = row.kind == "TEST09"
        outcome: dict[str, Any] = {"verdict": "INVALID", "reasons": [SHORT]} if short else {}
        made = make_run(row, tmp_path, "[\n]\n", **outcome)
        if short:
            logs = made / "performance" / "run_1"
            lengths_log(logs, [[7] * 270] * rows, None)
            (logs / "run.json").write_text(json.dumps({"ended": {"answer_dtype": "int32"}}))
    audit = plan(RAG, tmp_path)[-1]
    assert (audit.state, "TEST09 fails" in audit.why) == (state, state == FAILED)


def test_packed_audits_have_their_texts(tmp_path: Path) -> None:
    paths = entropy(tmp_path, ACCURACY_ROWS, [scored(0, *SCORES)])
    runs: list[Any] = [SimpleNamespace(accuracy_log=path, logs=path.parent, scenario="Offline") for path in paths]  # fmt: skip
    packed = pack_audit("TEST08", runs[0], runs[0], runs[1], None, DLRM)
    assert PASS in packed.texts["verify_accuracy.txt"]
    run = FinishedRun("Offline", "TEST09", tmp_path / "run")
    lengths_log(run.logs, [[7] * 270] * 824, None)
    (run.logs / "run.json").write_text(json.dumps({"ended": {"answer_dtype": "int32"}}))
    packed = pack_audit("TEST09", run, run, run, None, RAG)
    assert PASS in packed.texts[OUTPUT]
    assert [*packed.accuracy_texts] == [ACCURACY]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (log([[7] * 270] * 824, np.int32), []),
        (log([[7] * 200] * 824, np.int32), ["audit-failed"]),
        ("[\n...\n]", ["accuracy-log"]),
        (None, []),
    ],
)
def test_logged_lengths_in_a_tree_are_verified_again(
    content: str | None, found: list[str], tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "accuracy").mkdir()
        (tmp_path / "accuracy" / ACCURACY).write_text(content)
    result: Any = SimpleNamespace(tree=Tree(tmp_path), name="e2e-rag-qna", round=load_round())
    assert [finding.rule for finding in audit_rules._lengths(result, "")] == found


@pytest.mark.parametrize(
    ("head", "found"),
    [(b'[\n{ "seq_id" : 0, "qsl_idx" : 0, "data" : "00', []), (b"0000", ["accuracy-log"])],
)
def test_a_truncated_log_of_test09_is_judged_by_its_ends(
    head: bytes, found: list[str], tmp_path: Path
) -> None:
    """MLCommons' truncate_accuracy_log.py truncates this log, although no text contains its hash."""
    shown = load_round().shown_accuracy_log_bytes
    content = head.ljust(shown, b"0") + CUT + b" },\n]\n".rjust(shown, b"0")
    (tmp_path / "accuracy").mkdir()
    (tmp_path / "accuracy" / ACCURACY).write_bytes(content)
    result: Any = SimpleNamespace(
        tree=Tree(tmp_path), name="e2e-rag-qna", round=load_round(), accuracy=None,
        benchmark=load_round().benchmarks["e2e-rag-qna"], measured_scenario="Offline",
    )  # fmt: skip
    assert [finding.rule for finding in audit_rules._lengths(result, "")] == found
