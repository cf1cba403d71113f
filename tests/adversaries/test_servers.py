"""Each server that cheats with tokens ends as docs/adversaries.md says."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.units import NS_PER_MS
from tests.adversaries.test_cheats import PAGE
from tests.run.test_token_runs import SERVER, ran
from tests.stand_ins.servers.token_server import VLLM, Dialect

FIRST_MS = 30

MAX_TOKENS = 80
SHORT = replace(VLLM, tokens=MAX_TOKENS // 10)


def other_choice(_path: str, sent: bytes) -> bytes:
    return sent.replace(b'"index": 0', b'"index": 1')


SERVERS = {
    "forged-usage": replace(SHORT, factor=10),
    "forged-usage-of-text": replace(SHORT, ids=False, factor=10),
    "above-max-tokens": replace(SHORT, ids=False, usage="last", factor=20),
    "cuts-off": replace(SHORT, finish="abort", in_run=True),
    "no-end": replace(SHORT, finish=None, in_run=True),
    "another-choice": replace(SHORT, change=other_choice, in_run=True),
    "one-chunk": replace(SHORT, per_chunk=100),
    "empty-first-token": replace(SHORT, ids=False, lead="", first_s=FIRST_MS / 1000),
    "blank-first-token": replace(SHORT, ids=False, lead=" ", first_s=FIRST_MS / 1000),
}
QUICK = ("forged-usage", "cuts-off")


def rows() -> dict[str, str]:
    """Name -> the check that finds the cheat, according to the page."""
    part = PAGE.split("\n## Language models on a server\n")[1]
    return dict(re.findall(r"^\| `([\w-]+)` \| .* \| (.*) \|$", part, re.MULTILINE))


def test_the_page_lists_every_server() -> None:
    assert [*rows()] == [*SERVERS]


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in SERVERS]
)
def test_a_server_that_cheats_with_tokens_is_found(name: str, tmp_path: Path) -> None:
    """Bug: each was VALID without a doubt."""
    _, result = ran(
        tmp_path, SERVERS[name], *SERVER, "--mode", "performance", max_tokens=MAX_TOKENS
    )
    found = {entry["code"] for entry in (*result["reasons"], *result["doubts"])}
    code = re.match("`(.*)`", rows()[name])
    if code is None:
        assert result["tokens"]["ttft_ns"]["p50"] >= FIRST_MS * NS_PER_MS
    else:
        assert code[1] in found
        reasons = {reason["code"] for reason in result["reasons"]}
        if code[1] == "tokens-at-once":  # a doubt
            assert reasons <= {"client-bound"}  # doubts of a busy machine
        else:
            assert reasons


def test_an_honest_server_is_not_suspected(tmp_path: Path) -> None:
    _, result = ran(tmp_path, Dialect(), *SERVER, "--mode", "performance")
    found = {entry["code"] for entry in (*result["reasons"], *result["doubts"])}
    suspicions = ("tokens-contradicted", "tokens-doubtful", "tokens-at-once", "ends-unexplained")
    assert not found & {*suspicions, "prompt-changed", "requests-failed"}
