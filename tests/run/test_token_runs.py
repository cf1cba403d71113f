"""Complete runs with a language model on a server: tokens are counted, failures reported, and answers scored."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from harness.cli.main import main
from harness.core.units import NS_PER_MS
from harness.loadgen.logs import ACCURACY, read_logged_answers
from tests.stand_ins.servers.token_server import (
    LLAMA_CPP,
    VLLM,
    Dialect,
    TokenServer,
    ids_of,
    text_of,
)

MANIFEST = """\
name: tiny
files: {}
inputs: [{name: request, dtype: string, shape: [batch]}]
outputs: [{name: answer}]
dataset: prompts
"""
QUERIES = 100
TOKENS = 6


def prompts(folder: Path, *, max_tokens: int = TOKENS) -> Path:
    path = folder / "prompts.jsonl"
    rows = [
        {
            "input_ids": list(range(1, 3 + i)),
            "max_tokens": max_tokens + i % 2,
            "category": "numbers",
            "reference": text_of(ids_of(list(range(1, 3 + i)), max_tokens + i % 2)),
        }
        for i in range(10)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "tiny.yaml").write_text(MANIFEST)
    return path


def ran(
    folder: Path,
    dialect: Dialect,
    *words: str,
    sent_ns: list[list[int]] | None = None,
    max_tokens: int = TOKENS,
) -> tuple[int, dict[str, Any]]:
    """sent_ns: receives the times at which the server sent each stream's chunks."""
    data = prompts(folder, max_tokens=max_tokens)
    with TokenServer(dialect) as server:
        status = main(
            [
                *("--backend", "openai", "--url", server.url, "--model", str(folder / "tiny.yaml")),
                *("--data-dir", str(data), "--connections", "8", "--no-metrics", "--no-report"),
                *("--out", str(folder / "run"), *words),
            ]
        )
    if sent_ns is not None:
        sent_ns += server.sent
    return status, json.loads((folder / "run" / "result.json").read_text())


def right(status: int, result: dict[str, Any]) -> dict[str, Any]:
    """Returns the result of a run without failures, which may be `client-bound` on a busy machine."""
    assert {r["code"] for r in result["reasons"]} <= {"client-bound"}, result["reasons"]
    assert status == (4 if result["reasons"] else 0)
    return result


SERVER = (
    "--scenario",
    "server",
    "--target-qps",
    "100",
    "--slo",
    "p90=5s",
    "--queries",
    str(QUERIES),
)


OF_TOKENS = ("--slo", "ttft:p90=4s", "--slo", "tpot:p90=3s", "--slo", "itl:p90=2s")


def test_references_in_only_some_lines_are_refused_before_the_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Bug: the run measured the whole file, and then could not score the answers."""
    data = prompts(tmp_path)
    lines = data.read_text().splitlines()
    data.write_text("\n".join([*lines[:4], *(x.replace("reference", "id") for x in lines[4:])]))
    with TokenServer(VLLM) as server:
        words = ["--backend", "openai", "--url", server.url, "--model", f"{tmp_path}/tiny.yaml"]
        words += ["--data-dir", str(data), "--metric", "exact_match", "--no-metrics"]
        words += ["--backend-option", "answer=text", "--out", f"{tmp_path}/run"]
        assert main([*SERVER, *words]) == 2
    assert (
        f"harness: {data}: only 4 of 10 samples have a label (prompts: `reference`), so no accuracy can be computed: "
        "give all samples a label, or pass --mode performance\n"
    ) in capfd.readouterr().err


def test_tokens_are_counted_and_answers_of_any_length_are_taken(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = (*SERVER, "--mode", "performance", "--backend-option", "stream=off")
    result = right(*ran(tmp_path, VLLM, *words))
    tokens = result["tokens"]
    assert tokens["answers"] == QUERIES
    assert QUERIES * TOKENS <= tokens["output"] <= QUERIES * (TOKENS + 1)
    assert tokens["output_mean"] == tokens["output"] / QUERIES
    assert tokens["source"] == "usage"
    assert tokens["finish_reasons"] == {"length": QUERIES}
    assert tokens["input"] >= 2 * QUERIES
    assert tokens["output_per_s"] > 0
    assert tokens["ttft_ns"] is tokens["itl_ns"] is tokens["chunk_gap_ns"] is None
    assert (tokens["compared_prompts"], tokens["changed_prompts"]) == (10, 0)
    assert "harness: dataset: not sent: category; put further" in capfd.readouterr().err
    assert main(["check", str(tmp_path / "run")]) == 0


def test_answers_are_scored_as_texts(tmp_path: Path) -> None:
    pytest.importorskip("rouge_score")
    words = ("--scenario", "offline", "--mode", "accuracy", "--metric", "rouge")
    status, result = ran(tmp_path, VLLM, *words, "--backend-option", "answer=text")
    assert status == 0, result["reasons"]
    assert result["accuracy"]["samples"] == 10
    assert result["accuracy"]["value"] == 100.0


@pytest.mark.parametrize(
    ("words", "told"),
    [((), 4), pytest.param(("--backend-option", "answer=text"), 0, marks=pytest.mark.slow)],
)
def test_loadgen_receives_the_id_of_each_first_token(
    words: Sequence[str], told: int, tmp_path: Path
) -> None:
    """MLPerf's TEST06 compares the id with the answer. told: number of bytes of the id; 0 for a text, which has no ids."""
    dialect = replace(VLLM, per_chunk=2)
    both = (*SERVER, "--mode", "both", "--metric", "exact_match", *OF_TOKENS)
    ran(tmp_path, dialect, *both, *words)
    logged = [*read_logged_answers(tmp_path / "run/performance/run_1" / ACCURACY)]
    assert logged
    for row in logged:
        assert row.first_token == row.answer.payload[:told]
        assert row.tokens in (TOKENS, TOKENS + 1)


def test_the_times_of_tokens_are_those_of_the_server(tmp_path: Path) -> None:
    dialect = replace(VLLM, first_s=0.02, gap_s=0.01, per_chunk=2)
    words = (*SERVER, "--mode", "performance", "--target-qps", "50", *OF_TOKENS)
    sent_ns: list[list[int]] = []
    result = right(*ran(tmp_path, dialect, *words, sent_ns=sent_ns))
    tokens = result["tokens"]
    assert tokens["is_exact"]
    assert QUERIES * TOKENS <= tokens["output"] <= QUERIES * (TOKENS + 1)
    # Each stream has 6 tokens in 3 chunks, or 7 tokens in 4 chunks. A busy server sends all chunks late, but records
    # the actual sending times.
    streams = sent_ns[-QUERIES:]
    gaps_ns = [later - earlier for sent in streams for earlier, later in pairwise(sent)]
    assert tokens["chunk_gap_ns"]["p50"] == pytest.approx(median(gaps_ns), rel=0.25)
    assert tokens["itl_ns"]["p50"] == pytest.approx(median(gaps_ns) / 2, rel=0.25)
    assert tokens["ttft_ns"]["p50"] >= 20 * NS_PER_MS
    assert 0 < tokens["tpot_ns"]["p50"] < tokens["chunk_gap_ns"]["p50"]
    assert 1.7 < tokens["tokens_per_chunk"] <= 3
    loadgen = tokens["loadgen"]
    assert loadgen["ttft_ns"]["p50"] > tokens["ttft_ns"]["p50"], "LoadGen is told a moment later"
    assert loadgen["tokens_per_s"] == pytest.approx(tokens["output_per_s"], rel=0.2)
    assert result["headline"]["source"] == "LoadGen result_completed_tokens_per_second"
    assert result["slo"] == "p90=5s ttft:p90=4s tpot:p90=3s itl:p90=2s"
    assert result["goodput"]["share"] == 1
    assert [one["of"] for one in result["goodput"]["slos"]] == [QUERIES] * 3 + [
        tokens["output"] - QUERIES
    ]
    assert main(["check", str(tmp_path / "run")]) == 0


@pytest.mark.slow
def test_a_server_that_counts_at_the_end_only_has_no_time_between_tokens(tmp_path: Path) -> None:
    dialect = replace(VLLM, ids=False, usage="last", per_chunk=3, begin=1, cached=2)
    words = (*SERVER, "--mode", "performance")
    result = right(*ran(tmp_path, dialect, *words))
    tokens = result["tokens"]
    assert (tokens["is_exact"], tokens["itl_ns"]) == (False, None)
    assert tokens["ttft_ns"]["p50"] > 0
    assert tokens["chunk_gap_ns"]["p50"] >= 0
    assert (tokens["cached"], tokens["cached_answers"]) == (2 * QUERIES, QUERIES)
    assert {"prefix-cache", "prompt-changed"} <= {doubt["code"] for doubt in result["doubts"]}


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["single-stream", "server"])
def test_answers_of_one_token_are_reported_unchanged(tmp_path: Path, scenario: str) -> None:
    words = ("--scenario", scenario, "--queries", str(QUERIES), "--mode", "performance", *OF_TOKENS)
    status, result = ran(tmp_path, replace(VLLM, tokens=1), *words)
    assert status == 4
    codes = [reason["code"] for reason in result["reasons"]]
    assert codes[:2] == ["one-token-answers", "loadgen-errors"]
    assert result["queries"]["samples_answered"] == QUERIES
    assert result["tokens"]["loadgen"]["tpot_ns"] is None
    assert main(["check", str(tmp_path / "run")]) == 0


@pytest.mark.slow
def test_single_stream_is_quoted_by_the_latency_of_its_queries(tmp_path: Path) -> None:
    words = ("--scenario", "single-stream", "--queries", str(QUERIES), "--mode", "performance")
    result = right(*ran(tmp_path, replace(VLLM, gap_s=0.002), *words, *OF_TOKENS))
    assert result["headline"]["source"] == "LoadGen result_90.00_percentile_latency_ns"
    assert result["tokens"]["loadgen"]["tpot_ns"]["p50"] > 1.5 * NS_PER_MS


def test_token_slo_needs_a_server_that_counts_tokens(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    prompts(tmp_path)
    with TokenServer(replace(VLLM, ids=False, usage="none")) as server:
        words = ["--backend", "openai", "--url", server.url, "--model", str(tmp_path / "tiny.yaml")]
        words += ["--data-dir", str(tmp_path / "prompts.jsonl"), "--connections", "2", *SERVER]
        assert main([*words, "--no-metrics", "--out", str(tmp_path / "run"), *OF_TOKENS]) == 2
    assert (
        "harness: --slo ttft:p90=4s needs token counts, but the server does not count the tokens of its answers: drop it, or have the "
        "server send `usage` or token ids"
    ) in capfd.readouterr().err


def test_an_error_within_a_stream_is_a_failed_sample(tmp_path: Path) -> None:
    dialect = replace(VLLM, fault="error", every=10, in_run=True)
    status, result = ran(tmp_path, dialect, *SERVER, "--mode", "performance", *OF_TOKENS)
    assert status == 4
    assert result["tokens"]["loadgen"]["tpot_ns"] is None
    assert result["client"]["failures"] == {"refused": QUERIES // 10}
    assert result["queries"]["samples_answered"] == QUERIES
    (text,) = [r["text"] for r in result["reasons"] if r["code"] == "requests-failed"]
    assert "the server answered 200: out of memory" in text


@pytest.mark.slow
def test_an_error_in_a_reply_is_a_failed_sample(tmp_path: Path) -> None:
    dialect = replace(VLLM, fault="error-200", every=10, in_run=True)
    status, result = ran(tmp_path, dialect, *SERVER, "--mode", "performance")
    assert status == 4
    assert result["client"]["failures"] == {"refused": QUERIES // 10}
    assert result["tokens"]["answers"] == QUERIES - QUERIES // 10
    (text,) = [r["text"] for r in result["reasons"] if r["code"] == "requests-failed"]
    assert "the server answered 200: the engine is dead" in text


@pytest.mark.parametrize("stream", ["on", pytest.param("off", marks=pytest.mark.slow)])
def test_server_without_token_counts_is_timed_too(tmp_path: Path, stream: str) -> None:
    """Bug: the run was lost after its last answer, because the prompts to compare were missing."""
    words = (*SERVER, "--mode", "performance", "--backend-option", f"stream={stream}")
    result = right(*ran(tmp_path, replace(VLLM, ids=False, usage="none"), *words))
    tokens = result["tokens"]
    assert tokens["answers"] == QUERIES
    for key in ("input", "output", "output_per_s", "tpot_ns", "itl_ns", "cached"):
        assert tokens[key] is None
    assert result["latency_ns"]["p90"] > 0
    assert (tokens["ttft_ns"] is not None) == (stream == "on")
    assert (tokens["compared_prompts"], tokens["finish_reasons"]) == (0, {"length": QUERIES})
    assert main(["check", str(tmp_path / "run")]) == 0


@pytest.mark.parametrize("stream", ["on", pytest.param("off", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("dialect", "replies"),
    [
        pytest.param(LLAMA_CPP, 1, id="closes"),
        pytest.param(
            replace(VLLM, http="1.0", per_chunk=3), None, id="http-1.0", marks=pytest.mark.slow
        ),
    ],
)
def test_replies_that_end_their_connection_are_accepted(
    tmp_path: Path, dialect: Dialect, replies: int | None, stream: str
) -> None:
    """The server closes the connection after each stream, as llama.cpp does, or after each reply, as in HTTP/1.0."""
    words = (*SERVER, "--mode", "performance", "--backend-option", f"stream={stream}")
    result = right(*ran(tmp_path, dialect, *words))
    client = result["client"]
    assert (client["resent"], client["failures"]) == (0, {})
    assert client["replies_per_connection"] == (replies if stream == "on" else None)
    assert result["tokens"]["answers"] == QUERIES
    assert {doubt["code"] for doubt in result["doubts"]}.isdisjoint(
        {"resent", "server-away", "tokens-doubtful", "tokens-at-once", "ends-unexplained"}
    )


EMPTY = {
    "server": (*SERVER, *OF_TOKENS),
    "closed-loop": ("--scenario", "server", "--concurrency", "4", "--queries", "60"),
    "single-stream": ("--scenario", "single-stream", "--queries", "1"),
    "multi-stream": ("--scenario", "multi-stream", "--queries", "5"),
    "offline": ("--scenario", "offline", "--queries", "40"),
}


@pytest.mark.parametrize(
    "name", ["server", *(pytest.param(name, marks=pytest.mark.slow) for name in [*EMPTY][1:])]
)
def test_run_without_one_answer_keeps_its_measurements(tmp_path: Path, name: str) -> None:
    """Bug: a run with a lost answer ended with a traceback, and its numbers were lost."""
    dialect = replace(VLLM, fault="error", in_run=True)
    status, result = ran(tmp_path, dialect, *EMPTY[name], "--mode", "performance")
    assert status == 4
    queries, tokens = result["queries"], result["tokens"]
    assert queries["samples_failed"] == queries["samples_answered"] == queries["samples_issued"] > 0
    assert (tokens["answers"], tokens["input"], tokens["output"]) == (0, None, None)
    assert tokens["ttft_ns"] is tokens["tpot_ns"] is tokens["itl_ns"] is None
    assert "requests-failed" in {reason["code"] for reason in result["reasons"]}
    assert main(["check", str(tmp_path / "run")]) == 0
