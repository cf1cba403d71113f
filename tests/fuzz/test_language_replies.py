"""Replies of language servers with missing or odd values, over a socket: the run ends with a complete result or one
line.

test_fuzz.py describes the search with new seeds.
"""

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from harness.cli.main import main
from harness.core.formats.sse import DONE
from tests.faults.command import only_all
from tests.fuzz import mutate
from tests.fuzz.test_fuzz import ROUNDS, SEED
from tests.run.test_token_runs import prompts
from tests.stand_ins.servers.token_server import VLLM, TokenServer

QUERIES = 40
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PATHS = ((COMPLETIONS,), (CHAT,), ("/v1/models", "/version"))
SHARE = 0.1
"""Share of the run's replies and events that are changed; replies before the run stay as they are."""


def ran(seed: int, folder: Path, sent: list[bytes]) -> int:
    """Returns the exit status of a run against a server that changes some replies by the seed; `sent` collects the
    changed replies.
    """
    random = Random(seed)
    paths = PATHS[seed % len(PATHS)]
    in_run = COMPLETIONS in paths or random.random() < 0.5
    stream = random.choice(["on", "off"])

    def change(path: str, data: bytes) -> bytes:
        if path not in paths or data == DONE or (in_run and random.random() >= SHARE):
            return data
        sent.append(mutate.json_document(data, random if in_run else Random(f"{seed} {path}")))
        return sent[-1]

    dialect = replace(VLLM, ids=random.random() < 0.5, in_run=in_run, change=change)
    data = prompts(folder)
    if CHAT in paths:
        rows = [{"messages": [{"role": "user", "content": f"{i}"}]} for i in range(10)]
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with TokenServer(dialect) as server:
        return main(
            [
                *("--backend", "openai", "--url", server.url, "--model", str(folder / "tiny.yaml")),
                *("--data-dir", str(data), "--scenario", "server", "--target-qps", "400"),
                *("--slo", "p90=5s", "--queries", str(QUERIES), "--mode", "performance"),
                *("--backend-option", f"stream={stream}", "--backend-option", "max_tokens=6"),
                *("--request-timeout", "5s", "--no-metrics", "--no-report"),
                *("--out", str(folder / "run")),
            ]
        )


def holds(seed: int, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder.mkdir()
    run, sent = folder / "run", list[bytes]()
    status = ran(seed, folder, sent)
    printed, said = capfd.readouterr()
    told = f"seed {seed}: {status}: {said[-2000:]} {[data[:500] for data in sent[:9]]}"
    assert "Traceback" not in printed + said, told
    if status == 2:
        assert said.count("harness: ") == len(said.splitlines()) < 3, told
        assert len(said.splitlines()[-1]) < 1500, told
        return
    assert status in (0, 4), told
    result = json.loads((run / "result.json").read_text())
    assert result["queries"]["samples_issued"] == QUERIES, told
    assert result["queries"]["samples_answered"] == QUERIES, told
    failed = result["queries"]["samples_failed"]
    assert sum(result["client"]["failures"].values()) == failed, told
    assert result["tokens"]["answers"] + failed == QUERIES, told
    assert bool(failed) <= (status == 4), told
    assert result["latency_ns"] is not None, told
    assert main(["check", str(run)]) == 0, told


@pytest.mark.parametrize("seed", [0, *only_all(*range(1, len(PATHS)))])
def test_odd_replies_of_a_language_server_are_a_result_or_one_line(
    seed: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    holds(seed, tmp_path / "fast", capfd)


@pytest.mark.slow
@pytest.mark.limit_s(7200)
def test_many_odd_replies_of_a_language_server_are_handled(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for seed in range(SEED, SEED + ROUNDS):
        holds(seed, tmp_path / str(seed), capfd)
