"""Counts the reasons and doubts of honest runs, in every scenario, with every backend, servers and nodes.

    python benchmarks/honest_runs.py [--rounds 4] [--python PATH] [--only PATTERN] [--language-models]

No run in this script cheats or is broken, so any reason is a fault of the harness or of the machine. Each row counts
the runs, the VALID runs, and the runs with each reason and doubt. --python runs the harness from another environment,
such as an earlier commit, so that a comparison of the rows shows new reasons and doubts. --language-models adds
language-model servers of many kinds and under many loads. The last row then counts the runs that accuse a server, which
must be 0.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from harness.core.console import say, show
from tests.stand_ins.servers.token_server import (
    LLAMA_CPP,
    TRANSFORMERS,
    VLLM,
    Ask,
    Chunk,
    Dialect,
    TokenServer,
)

SCENARIOS = ("single-stream", "multi-stream", "server", "offline")
BACKENDS = ("null", "ort", "tensorflow", "openvino", "litert", "torch", "executorch", "trees")
_WAIT_S = 300

ACCUSING = (
    *("tokens-contradicted", "tokens-doubtful", "tokens-at-once", "ends-unexplained", "cached"),
    *("prompt-changed", "requests-failed", "prefix-cache", "answers-vary", "answers-alike"),
    *("ids-repeated", "fields-ignored", "reasoning-cut", "other-model", "first-token-early"),
    *("answers-differ", "journal-impossible"),
)
"""Codes that accuse a language-model server."""

_SLO = ("--slo", "p90=20s")
LOADS: Mapping[str, Sequence[str]] = {
    "single-stream": ("--scenario", "single-stream"),
    "single-stream stream=off": ("--scenario", "single-stream", "--backend-option", "stream=off"),
    "multi-stream": ("--scenario", "multi-stream"),
    "server 20/s": ("--scenario", "server", "--target-qps", "20", "--duration", "3s", *_SLO),
    "server 80/s": ("--scenario", "server", "--target-qps", "80", *_SLO),
    "server stream=off": (
        *("--scenario", "server", "--target-qps", "40", "--backend-option", "stream=off", *_SLO),
    ),
    "concurrency 4": ("--scenario", "server", "--concurrency", "4", "--queries", "200", *_SLO),
    "concurrency 32": ("--scenario", "server", "--concurrency", "32", "--queries", "300", *_SLO),
    "offline": ("--scenario", "offline"),
    "bursts": ("--scenario", "server", "--arrivals", "{folder}/bursts.csv", *_SLO),
    "ramp": (
        *("--scenario", "server", "--arrivals", "ramp:10,factor=2,step=500ms"),
        *("--duration", "2s", "--slo", "p90=300ms"),
    ),
    "probes": (
        *("--scenario", "server", "--target-qps", "20", "--duration", "3s", "--probe-rate", "10"),
        *_SLO,
    ),
    "cancelled": (
        *("--scenario", "server", "--concurrency", "8", "--queries", "200", "--cancel", "20%@8ms"),
        *_SLO,
    ),
    "two load hosts": (
        *("--scenario", "server", "--target-qps", "40", "--load-hosts", "2", *_SLO),
    ),
    "fresh": ("--scenario", "single-stream", "--backend-option", "fresh=on"),
    "ignore_eos": (
        *("--scenario", "single-stream", "--mode", "performance"),
        *("--backend-option", "ignore_eos=on"),
    ),
    "ignore_eos stream=off": (
        *("--scenario", "single-stream", "--mode", "performance"),
        *("--backend-option", "ignore_eos=on", "--backend-option", "stream=off"),
    ),
    "stop strings": (
        *("--scenario", "single-stream", "--backend-option"),
        "body={stop: ['7', 'a stop string that is long']}",
    ),
    "drawn": ("--scenario", "single-stream", "--backend-option", "body={temperature: 0.9}"),
}
NOT_FOR_TINYLM = ("drawn",)
"""Kinds that are skipped because `serve` accepts no temperature."""

OF_ODD_DATA = ("single-stream", "server 80/s", "concurrency 32")
"""Loads that run with the odd prompts."""

_REPORTED: Mapping[str, str] = {"tinylm with a cache": "prefix-cache"}
"""Maps a server to a doubt that only repeats what the server itself reports, and so does not accuse it."""

MANIFEST = """name: tinylm
files: {}
inputs: [{name: request, dtype: string, shape: [batch]}]
outputs: [{name: answer}]
dataset: prompts
"""


def _thinking(_ask: Ask, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """Puts a few tokens of reasoning between marks before the answer."""
    for number, (content, has_tokens) in enumerate(chunks):
        mark = {0: "<think>", 5: "</think>"}.get(number, "")
        if mark and isinstance(content, dict) and content["choices"]:
            choice = content["choices"][0]
            if "text" in choice:
                choice["text"] = mark + choice["text"]
            else:
                choice["delta"] = {"content": mark + (choice["delta"].get("content") or "")}
        yield content, has_tokens


def _calling(_ask: Ask, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """Turns the answer into a tool call, as vLLM's parser does. The parser hides the marks of the call and the keys of
    its JSON.
    """
    last: Chunk | None = None
    for number, (content, has_tokens) in enumerate(chunks):
        if not isinstance(content, dict) or not content["choices"]:
            if last is not None:
                yield last
            last = None
            yield content, has_tokens
            continue
        choice = content["choices"][0]
        choice.pop("text", None)
        calls = {8: {"name": "now", "arguments": ""}, 10: {"arguments": "{}"}}
        choice["delta"] = {}
        if number in calls:
            choice["delta"] = {"tool_calls": [{"index": 0, "function": calls[number]}]}
            yield content, has_tokens
        elif choice.get("finish_reason"):
            last = content, has_tokens


def _silent(_ask: Ask, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """Ends the text after six tokens. The remaining tokens are end tokens, which have no text."""
    for number, (content, has_tokens) in enumerate(chunks):
        if number >= 6 and isinstance(content, dict) and content["choices"]:
            choice = content["choices"][0]
            if "text" in choice:
                choice["text"] = ""
            else:
                choice["delta"] = {"content": ""}
        yield content, has_tokens


def _varied_s(ask: Ask) -> float:
    """Returns a time to first token that grows with the prompt."""
    return 0.001 + len(ask.prompt) * 2e-6


DIALECTS: Mapping[str, Dialect] = {
    "vllm": replace(VLLM, tokens=20, first_s=0.004, gap_s=0.001),
    "vllm slow": replace(VLLM, tokens=12, wait_s=_varied_s, gap_s=0.006),
    "vllm two tokens a chunk": replace(VLLM, tokens=20, gap_s=0.001, per_chunk=2),
    "vllm reasoning": replace(VLLM, tokens=24, gap_s=0.001, ids=False, stream=_thinking),
    "sglang": replace(VLLM, name="sglang", ids=False, usage="last", gap_s=0.001, tokens=20),
    "llama.cpp": replace(LLAMA_CPP, tokens=20, gap_s=0.001),
    # The prompts of transformers have one token per message; all other counted tokens belong to a template.
    "transformers": replace(TRANSFORMERS, tokens=20, gap_s=0.001, first_s=0.003, begin=200),
    "old http": replace(VLLM, http="1.0", tokens=8, gap_s=0.001),
    "vllm calls": replace(VLLM, tokens=16, gap_s=0.001, ids=False, stream=_calling),
    "vllm short answers": replace(VLLM, tokens=2, gap_s=0.001),
}
"""Honest servers that use the formats of several frameworks."""

ENDLESS: Mapping[str, Dialect] = {
    "vllm": replace(VLLM, gap_s=0.001, stream=_silent),
    "vllm without ids": replace(VLLM, ids=False, gap_s=0.001, stream=_silent),
    "sglang": replace(VLLM, name="sglang", ids=False, usage="last", gap_s=0.001, stream=_silent),
    "sglang three tokens a chunk": replace(
        VLLM, name="sglang", ids=False, usage="last", gap_s=0.003, per_chunk=3, stream=_silent
    ),
    "llama.cpp": replace(LLAMA_CPP, gap_s=0.001, stream=_silent),
}
"""Honest servers of a model whose tokens after the end contain no text."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--only", default="")
    parser.add_argument("--language-models", action="store_true")
    options = parser.parse_args()
    totals: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as servers:
        kinds = _workloads(options.python, servers)
        if options.language_models:
            kinds = language_models(options.python, Path(temporary), servers)
        for name, words in kinds:
            if not re.search(options.only, name):
                continue
            counts: Counter[str] = Counter()
            for number in range(options.rounds):
                counts.update(_codes(options.python, words, Path(temporary) / f"{name}-{number}"))
            show(f"{name:<52}{_text(counts)}")
            counts -= Counter({f"doubt {code}": options.rounds for code in _reported(name)})
            totals.update(counts)
    show(f"{'all':<52}{_text(totals)}")
    accused = sum(totals[f"{kind} {code}"] for kind in ("reason", "doubt") for code in ACCUSING)
    show(f"{accused} accusations of a server in {totals['runs']} runs")


def _workloads(python: str, servers: ExitStack) -> Iterator[tuple[str, list[str]]]:
    """Yields (name, options) for each kind of run, and starts a server before the server's first run."""
    for backend in BACKENDS:
        for scenario in SCENARIOS:
            # The null backend returns zeros, so its accuracy run would fail.
            mode = ["--mode", "performance"] if backend == "null" else []
            yield f"{backend} {scenario}", ["--backend", backend, "--scenario", scenario, *mode]
    for scenario in SCENARIOS:
        # A stream issues one query at a time, so it needs only one node.
        count = 1 if scenario in SCENARIOS[:2] else 2
        yield f"nodes {scenario}", ["--nodes", f"local:{count}", "--scenario", scenario]
    yield "tinylm", ["--model", "tinylm", "--scenario", "offline"]
    digits = servers.enter_context(serving(python, "digits"))
    ours = ["--backend", "kserve", "--url", digits, "--model", "digits"]
    for scenario in SCENARIOS:
        yield f"kserve {scenario}", [*ours, "--scenario", scenario]
    hosts = ["--scenario", "server", "--target-qps", "200", "--load-hosts", "2"]
    yield "kserve load hosts server", [*ours, *hosts]
    tinylm = servers.enter_context(serving(python, "tinylm"))
    ours = ["--backend", "openai", "--url", tinylm, "--model", "tinylm"]
    for scenario in ("single-stream", "server", "offline"):
        for more in ([], ["--backend-option", "stream=off"]):
            yield f"openai {scenario} {' '.join(more[1:])}", [*ours, "--scenario", scenario, *more]


TINYLM: Mapping[str, Sequence[str]] = {
    "tinylm": ("--threads", "1"),
    "tinylm batch=1": ("--threads", "1", "--max-batch", "1"),
    "tinylm batch=32": ("--max-batch", "32"),
    "tinylm with a cache": ("--threads", "1", "--prefix-cache", "4"),
}
"""Options of `serve`."""

ODD = ("short", "twins", "calls", "reasoning", "tags", "sessions", "vectors", "ranks")
"""Kinds of `_odd_prompts`."""


def language_models(
    python: str, folder: Path, servers: ExitStack
) -> Iterator[tuple[str, list[str]]]:
    """Yields (name, options) of runs with honest language-model servers."""
    prompts = _prompts(folder)
    loads = {
        name: [word.replace("{folder}", str(folder)) for word in words]
        for name, words in LOADS.items()
    }
    for server, words in TINYLM.items():
        url = servers.enter_context(serving(python, "tinylm", *words))
        for name, options in _tinylm_runs(prompts, loads):
            yield f"{server} {name}", ["--backend", "openai", "--url", url, *options]
    endless = {f"{name} endless": dialect for name, dialect in ENDLESS.items()}
    for server, dialect in {**DIALECTS, **endless}.items():
        url = servers.enter_context(TokenServer(dialect)).url
        data = "long texts" if "completions" in dialect.apis else "long chats"
        for load, of_load in loads.items():
            if server in DIALECTS or load.startswith("ignore_eos"):
                ours = ["--backend", "openai", "--url", url, *prompts[data]]
                yield f"{server} {load}", [*ours, *of_load]


def _tinylm_runs(
    prompts: Mapping[str, Sequence[str]], loads: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, list[str]]]:
    for data in ("ids", "texts", "chats"):
        for load in (load for load in loads if load not in NOT_FOR_TINYLM):
            yield f"{data} {load}", [*prompts[data], *loads[load]]
    for data in ODD:
        for load in OF_ODD_DATA:
            if data != "sessions" or load != "single-stream":
                yield f"{data} {load}", [*prompts[data], *loads[load]]


def _reported(name: str) -> Iterator[str]:
    for server, code in _REPORTED.items():
        if name.startswith(server):
            yield code


def _prompts(folder: Path) -> Mapping[str, Sequence[str]]:
    """Writes prompts and returns the options for each kind."""
    random = Random(3)
    tasks = [
        f"{random.choice(('sort', 'reverse'))} {''.join(random.choices('0123456789', k=random.randint(3, 20)))}="
        for _ in range(300)
    ]
    words = [" ".join(random.choices(tasks, k=random.randint(5, 40))) for _ in range(300)]
    (folder / "tiny.yaml").write_text(MANIFEST)
    times = sorted(random.gammavariate(0.3, 0.05) + i // 20 for i in range(100))
    (folder / "bursts.csv").write_text("".join(f"{at:.6f}\n" for at in times))
    kinds: dict[str, Sequence[str]] = {"ids": ("--model", "tinylm")}
    for name, texts in (("", tasks), ("long ", words)):
        chats = [{"messages": [{"role": "user", "content": text}]} for text in texts]
        rows: Mapping[str, Sequence[Mapping[str, Any]]] = {
            "texts": [{"prompt": text} for text in texts],
            "chats": chats,
        }
        for kind, many in rows.items():
            path = folder / f"{name.strip()}{kind}.jsonl"
            path.write_text("".join(json.dumps({**row, "max_tokens": 24}) + "\n" for row in many))
            own = ("--model", str(folder / "tiny.yaml"), "--data-dir", str(path))
            kinds[f"{name}{kind}"] = (*own, "--mode", "performance")
    for kind, (odd, words_of_kind) in _odd_prompts(tasks).items():
        path = folder / f"odd-{kind}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in odd))
        own = ("--model", str(folder / "tiny.yaml"), "--data-dir", str(path))
        kinds[kind] = (*own, *words_of_kind, "--mode", "performance")
    return kinds


Rows = Sequence[Mapping[str, Any]]


def _odd_prompts(tasks: Sequence[str]) -> Mapping[str, tuple[Rows, Sequence[str]]]:
    """Returns the prompts and options for each kind of run that needs special prompts."""
    chats = [{"messages": [{"role": "user", "content": task}]} for task in tasks]
    digits = {"type": "object", "properties": {"digits": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "write", "parameters": digits}}
    thinks = {"chat_template_kwargs": {"enable_thinking": True}, "max_tokens": 40}
    tags = {**thinks, "body": {"separate_reasoning": False}}
    turns = [
        [{"prompt": task, "max_tokens": 24} for task in tasks[i : i + 3]]
        for i in range(len(tasks) - 2)
    ]
    ranked = [{"documents": [*tasks[i : i + 4]]} for i in range(len(tasks) - 4)]
    vectors = ("--backend-option", "endpoint=embeddings", "--max-batch", "4")
    return {
        "short": ([{"prompt": t, "max_tokens": 1 + i % 3} for i, t in enumerate(tasks)], ()),
        "twins": ([{"prompt": tasks[i % 10], "max_tokens": 24} for i in range(len(tasks))], ()),
        "calls": ([{**c, "tools": [tool], "tool_choice": "required"} for c in chats], ()),
        "reasoning": ([{**chat, **thinks} for chat in chats], ()),
        "tags": ([{**chat, **tags} for chat in chats], ()),
        "sessions": ([{"turns": each} for each in turns], ("--dataset", "sessions")),
        "vectors": ([{"prompt": task} for task in tasks], vectors),
        "ranks": (
            [{"prompt": t, "body": b} for t, b in zip(tasks, ranked, strict=False)],
            ("--backend-option", "endpoint=rerank"),
        ),
    }


@contextmanager
def serving(python: str, model: str, *words: str) -> Iterator[str]:
    """Runs `serve` until the block ends, and yields the server's URL."""
    command = [python, "-P", "-m", "harness", "serve", model, "--listen", "127.0.0.1:0", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as server:
        try:
            assert server.stdout is not None
            for line in server.stdout:
                if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                    yield found[0]
                    return
            raise SystemExit(f"`serve {model}` ended before it listened")
        finally:
            server.terminate()


def _codes(python: str, words: list[str], out: Path) -> Iterator[str]:
    """Makes one run and yields `runs`, the verdict, and the code of each reason and doubt."""
    has_length = not {"--duration", "--queries", "--arrivals"}.isdisjoint(words)
    length = [] if has_length else ["--duration", "1s"]
    command = [python, "-P", "-m", "harness", *words, *length, "--no-report", "--quiet"]
    done = subprocess.run(
        [*command, "--out", str(out)], capture_output=True, text=True, timeout=_WAIT_S, check=False
    )
    path = out / "result.json"
    if not path.is_file():
        path = out.with_name(f"{out.name}.partial") / "result.json"
    if not path.is_file():
        say(f"{' '.join(words)}: exit status {done.returncode}: {done.stderr.strip()[-300:]}")
        yield from ("runs", "no result")
        return
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    yield from ("runs", result["verdict"])
    for kind in ("reasons", "doubts"):
        yield from (f"{kind[:-1]} {one['code']}" for one in result[kind])


def _text(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {code}" for code, count in counts.items())


if __name__ == "__main__":
    main()
