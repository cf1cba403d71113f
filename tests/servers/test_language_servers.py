"""Tests the remote backend openai with llama.cpp, and with vLLM and transformers' server, which serve the embedded
language model.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.cli.main import main
from harness.datasets.text.digit_strings import FILE
from tests.servers.real_servers import Addresses

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(1800)]
"""The first test that needs a server installs it, which takes several GB."""

PROMPTS = 40
QUERIES = "70"
"""Number of queries; single-stream's percentile needs at least 64 queries."""


def prompts(path: Path, kind: str) -> Path:
    """Writes the first PROMPTS of digit-strings as `prompt` or `messages`."""
    rows = [json.loads(line) for line in FILE.read_text().splitlines()[:PROMPTS]]
    with path.open("w") as file:
        for row in rows:
            text = row["text"]
            asked = [{"role": "user", "content": text}] if kind == "messages" else text
            print(json.dumps({kind: asked, "reference": row["reference"]}), file=file)
    return path


def ran(addresses: Addresses, out: Path, words: Sequence[str]) -> dict[str, Any]:
    """Returns the result of a run without failures."""
    more = ("--no-metrics", "--request-timeout", "200s", "--out", str(out))
    asked = ("--backend", "openai", "--url", addresses.url, "--model", "tinylm")
    assert main([*asked, *words, *more]) in (0, 4)
    result: dict[str, Any] = json.loads((out / "result.json").read_text())
    assert {r["code"] for r in result["reasons"]} <= {"client-bound"}, result["reasons"]
    assert result["accuracy"]["value"] == 100.0
    return result


SERVER = ("--scenario", "server", "--target-qps", "5", "--queries", QUERIES, "--mode", "both")
SHORT = ("--backend-option", "max_tokens=24")
"""vLLM refuses a prompt if its length plus max_tokens exceeds the model's context."""
OF_TOKENS = ("--slo", "ttft:p90=100s", "--slo", "tpot:p90=50s", "--slo", "itl:p90=50s")


def test_vllm_answers_ids_with_ids_and_counts_the_tokens_per_chunk(
    vllm: Addresses, tmp_path: Path
) -> None:
    result = ran(vllm, tmp_path / "run", (*SERVER, *OF_TOKENS, *SHORT))
    about, tokens = result["backend_description"], result["tokens"]
    assert about["framework"] == "vllm 0.32.0"
    assert about["endpoints"]["/v1/completions"]["answers"] == "ids"
    assert (tokens["source"], tokens["is_exact"]) == ("usage", True)
    assert tokens["finish_reasons"] == {"stop": int(QUERIES)}
    assert tokens["changed_prompts"] == 0
    told = result["servers"]
    assert (told["absent"], told["preemptions"]) == ("", 0)
    assert 0 < told["generated_tokens"] <= tokens["output"]
    assert 0 < tokens["tpot_ns"]["p50"] < tokens["ttft_ns"]["p50"] * 100
    assert main(["check", str(tmp_path / "run")]) == 0


def test_vllm_answers_a_chat(vllm: Addresses, tmp_path: Path) -> None:
    data = prompts(tmp_path / "chat.jsonl", "messages")
    words = ("--scenario", "single-stream", "--mode", "accuracy", "--dataset", "prompts")
    result = ran(vllm, tmp_path / "run", (*words, "--data-dir", str(data), *SHORT))
    assert result["accuracy"]["samples"] == PROMPTS


@pytest.mark.parametrize("kind", ["prompt", "messages"])
def test_transformers_answers_texts_and_chats_without_a_list_of_models(
    kind: str, transformers: Addresses, tmp_path: Path
) -> None:
    data = prompts(tmp_path / "prompts.jsonl", kind)
    words = ["--scenario", "single-stream", "--mode", "both", "--queries", QUERIES]
    more = ["--dataset", "prompts", "--data-dir", str(data)]
    more += ["--backend-option", f"served={transformers.served}"]
    result = ran(transformers, tmp_path / "run", (*words, *more))
    tokens = result["tokens"]
    assert (tokens["source"], tokens["is_exact"]) == ("usage", False)
    assert tokens["finish_reasons"] == {"stop": int(QUERIES)}
    assert tokens["ttft_ns"]["p50"] > 0
    assert main(["check", str(tmp_path / "run")]) == 0


def test_llama_cpp_answers_token_ids_although_its_file_has_no_vocabulary(
    llama_cpp_tinylm: Addresses, tmp_path: Path
) -> None:
    """Bug: the test prompt before the run was a text, which this server refuses."""
    ids = ("--backend-option", "body={logprobs: 1}", *SHORT)
    words = ("--scenario", "single-stream", "--queries", QUERIES, "--mode", "both")
    result = ran(llama_cpp_tinylm, tmp_path / "run", (*words, *ids))
    assert result["backend_description"]["endpoints"]["/v1/completions"]["answers"] == "ids"
    assert (result["tokens"]["source"], result["tokens"]["is_exact"]) == ("usage", True)


RANDOM_WEIGHTS = """\
name: tiny
files: {}
inputs: [{name: request, dtype: string, shape: [batch]}]
outputs: [{name: answer}]
dataset: prompts
"""


@pytest.mark.parametrize("stream", ["on", "off"])
def test_run_stays_valid_if_llama_cpp_closes_connections(
    stream: str, llama_cpp: Addresses, tmp_path: Path
) -> None:
    """Bug: every streamed run was `resent-often`, with the advice to raise the keep-alive time."""
    (tmp_path / "tiny.yaml").write_text(RANDOM_WEIGHTS)
    data = prompts(tmp_path / "prompts.jsonl", "prompt")
    words = [
        "--scenario",
        "server",
        "--backend",
        "openai",
        "--url",
        llama_cpp.url,
        "--concurrency",
        "4",
    ]
    words += ["--model", str(tmp_path / "tiny.yaml"), "--data-dir", str(data), "--queries", "460"]
    words += ["--backend-option", f"stream={stream}", "--backend-option", "max_tokens=8"]
    words += [
        "--slo",
        "p99=60s",
        "--mode",
        "performance",
        "--no-metrics",
        "--out",
        str(tmp_path / "run"),
    ]
    assert main(words) in (0, 4)
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert {r["code"] for r in result["reasons"]} <= {"client-bound"}, result["reasons"]
    assert result["queries"]["samples_failed"] == 0
    assert result["tokens"]["output"] == 460 * 8
