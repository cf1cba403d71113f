"""Each language-model server that lies ends as docs/adversaries.md says, and an honest server is not suspected."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.cli.main import main
from harness.core.units import NS_PER_MS
from tests.adversaries.test_cheats import PAGE
from tests.run.test_token_runs import MANIFEST
from tests.stand_ins.servers.lying_server import (
    DIALECTS,
    LONG,
    MAX_TOKENS,
    SLOW_S,
    prompt_ids,
)
from tests.stand_ins.servers.token_server import Dialect, TokenServer, ids_of, text_of

QUERIES = 120
QUICK = ("forged-usage", "cuts-off", "warm-cache", "answers-of-another")

TEXT_WORDS = 200
_BOTH = ("--mode", "both", "--metric", "exact_match", "--backend-option", "answer=text")
_SECONDS = ("--target-qps", "18")  # the run is long enough for several readings of the metrics page
WORDS: Mapping[str, tuple[str, ...]] = {
    "ends-early": ("--backend-option", "ignore_eos=on"),
    "counted-tail": ("--backend-option", "ignore_eos=on"),
    "sampled-answers": _BOTH,
    "page-of-fewer": _SECONDS,
    "page-of-hits": _SECONDS,
    "early-first-token": ("--target-qps", "40"),
}
KINDS = {"short-context-of-text": "prompt", "dropped-tools": "tools", "role-first": "messages"}

SUSPICIONS = frozenset(
    (
        *("tokens-contradicted", "tokens-doubtful", "tokens-at-once", "ends-unexplained"),
        *("prompt-changed", "requests-failed", "prefix-cache", "cached", "answers-vary"),
        *("answers-alike", "ids-repeated", "fields-ignored", "reasoning-cut", "other-model"),
        *("first-token-early", "answers-differ"),
    )
)
"""Codes of doubts and reasons that accuse a server."""


def row_of(kind: str, number: int, ids: list[int]) -> dict[str, Any]:
    if kind == "input_ids":
        reference = text_of(ids_of(ids, MAX_TOKENS))
        return {"input_ids": ids, "max_tokens": MAX_TOKENS, "reference": reference}
    if kind == "prompt":
        words = " ".join(f"{number}{token}" for token in ids * (TEXT_WORDS // len(ids)))
        return {"prompt": words, "max_tokens": MAX_TOKENS}
    # Every message has five digits, because the server counts messages as tokens.
    message = {
        "role": "user",
        "content": f"sort {number:05}",
    }
    row = {"messages": [message], "max_tokens": MAX_TOKENS}
    if kind == "tools":
        function = {"name": "look", "parameters": {"type": "object", "properties": {}}}
        row |= {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    return row


def ran(folder: Path, dialect: Dialect, *words: str, kind: str = "input_ids") -> dict[str, Any]:
    rows = [row_of(kind, number, ids) for number, ids in enumerate(prompt_ids())]
    data = folder / "prompts.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "tiny.yaml").write_text(MANIFEST)
    load = ("--scenario", "server", "--target-qps", "100", "--queries", str(QUERIES))
    with TokenServer(dialect) as server:
        main(
            [
                *("--backend", "openai", "--url", server.url, "--model", str(folder / "tiny.yaml")),
                *("--data-dir", str(data), "--connections", "8", "--no-metrics", "--no-report"),
                *(*load, "--slo", "p90=5s", "--mode", "performance", "--out", str(folder / "run")),
                *words,
            ]
        )
    result: dict[str, Any] = json.loads((folder / "run" / "result.json").read_text())
    return result


def codes(result: Mapping[str, Any]) -> set[str]:
    return {entry["code"] for entry in (*result["reasons"], *result["doubts"])}


def rows() -> dict[str, str]:
    """Maps each server's name to the check that finds its lie, according to the page."""
    part = PAGE.split("\n## Language models on a server\n")[1]
    return dict(re.findall(r"^\| `([\w-]+)` \| .* \| (.*) \|$", part, re.MULTILINE))


def test_the_page_lists_every_server() -> None:
    assert [*rows()] == [*DIALECTS]


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in DIALECTS]
)
def test_a_server_that_lies_is_found(name: str, tmp_path: Path) -> None:
    """Bug: most of these runs were VALID and caused no doubt."""
    kind = KINDS.get(name, "input_ids")
    result = ran(tmp_path, DIALECTS[name](), *WORDS.get(name, ()), kind=kind)
    code = re.match("`(.*)`", rows()[name])
    if code is None:
        assert result["tokens"]["ttft_ns"]["p50"] >= SLOW_S * 1000 * NS_PER_MS
        assert not codes(result) & SUSPICIONS
    else:
        assert code[1] in codes(result)


@pytest.mark.parametrize("kind", ["input_ids", pytest.param("prompt", marks=pytest.mark.slow)])
@pytest.mark.parametrize("streams", ["on", pytest.param("off", marks=pytest.mark.slow)])
def test_an_honest_server_is_not_suspected(kind: str, streams: str, tmp_path: Path) -> None:
    dialect = replace(LONG, first_s=0.002, gap_s=0.0005)
    result = ran(tmp_path, dialect, "--backend-option", f"stream={streams}", kind=kind)
    assert not codes(result) & SUSPICIONS, result["doubts"]
    probe = result["tokens"]["prompt_probe"]
    # On a busy machine, the probe may give "too long" as its reason instead of its rounds.
    assert probe.get("rounds") or "too long" in probe["reason"]
