"""Makes a full-length rehearsal of a language benchmark, with a stand-in server that knows the right answers.

    python benchmarks/language_rehearsal.py BENCHMARK WORK [--official CHECKOUT]

BENCHMARK: llama2-70b-99.9, llama3.1-8b, llama3.1-8b-edge, deepseek-r1 (closed) or gpt-oss-120b (open). A rehearsal of a
language task cannot be shortened, because LoadGen does not count tokens in a quick run. The number of prompts and the
lengths of the answers match the benchmark. The scenarios run at the same time, and take about 25 minutes. The script
returns the exit status of `check`.

The numbers do not describe any model: the script tests the steps from runs to a submission.
"""

import argparse
import json
import os
import random
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.rehearsal import pack_and_check, run_lots, submit  # noqa: E402
from tests.stand_ins.servers.token_server import VLLM, Ask, TokenServer, text_of  # noqa: E402

SERVER_PORT = 41371
"""The port is fixed, so that a later call can continue the runs of an interrupted call."""

SCORER = ROOT / "tests/stand_ins/reference/eval_accuracy.py"
WORD, QUOTED = 6, 4
"""Positions in the server's word list: a word of five letters, which determines the length of an answer, and a
quotation.
"""


@dataclass(frozen=True)
class Row:
    model: str
    category: str
    samples: int
    tokens: int
    """Tokens of an answer, including the end token."""
    end: int
    conf: str
    """Content of user.conf. A run issues whole sets of samples. At these rates, the sets last only slightly longer than
    600 s.
    """
    answer_s: float
    per_chunk: int = 16
    connections: int = 64
    division: str = "closed"
    words: tuple[str, ...] = ("--backend-option=answer=text",)
    accuracy_samples: int = 0
    """Number of samples in the accuracy run's data set; 0 if all runs use the same data set."""


ROWS = {
    "llama2-70b-99.9": Row("llama2-70b", "datacenter", 24_576, 294, 2, "*.Server.target_qps = 40.2\n*.Offline.target_qps = 70\n", 0.83),
    "llama3.1-8b": Row("llama3.1-8b", "datacenter", 13_368, 122, 128_001, "*.Server.target_qps = 21.9\n*.Offline.target_qps = 38\n", 1.53),
    "llama3.1-8b-edge": Row("llama3.1-8b-edge", "edge", 5000, 122, 128_001, "*.SingleStream.target_latency = 125\n*.Offline.target_qps = 36.5\n", 0.125, connections=5),
    "deepseek-r1": Row("deepseek-r1", "datacenter", 4388, 3886, 1, "*.Server.target_qps = 7\n*.Offline.target_qps = 12.9\n", 4.67, 64, words=("--backend-option=answer=ids",)),
    "gpt-oss-120b": Row("gpt-oss-120b", "datacenter", 6396, 1278, 200_002, "*.Server.target_qps = 10.3\n*.Offline.target_qps = 18.8\n", 3.2, 64, division="open", words=("--backend-option=answer=ids",), accuracy_samples=4395),
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("benchmark", choices=ROWS)
    parser.add_argument("work", type=Path)
    parser.add_argument("--official", type=Path)
    options = parser.parse_args()
    work, row = options.work.absolute(), ROWS[options.benchmark]
    work.mkdir(parents=True, exist_ok=True)
    (work / "user.conf").write_text(row.conf)
    prompts, right = work / "prompts.jsonl", work / "right.json"
    answers = [answer(number, row) for number in range(row.samples)]
    write_prompts(prompts, answers)
    right.write_text(json.dumps(answers))
    own = []
    if row.accuracy_samples:
        own = [f"--accuracy-data={work / 'accuracy.jsonl'}"]
        write_prompts(work / "accuracy.jsonl", answers[: row.accuracy_samples])
    scorer = [sys.executable, str(SCORER), "--dataset-file", str(right)]
    os.environ["ANSWER_SCORER"] = shlex.join(scorer)
    chunks = -(-row.tokens // row.per_chunk)
    dialect = replace(
        VLLM,
        tokens=1,  # this number is only a placeholder, because `reply` replaces the answer
        per_chunk=row.per_chunk,
        reply=lambda ask: _answer_to(ask, answers),
        first_s=row.answer_s / chunks,
        gap_s=row.answer_s / chunks,
        usage="last",
    )
    with TokenServer(dialect, SERVER_PORT) as server:
        submit(
            "plan",
            f"--work={work}",
            *("--rehearsal", f"--division={row.division}", "--submitter=LabOrg", "--system=asleep"),
            *(f"--category={row.category}", f"--benchmark={options.benchmark}"),
            *(f"--model={row.model}", f"--data-dir={prompts}", f"--user-conf={work / 'user.conf'}"),
            *("--backend=openai", f"--url={server.url}", f"--connections={row.connections}"),
            *("--hang-timeout=30min", *row.words, *own),
        )
        first = {"edge": "SingleStream", "datacenter": "Server"}[row.category]
        scenarios = (first, "Offline") if row.division == "closed" else ("Offline",)
        status = run_lots(work, scenarios)
    return status or pack_and_check(work, options.official)


def write_prompts(path: Path, answers: Sequence[Sequence[int]]) -> None:
    with path.open("w") as file:
        for number, ids in enumerate(answers):
            line = {"input_ids": [7, 100 + number, 8], "reference": text_of([*ids])}
            file.write(json.dumps(line) + "\n")


def answer(number: int, row: Row) -> list[int]:
    """Returns token ids that differ between prompts and end with the model's end token."""
    draw = random.Random(number)
    kinds = draw.choices((WORD, QUOTED), weights=(9, 1), k=row.tokens - 1)
    return [8 * draw.randrange(50, 3000) + kind for kind in kinds] + [row.end]


def _answer_to(ask: Ask, answers: Sequence[list[int]]) -> list[int]:
    """Returns the right answer to a prompt from the file, and the server's usual answer to any other prompt."""
    prompt: Any = ask.prompt
    if isinstance(prompt, list) and len(prompt) == 3 and 0 <= prompt[1] - 100 < len(answers):
        return answers[int(prompt[1]) - 100][: ask.most]
    return ask.ids


if __name__ == "__main__":
    sys.exit(main())
