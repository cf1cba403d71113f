"""Compares the harness's numbers with AIPerf's and guidellm's. The tools take turns, with one language model and the
same prompts.

    python benchmarks/peers.py --venv FOLDER [--server tinylm|fixed] [--concurrency 4] [--requests 600] [--rounds 5]

`tinylm` is `serve tinylm`, whose times depend on how busy its cores are, and therefore on the client. `fixed` is a
stand-in server that sends 16 tokens at fixed times: the first after 60 ms, then one every 10 ms. Every client streams
completions of the same texts, with the same number of requests in flight. FOLDER: an environment for the two tools
outside the repository, which the script creates with uv or pip if it is missing. A row shows one number: the medians of
the rounds, and the ratio to the harness's number with its range. If the two numbers differ by more than two runs of the
harness in the same minutes, the row also states the reason.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import median
from typing import NamedTuple
from uuid import uuid4

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.clients import installed, read, run
from benchmarks.honest_runs import serving
from harness.core.console import show
from tests.stand_ins.servers.token_server import MODEL, VLLM, TokenServer

MAX_TOKENS = 24
"""With this limit, a prompt of at most 22 tokens and its answer fit the model's context of 47 tokens."""

PROMPTS = 500
MANIFEST = """name: tinylm
files: {}
inputs: [{name: request, dtype: string, shape: [batch]}]
outputs: [{name: answer}]
dataset: prompts
"""

NUMBERS = (
    *("requests/s", "output tokens/s", "tokens per answer"),
    *("latency p50 ms", "latency p99 ms", "TTFT p50 ms", "TTFT p99 ms", "TPOT p50 ms"),
)
"""Numbers that all tools report."""

WHY: Mapping[str, Mapping[str, str]] = {
    "aiperf": {
        "requests/s": "not measured: perhaps the CPU time that the client takes from the server on the same cores",
        "output tokens/s": "follows from requests/s",
        "latency p50 ms": "ends at the last chunk that its event loop has read; here: at the kernel's stamp",
        "latency p99 ms": "the same; and no interval",
        "TTFT p50 ms": "stamped when the event loop reads the chunk; here: by the kernel",
        "TTFT p99 ms": "the same",
        "TPOT p50 ms": "called ITL: one mean per request, (latency - TTFT) / (tokens - 1); chunks read late share a stamp",
        "tokens per answer": "the server's count (--use-server-token-count); the drawn prompts differ",
    },
    "guidellm": {
        "requests/s": "not measured: perhaps the CPU time that the client takes from the server on the same cores",
        "output tokens/s": "the mean of a rate between tokens' times, not tokens / duration",
        "latency p50 ms": "ends when the client has read the whole reply; here: at the kernel's stamp",
        "latency p99 ms": "the same; and no interval",
        "TTFT p50 ms": "stamped when the client reads the first line with content; here: by the kernel",
        "TTFT p99 ms": "the same",
        "TPOT p50 ms": "called ITL: (last - first token) / (tokens - 1), one value per request, weighted by its tokens",
        "tokens per answer": "the server's count; the drawn prompts differ",
    },
}
"""Maps each tool and number to the difference in definition or in the client."""

AGAIN = "again"
"""A second run of the harness in each round. The difference between the two runs is the noise."""

FIXED = replace(
    VLLM,
    tokens=16,
    first_s=0.06,
    gap_s=0.01,
    about=lambda _ask: {"id": f"cmpl-{uuid4().hex}", "object": "text_completion"},
)

Numbers = Mapping[str, float]


class Job(NamedTuple):
    """The settings for one run of each client."""

    folder: Path
    url: str
    concurrency: int
    requests: int
    tokenizer: Path
    model: str

    @property
    def prompts(self) -> Path:
        return self.folder / "prompts.jsonl"


def write_prompts(folder: Path) -> None:
    """Writes the prompts for every client, and the harness's manifest."""
    random = Random(1)
    texts = [
        f"{random.choice(('sort', 'reverse'))} "
        f"{''.join(random.choices('0123456789', k=random.randint(3, 20)))}="
        for _ in range(PROMPTS)
    ]
    rows = [{"prompt": text, "text": text, "max_tokens": MAX_TOKENS} for text in texts]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ours = [{"prompt": text, "max_tokens": MAX_TOKENS} for text in texts]
    (folder / "ours.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ours))
    (folder / "model.yaml").write_text(MANIFEST)


def harness(program: Path, job: Job) -> Numbers:
    out = job.folder / "harness"
    run(
        program,
        *("-P", "-m", "harness", "--scenario", "server", "--backend", "openai", "--url", job.url),
        *("--model", str(job.folder / "model.yaml"), "--data-dir", str(job.folder / "ours.jsonl")),
        *("--concurrency", str(job.concurrency), "--queries", str(job.requests)),
        *("--backend-option", "answer=text", "--slo", "p99=10s", "--mode", "performance"),
        *("--no-metrics", "--no-report", "--out", str(out)),
    )
    result = read(out / "result.json")
    latency, tokens = result["latency_ns"], result["tokens"]
    return {
        "requests/s": result["throughput_per_s"]["completed"],
        "output tokens/s": tokens["output_per_s"],
        "tokens per answer": tokens["output_mean"],
        "latency p50 ms": latency["p50"] / 1e6,
        "latency p99 ms": latency["p99"] / 1e6,
        "TTFT p50 ms": tokens["ttft_ns"]["p50"] / 1e6,
        "TTFT p99 ms": tokens["ttft_ns"]["p99"] / 1e6,
        "TPOT p50 ms": tokens["tpot_ns"]["p50"] / 1e6,
    }


def aiperf(program: Path, job: Job) -> Numbers:
    out = job.folder / "aiperf"
    run(
        program,
        *("profile", "--model", job.model, "--url", job.url, "--endpoint-type", "completions"),
        *("--streaming", "--concurrency", str(job.concurrency)),
        *("--request-count", str(job.requests), "--input-file", str(job.prompts)),
        *("--custom-dataset-type", "single_turn", "--use-server-token-count"),
        *("--extra-inputs", f"max_tokens:{MAX_TOKENS}", "--extra-inputs", "temperature:0"),
        *("--tokenizer", str(job.tokenizer), "--ui-type", "none", "--no-gpu-telemetry"),
        *("--no-server-metrics", "--output-artifact-dir", str(out)),
    )
    told = read(out / "profile_export_aiperf.json")
    latency, first = told["request_latency"], told["time_to_first_token"]
    return {
        "requests/s": told["request_throughput"]["avg"],
        "output tokens/s": told["output_token_throughput"]["avg"],
        "tokens per answer": told["output_sequence_length"]["avg"],
        "latency p50 ms": latency["p50"],
        "latency p99 ms": latency["p99"],
        "TTFT p50 ms": first["p50"],
        "TTFT p99 ms": first["p99"],
        "TPOT p50 ms": told["inter_token_latency"]["p50"],
    }


def guidellm(program: Path, job: Job) -> Numbers:
    out = job.folder / "guidellm.json"
    server = f"kind=openai_http,target={job.url},model={job.model},request_format=/v1/completions"
    run(
        program,
        *("run", "--profile", f"kind=concurrent,streams={job.concurrency}", "--disable-console"),
        *("--backend", f"{server},max_tokens={MAX_TOKENS},validate_backend=false"),
        *("--constraint", f"kind=max_requests,count={job.requests}"),
        *("--tokenizer", f"kind=hf_auto,model={job.tokenizer}"),
        *("--data", f"kind=json_file,path={job.folder / 'ours.jsonl'}"),
        *("--output", f"kind=json,path={out}"),
    )
    metrics = read(out)["benchmarks"][0]["metrics"]

    def of(name: str) -> Mapping[str, Mapping[str, float]]:
        found: Mapping[str, Mapping[str, float]] = metrics[name]["successful"]
        return found

    latency, first = (
        of("request_latency")["percentiles"],
        of("time_to_first_token_ms")["percentiles"],
    )
    return {
        "requests/s": metrics["requests_per_second"]["successful"]["mean"],
        "output tokens/s": metrics["output_tokens_per_second"]["successful"]["mean"],
        "tokens per answer": metrics["output_token_count"]["successful"]["mean"],
        "latency p50 ms": latency["p50"] * 1e3,
        "latency p99 ms": latency["p99"] * 1e3,
        "TTFT p50 ms": first["p50"],
        "TTFT p99 ms": first["p99"],
        "TPOT p50 ms": of("inter_token_latency_ms")["percentiles"]["p50"],
    }


CLIENTS: Mapping[str, Callable[[Path, Job], Numbers]] = {
    "harness": harness,
    AGAIN: harness,
    "aiperf": aiperf,
    "guidellm": guidellm,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--venv", type=Path, required=True)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--server", choices=("tinylm", "fixed"), default="tinylm")
    options = parser.parse_args()
    venv = options.venv.absolute()
    tokenizer = installed(venv)
    ours = dict.fromkeys(("harness", AGAIN), Path(sys.executable))
    programs = {name: venv / "bin" / name for name in CLIENTS} | ours
    seen: dict[str, list[Numbers]] = {name: [] for name in CLIENTS}
    with _server(options.server) as (url, model):
        for number in range(options.rounds):
            for name in sorted(CLIENTS, reverse=bool(number % 2)):
                with tempfile.TemporaryDirectory() as path:
                    write_prompts(Path(path))
                    job = Job(
                        Path(path), url, options.concurrency, options.requests, tokenizer, model
                    )
                    seen[name].append(CLIENTS[name](programs[name], job))
                told = ", ".join(f"{what} {value:.4g}" for what, value in seen[name][-1].items())
                show(f"round {number + 1}: {name:9} {told}")
    for line in table(seen):
        show(line)
    show(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


@contextmanager
def _server(name: str) -> Iterator[tuple[str, str]]:
    """Yields the server's URL and the model's name."""
    if name == "fixed":
        with TokenServer(FIXED) as server:
            yield server.url, MODEL
        return
    with serving(sys.executable, "tinylm", "--backend", "ort", "--threads", "1") as url:
        yield url, "tinylm"


def table(seen: Mapping[str, Sequence[Numbers]]) -> Iterator[str]:
    """Yields the rows of a table in Markdown."""
    yield "| number | tool | here | there | there / here | noise | difference |"
    yield "|---|---|---|---|---|---|---|"
    for what in NUMBERS:
        ours = [numbers[what] for numbers in seen["harness"]]
        again = [numbers[what] for numbers in seen[AGAIN]]
        noise = max(abs(there / here - 1) for here, there in zip(ours, again, strict=True))
        for tool, reasons in WHY.items():
            theirs = [numbers[what] for numbers in seen[tool]]
            ratios = [there / here for here, there in zip(ours, theirs, strict=True)]
            low, ratio, high = min(ratios), median(ratios), max(ratios)
            equal = abs(ratio - 1) <= noise or low <= 1 <= high
            yield (
                f"| {what} | {tool} | {median(ours):.4g} | {median(theirs):.4g} | "
                f"{ratio:.2f} ({low:.2f} to {high:.2f}) | {noise:.0%} | "
                f"{'within the noise' if equal else reasons[what]} |"
            )


if __name__ == "__main__":
    main()
