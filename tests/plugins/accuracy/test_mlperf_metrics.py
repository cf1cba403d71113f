"""The scores for recommendation, RAG answers and a database, compared with a second implementation of their
definitions.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.accuracy.mlperf.ingestion import VARIABLE as CHECK
from harness.accuracy.mlperf.ingestion import Ingestion
from harness.accuracy.mlperf.rag_answers import VARIABLE as JUDGE
from harness.accuracy.mlperf.rag_answers import RagAnswers
from harness.accuracy.mlperf.reasoned_answers import VARIABLE as ANSWERS
from harness.accuracy.mlperf.reasoned_answers import ReasonedAnswers
from harness.accuracy.mlperf.recommendation import Recommendation
from harness.core.registry import BY_PROGRAM
from harness.submit.rules.tree.rounds import load_round
from harness.types import Answer, Score

SCRIPTS = Path(__file__).parents[2] / "stand_ins/reference"
MD5 = b"0123456789abcdef0123456789abcdef"


def answer(sample: int, request: tuple[int, int], *scores: float) -> Answer:
    return Answer(sample, np.array([*request, *scores], np.float32).tobytes())


def label(request: tuple[int, int], *liked: int) -> dict[str, Any]:
    return {"identity": request, "liked": np.array(liked, np.float32)}


def test_recommendation_is_scored_by_definition() -> None:
    labels = {0: label((0, 0), 1, 0, 1), 1: label((0, 1), 0, 1), 2: label((1, 0), 1, 1)}
    answers = [  # LoadGen returns samples in another order than the stream
        answer(2, (0, 1), 0.2, 0.9),
        answer(0, (1, 0), 0.6, 0.4),
        answer(1, (0, 0), 0.8, 0.6, 0.5),
    ]
    score = Recommendation("float32").score(answers, labels)
    likely = np.array([0.2, 0.9, 0.6, 0.4, 0.8, 0.6, 0.5], np.float32).astype(float)
    liked = np.array([0, 1, 1, 1, 1, 0, 1])
    entropy = -np.log2(np.where(liked, likely, 1 - likely)).sum()
    base = -5 * np.log2(5 / 7) - 2 * np.log2(2 / 7)
    assert score.details["ne"] == pytest.approx(entropy / base, rel=1e-14)
    assert score.details["accuracy"] == pytest.approx(5 / 7)
    # Request (0, 1) scores 1.0 and request (0, 0) scores 0.5; request (1, 0) has only one kind of label, so it does not
    # count.
    assert score.value == pytest.approx(0.75, abs=1e-8)
    assert (score.samples, score.details["judged_requests"]) == (3, 2)
    rules = load_round()
    found = rules.scores(score.line, rules.benchmarks["dlrm-v3"].targets)
    assert found == {
        "DLRM_NE": [score.details["ne"]],
        "DLRM_ACC": [score.details["accuracy"]],
        "DLRM_AUC": [score.value],
    }


def test_missing_scores_count_as_wrong() -> None:
    labels = {0: label((0, 0), 1, 0), 1: label((0, 1), 1, 0)}
    whole = [answer(0, (0, 0), 0.9, 0.1), answer(1, (0, 1), 0.9, 0.1)]
    cut = [whole[0], answer(1, (0, 1))]
    assert Recommendation("float32").score(whole, labels).value == pytest.approx(1)
    assert Recommendation("float32").score(cut, labels).value == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("requests", "named"),
    [
        ([(0, 0), (0, 0)], "was answered before"),
        ([(0, 0), (7, 7)], "is not in the data"),
        ([(0, 0)], "1 of 2 requests have no answer"),
    ],
)
def test_each_request_needs_one_answer(requests: list[tuple[int, int]], named: str) -> None:
    labels = {0: label((0, 0), 1, 0), 1: label((0, 1), 1, 0)}
    answers = [answer(i, request, 0.9, 0.1) for i, request in enumerate(requests)]
    with pytest.raises(ValueError, match=named):
        Recommendation("float32").score(answers, labels)


def test_answers_without_float32_scores_are_refused() -> None:
    with pytest.raises(ValueError, match="needs float32 scores"):
        Recommendation("int64")
    labels = {0: label((0, 0), 1, 1)}
    with pytest.raises(ValueError, match="candidates of both labels"):
        Recommendation("float32").score([answer(0, (0, 0), 0.9, 0.1)], labels)


JUDGING = """\
import json, sys
arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
results = json.load(open(arguments["--results_file"]))
right = sum(r["answer"] == r["query"].removeprefix("after ") for r in results.values())
found = sum(len(r["retrieved_urls"]) for r in results.values())
details = {"total_queries": len(results) - (arguments.get("--judge_model") == "lazy"),
           "retrieval_precision": found / len(results), "retrieval_recall": 0.5, "retrieval_f1": 0.25}
json.dump(details, open(arguments["--output"], "w"))
open(arguments["--log_dir"] + "/accuracy.txt", "w").write(f"Accuracy: {100 * right / len(results):.4f}\\n")
"""


def rag_labels(count: int) -> dict[int, object]:
    return {
        i: {"text": str(i), "question": f"after {i}", "links": (), "file": "q.tsv"}
        for i in range(count)
    }


def test_a_program_judges_the_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "accuracy_eval.py"
    script.write_text(JUDGING)
    monkeypatch.setenv(JUDGE, f"{sys.executable} {script} --judge_model tiny")
    metric, labels = RagAnswers("uint8"), rag_labels(3)
    metric.check_labels(labels)
    rich = json.dumps({"answer": "2", "retrieved_urls": ["a", "b", "c"]}).encode()
    score = metric.score([Answer(0, b"0"), Answer(1, b"no"), Answer(2, rich)], labels)
    assert score.value == pytest.approx(66.6667)
    assert score.details["retrieval_precision"] == 1
    digest = hashlib.sha256(JUDGING.encode()).hexdigest()
    assert score.line == f"Accuracy: 66.6667, judged by accuracy_eval.py {digest[:16]}"
    assert score.scorer == f"accuracy_eval.py {digest}"
    rules = load_round()
    targets = rules.benchmarks["e2e-rag-qna"].targets
    assert rules.scores(score.line, targets) == {"E2E_ACCURACY": [66.6667]}


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("", "export RAG_JUDGE='python PATH/accuracy_eval.py"),
        ("no-such-program-9 nowhere.py", "which is not a file"),
        ("{python} {fails}", "ended with status 3: a reason"),
        ("{python} {script} --judge_model lazy", "judged 1 of 2 answers"),
        ("{python} {empty}", "the program wrote no accuracy"),
    ],
)
def test_a_judge_that_cannot_judge_is_one_line(
    command: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {
        "fails": "import sys; print('a reason'); sys.exit(3)",
        "script": JUDGING,
        "empty": "pass",
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    paths = {name: str(tmp_path / f"{name}.py") for name in texts}
    monkeypatch.setenv(JUDGE, command.format(python=sys.executable, **paths))
    labels = rag_labels(2)
    with pytest.raises(ValueError, match=named):
        RagAnswers("uint8").score([Answer(0, b"0"), Answer(1, b"1")], labels)


SCORING = """\
import json, struct, sys
arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
rows = json.load(open(arguments.get("--input-file") or arguments["--mlperf-log"]))
tokens = {r["qsl_idx"]: struct.unpack(f"<{len(r['data']) // 8}i", bytes.fromhex(r["data"])) for r in rows}
right = sum(found[-1] == index for index, found in tokens.items())
open(arguments["--output-file"], "w").write("evaluated")
print("a line before")
print({"exact_match": 100 * right / len(rows), "tokens_per_sample": 2.0, "num-samples": len(rows) - LEFT})
"""


def reasoned(*last: int) -> Score:
    rows = [Answer(i, np.array([7, token], np.int32).tobytes()) for i, token in enumerate(last)]
    return ReasonedAnswers("int32").score(rows, dict.fromkeys(range(len(rows)), "its own data"))


@pytest.mark.parametrize("name", ["eval_accuracy.py", "eval_mlperf_accuracy.py"])
def test_a_program_scores_reasoned_answers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / name
    script.write_text(f"LEFT = 0\n{SCORING}")
    monkeypatch.setenv(ANSWERS, f"{sys.executable} {script} --dataset-file data.pkl")
    ReasonedAnswers("int32").check_labels({})
    score = reasoned(0, 1, 9)
    assert score.value == pytest.approx(66.6667, abs=1e-4)
    digest = hashlib.sha256(script.read_bytes()).hexdigest()
    assert score.scorer == f"{name} {digest}"
    assert score.line == f"{{'exact_match': 66.6667}}, scored by {name} {digest[:16]}"
    targets = load_round().benchmarks["deepseek-r1"].targets
    line = f"{score.line} {{'gen_tok_len': 6, 'tokens_per_sample': 2.0000}}"
    found = load_round().scores(line, targets)
    assert found == {"exact_match": [66.6667], "TOKENS_PER_SAMPLE": [2.0]}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (f"LEFT = 1\n{SCORING}", "scored 2 of 3 answers"),
        ("print(\"{'exact_match': 3.0}\")", "did not print exact_match and the number of samples"),
        ("", "did not print exact_match and the number of samples"),
    ],
)
def test_a_scorer_without_a_score_is_one_line(
    text: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "eval_accuracy.py").write_text(text)
    monkeypatch.setenv(ANSWERS, f"{sys.executable} {tmp_path / 'eval_accuracy.py'}")
    with pytest.raises(ValueError, match=named):
        reasoned(0, 1, 2)


def test_reasoned_answers_need_token_ids_and_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ANSWERS, raising=False)
    with pytest.raises(ValueError, match="answer=ids"):
        ReasonedAnswers("uint8")
    with pytest.raises(ValueError, match=r"export ANSWER_SCORER='python PATH/eval_accuracy.py"):
        ReasonedAnswers("int32").check_labels({})
    assert "reasoned-answers" in BY_PROGRAM


def test_labels_of_another_dataset_are_refused() -> None:
    with pytest.raises(ValueError, match="needs the questions of dataset `frames`"):
        RagAnswers("uint8").check_labels({0: "text"})


def test_the_share_of_stored_pages_is_the_score() -> None:
    answers = [Answer(i, payload) for i, payload in enumerate([b"\1", b"\0", b"\1", MD5])]
    score = Ingestion("uint8").score(answers, {})
    assert (score.value, score.details["stored"], score.details["checked"]) == (75.0, 3, 0)
    assert not score.scorer
    targets = load_round().benchmarks["e2e-rag-db"].targets
    assert load_round().scores(score.line, targets) == {"E2E_ACCURACY": [75.0]}
    assert MD5.decode() in score.line


@pytest.mark.parametrize("payloads", [[b"\1", b"\1"], [MD5, MD5], [b"", b"\0"]])
def test_a_database_has_one_md5(payloads: list[bytes]) -> None:
    with pytest.raises(ValueError, match="answers are an MD5: exactly one"):
        Ingestion("uint8").score([Answer(i, p) for i, p in enumerate(payloads)], {})


@pytest.mark.parametrize(("status", "passes"), [(0, True), (1, False)])
def test_a_program_checks_the_database(
    status: int, passes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "datasetup_accuracy_eval.py"
    script.write_text(
        "import json, sys\n"
        "rows = json.load(open(sys.argv[sys.argv.index('--log_dir') + 1] + '/mlperf_log_accuracy.json'))\n"
        f"assert [r['data'] for r in rows] == ['01', {MD5.hex().upper()!r}]\nsys.exit({status})"
    )
    monkeypatch.setenv(CHECK, f"{sys.executable} {script}")
    answers = [Answer(0, b"\1"), Answer(1, MD5)]
    if not passes:
        with pytest.raises(ValueError, match="ended with status 1"):
            Ingestion("uint8").score(answers, {})
        return
    score = Ingestion("uint8").score(answers, {})
    assert score.details["checked"] == 1
    assert "checked by datasetup_accuracy_eval.py " in score.line
    digest = hashlib.sha256(script.read_bytes()).hexdigest()
    assert score.scorer == f"datasetup_accuracy_eval.py {digest}"
