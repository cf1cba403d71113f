"""Benchmarks with MLPerf's own readers and metrics: short real runs of stand-ins, packed and checked."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from harness.cli.main import main
from harness.loadgen.logs import ACCURACY, read_logged_answers
from harness.submit.rules.tree.entropy import verify_entropy
from harness.submit.rules.tree.lengths import OUTPUT
from harness.submit.rules.tree.verify import PASS
from tests.builders.submit.mlperf_data import (
    dlrm_model,
    manifest_in,
    rgat_model,
    write_documents,
    write_frames,
    write_igbh,
    write_streaming,
)
from tests.models.manifest.test_language_tasks import CHECKOUT
from tests.stand_ins.servers.rag_server import RagServer

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("real_runs")]
pytest.importorskip("onnxruntime")

QUESTIONS, PAGES = 40, 30
JUDGE = """\
import json, sys, csv
arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
results = json.load(open(arguments["--results_file"]))
right = {r["Prompt"]: r["Answer"] for r in csv.DictReader(open(arguments["--dataset_path"], newline=""), delimiter="\\t")}
good = sum(right[r["query"]] == r["answer"] for r in results.values())
details = {"total_queries": len(results), "retrieval_precision": 0, "retrieval_recall": 0, "retrieval_f1": 0}
json.dump(details, open(arguments["--output"], "w"))
open(arguments["--log_dir"] + "/accuracy.txt", "w").write(f"Accuracy: {100 * good / len(results):.4f}\\n")
"""


SHORT = ("--duration", "1s")


def rehearse(work: Path, benchmark: str, model: Path | str, *words: str) -> Path:
    """Makes, packs and checks a rehearsal; returns the folder of the results."""
    request = [
        *("submit", "run", "--work", str(work), "--quiet", "--rehearsal"),
        *("--division", "closed", "--submitter", "LabOrg", "--system", "box"),
        *("--category", "datacenter", "--benchmark", benchmark, "--model", str(model), *words),
    ]
    assert main(request) == 0
    tree = work / "tree"
    assert main(["submit", "pack", "--work", str(work), "--to", str(tree)]) == 0
    assert main(["submit", "check", str(tree)]) == 4  # the tree has the mark of a rehearsal
    assert main(["submit", "check", str(tree), "--rehearsal"]) == 0
    (results,) = tree.glob(f"closed/Rehearsal/results/*/{benchmark}")
    return results


def score_of(results: Path, scenario: str) -> str:
    return (results / scenario / "accuracy/accuracy.txt").read_text().splitlines()[0]


def runs(work: Path, scenario: str, kind: str) -> Path:
    (folder,) = (work / "runs" / f"{scenario}-{kind}").glob("attempt-1")
    return folder / ("accuracy" if kind == "accuracy" else "performance/run_1")


def test_a_graph_is_rehearsed(tmp_path: Path) -> None:
    topics = write_igbh(tmp_path / "igbh", 400)
    rgat_model(tmp_path / "rgat.onnx", topics, wrong_share=0.25)
    words = (*SHORT, "--data-dir", str(tmp_path / "igbh"), "--backend", "ort")
    results = rehearse(tmp_path / "work", "rgat", manifest_in(tmp_path, "rgat"), *words)
    line = score_of(results, "Offline")
    good, total = (int(part.partition("=")[2]) for part in line.split(", ")[1:])
    assert (total, 280 <= good <= 320) == (400, True)
    assert line == f"accuracy={100 * good / total:.3f}%, good={good}, total=400"
    assert PASS in (results / "Offline/TEST01/verify_accuracy.txt").read_text()


def test_a_stream_of_requests_is_rehearsed(tmp_path: Path) -> None:
    """In both scenarios, the answers are in chronological order, and TEST08 finds these answers in the accuracy run."""
    write_streaming(tmp_path / "data", 300)
    dlrm_model(tmp_path / "dlrm_v3.onnx")
    data = ("--data-dir", str(tmp_path / "data"))
    words = (*SHORT, *data, "--backend", "ort", "--target-qps", "100")
    work = tmp_path / "work"
    results = rehearse(work, "dlrm-v3", manifest_in(tmp_path, "dlrm-v3"), *words)
    scores = [score_of(results, scenario).split() for scenario in ("Server", "Offline")]
    assert [word for word in scores[0] if ":" in word] == scores[1][::2]
    assert [float(n) for n in scores[0][1::2]] == pytest.approx([float(n) for n in scores[1][1::2]])
    for scenario in ("Server", "Offline"):
        assert PASS in (results / scenario / "TEST08/verify_accuracy.txt").read_text()
        logs = [runs(work, scenario, kind) / ACCURACY for kind in ("accuracy", "TEST08")]
        logged = sorted(read_logged_answers(logs[0]), key=lambda row: row.order)
        rows = [np.frombuffer(row.answer.payload, np.float32) for row in logged]
        assert len({tuple(row[:2]) for row in rows}) == 300
        assert all(len(row) == 3 + 3 * row[-1] for row in rows)
        by_order = [row[0] for row in rows]
        assert by_order == sorted(by_order)
        assert f"\n{PASS}\n" in verify_entropy(*logs)


@pytest.fixture
def service() -> Iterator[RagServer]:
    with RagServer(wrong_every=4, pages=PAGES) as server:
        yield server


def judge_words(folder: Path, url: str) -> Sequence[str]:
    """Returns MLCommons' program if a checkout is given, with the stand-in as its judge; otherwise a similar program."""
    if checkout := os.environ.get(CHECKOUT):
        pytest.importorskip("requests")
        script = Path(checkout) / "e2e-rag/accuracy_eval.py"
        return sys.executable, str(script), "--judge_service_url", f"{url}/v1/chat/completions"
    (folder / "accuracy_eval.py").write_text(JUDGE)
    return sys.executable, str(folder / "accuracy_eval.py")


def test_questions_with_retrieval_are_rehearsed(
    service: RagServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_frames(tmp_path / "frames_dataset.tsv", QUESTIONS)
    monkeypatch.setenv("RAG_JUDGE", " ".join(judge_words(tmp_path, service.url)))
    words = (
        *("--backend", "openai", "--url", service.url, "--data-dir", str(path)),
        *("--backend-option", "answer=text", "--backend-option", "stream=off"),
    )
    results = rehearse(tmp_path / "work", "e2e-rag-qna", "e2e-rag-qna", *words)
    assert score_of(results, "Offline").startswith("Accuracy: 75.0000, judged by accuracy_eval.py")
    text = (results / "Offline/TEST09" / OUTPUT).read_text()
    assert PASS in text
    assert "Mean output tokens: 270.00" in text
    logged = json.loads((results / "Offline/TEST09/accuracy" / ACCURACY).read_text())
    assert len(logged) >= 824


def test_a_run_without_a_judge_is_refused(
    service: RagServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    path = write_frames(tmp_path / "frames_dataset.tsv", QUESTIONS)
    monkeypatch.delenv("RAG_JUDGE", raising=False)
    words = [
        *("--scenario", "offline", "--model", "e2e-rag-qna", "--backend", "openai"),
        *("--url", service.url, "--data-dir", str(path), "--duration", "1s"),
        *("--backend-option", "answer=text", "--backend-option", "stream=off"),
        *("--out", str(tmp_path / "out")),
    ]
    assert main(words) == 2
    assert "export RAG_JUDGE='python PATH/accuracy_eval.py" in capsys.readouterr().err


def test_the_build_of_a_database_is_rehearsed(service: RagServer, tmp_path: Path) -> None:
    write_documents(tmp_path / "doc_html", PAGES)
    words = (
        "--backend",
        "http-json",
        "--url",
        service.url,
        "--data-dir",
        str(tmp_path / "doc_html"),
    )
    results = rehearse(tmp_path / "work", "e2e-rag-db", "e2e-rag-db", *words)
    assert score_of(results, "Offline").startswith(
        f"Accuracy: 100.0000, stored={PAGES}, total={PAGES}, md5="
    )
