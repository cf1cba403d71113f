"""Compares the harness's client with other OpenAI API clients, which take turns requesting completions from the same
null server.

    python benchmarks/clients.py [--venv FOLDER] [--endpoints PROGRAM] [--rounds 3]

Each client keeps 64 requests in flight and otherwise uses its default settings. The client's numbers come from its own
report.
The server answers any request immediately with the same two tokens. FOLDER: a separate environment for AIPerf and
guidellm. If the environment is missing, the script creates it with uv or pip, and trains a tokenizer for the
environment. MLCommons' endpoints is not on a package index, so pass its program, from a Python 3.12 environment, with
--endpoints.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

from harness.wire.null.server import NullServer

IN_FLIGHT = 64
REQUESTS = 5000
OWN_REQUESTS = 50_000
"""Number of requests per round for the harness and endpoints. These two clients are faster than the other clients, so
fewer requests would make the round too short.
"""
LIMIT_S = 300

# The client `endpoints` sends chat requests, and reads `message` from the reply.
_ANSWER = json.dumps(
    {
        "id": "null",
        "object": "text_completion",
        "created": 0,
        "model": "tiny",
        # Some clients request the list of models first.
        "data": [{"id": "tiny", "object": "model"}],
        "choices": [
            {
                "index": 0,
                "text": " ok",
                "message": {
                    "role": "assistant",
                    "content": " ok",
                },
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 8, "completion_tokens": 2, "total_tokens": 10},
    }
).encode()
REPLY = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    % len(_ANSWER)
    + _ANSWER
)
MANIFEST = """name: tiny
files: {}
inputs: [{name: request, dtype: string, shape: [batch]}]
outputs: [{name: answer}]
dataset: prompts
"""


PEERS = {"aiperf": "0.13.0", "guidellm": "0.8.1"}
INSTALL_LIMIT_S = 1800
TRAIN = """
import sys
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
made = Tokenizer(models.BPE(unk_token="<unk>"))
made.pre_tokenizer = pre_tokenizers.ByteLevel()
special = ["<unk>", "<s>", "</s>"]
alphabet = pre_tokenizers.ByteLevel.alphabet()
made.train_from_iterator(
    ["the quick brown fox 0123456789"],
    trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet),
)
unk, bos, eos = special
PreTrainedTokenizerFast(
    tokenizer_object=made, unk_token=unk, bos_token=bos, eos_token=eos, pad_token=eos
).save_pretrained(sys.argv[1])
"""


class Told(NamedTuple):
    """The numbers in a client's own report."""

    per_s: float
    p50_ms: float
    p99_ms: float


class Folder:
    """A folder that contains prompts and a manifest, and in which each client writes its report."""

    def __init__(self, path: Path, tokenizer: Path) -> None:
        self.path = path
        self.tokenizer = tokenizer
        self.prompts = path / "prompts.jsonl"
        lines = ({"prompt": f"the quick brown fox {n}", "max_tokens": 2} for n in range(REQUESTS))
        self.prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
        self.manifest = path / "null.yaml"
        self.manifest.write_text(MANIFEST)


def run(program: Path | str, *words: str) -> None:
    """Runs a program. If the program fails, raises a RuntimeError that contains its output."""
    alone = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [str(program), *words],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=alone,
        cwd=Path(__file__).parent.parent,
        check=False,
    )
    if done.returncode not in (0, 4):  # a run with status 4 is INVALID, but it has numbers
        raise RuntimeError(
            f"{program} ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}"
        )


def installed(venv: Path) -> Path:
    """Returns the environment's tokenizer. Creates the environment and the tokenizer if either is missing."""
    tokenizer, python = venv / "tokenizer", venv / "bin/python"
    if tokenizer.is_dir():
        return tokenizer
    uv, packages = shutil.which("uv"), [f"{name}=={version}" for name, version in PEERS.items()]
    make = [uv, "venv", "--quiet"] if uv else [sys.executable, "-m", "venv"]
    pip = [uv, "pip", "install", "--quiet", "--python"] if uv else []
    install = [*pip, str(python)] if uv else [str(python), "-m", "pip", "install", "--quiet"]
    if not python.exists():
        subprocess.run([*make, str(venv)], check=True)
    subprocess.run([*install, *packages], check=True, timeout=INSTALL_LIMIT_S)
    return trained(python, tokenizer)


def trained(python: Path, tokenizer: Path) -> Path:
    subprocess.run([str(python), "-c", TRAIN, str(tokenizer)], check=True, timeout=LIMIT_S)
    return tokenizer


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def harness(program: Path, url: str, folder: Folder) -> Told:
    out = folder.path / "harness"
    run(
        program,
        *("-m", "harness", "--scenario", "server", "--backend", "openai", "--url", url),
        *("--model", str(folder.manifest), "--data-dir", str(folder.prompts)),
        *("--backend-option", "stream=off", "--backend-option", "answer=text"),
        *("--concurrency", str(IN_FLIGHT), "--queries", str(OWN_REQUESTS), "--slo", "p99=1s"),
        *("--mode", "performance", "--no-metrics", "--no-report", "--out", str(out)),
    )
    result = read(out / "result.json")
    latency = result["latency_ns"]
    per_s = result["throughput_per_s"]["completed"]
    return Told(per_s, latency["p50"] / 1e6, latency["p99"] / 1e6)


def aiperf(program: Path, url: str, folder: Folder) -> Told:
    out = folder.path / "aiperf"
    run(
        program,
        *("profile", "--model", "tiny", "--url", url, "--endpoint-type", "completions"),
        *("--concurrency", str(IN_FLIGHT), "--request-count", str(REQUESTS), "--isl", "8"),
        *("--osl", "2", "--tokenizer", str(folder.tokenizer), "--use-server-token-count"),
        *("--ui-type", "none", "--output-artifact-dir", str(out)),
    )
    told = read(out / "profile_export_aiperf.json")
    latency = told["request_latency"]
    return Told(told["request_throughput"]["avg"], latency["p50"], latency["p99"])


def guidellm(program: Path, url: str, folder: Folder) -> Told:
    out = folder.path / "guidellm.json"
    run(
        program,
        *("run", "--profile", f"kind=concurrent,streams={IN_FLIGHT}", "--disable-console"),
        *(
            "--backend",
            f"kind=openai_http,target={url},model=tiny,request_format=/v1/completions,stream=false",
        ),
        *("--constraint", f"kind=max_requests,count={REQUESTS}"),
        *("--tokenizer", f"kind=hf_auto,model={folder.tokenizer}"),
        *("--data", f"kind=json_file,path={folder.prompts}", "--output", f"kind=json,path={out}"),
    )
    metrics = read(out)["benchmarks"][0]["metrics"]
    latency = metrics["request_latency"]["successful"]["percentiles"]
    per_s = metrics["requests_per_second"]["successful"]["mean"]
    return Told(per_s, latency["p50"] * 1e3, latency["p99"] * 1e3)


def endpoints(program: Path, url: str, folder: Folder) -> Told:
    out = folder.path / "endpoints"
    run(
        program,
        *("benchmark", "offline", "--model", "tiny", "--endpoints", url),
        *("--api-type", "openai", "--streaming", "off", "--max-output-tokens", "2"),
        *("--dataset", f"perf:{folder.prompts},parser.prompt=prompt", "--duration", "0"),
        *("--num-samples", str(OWN_REQUESTS), "--tokenizer", str(folder.tokenizer)),
        *("--max-connections", str(IN_FLIGHT), "--report-dir", str(out)),
    )
    told = read(out / "performance/result_summary.json")
    latency = told["latency"]["percentiles"]
    return Told(told["qps"], latency["50.0"] / 1e6, latency["99.0"] / 1e6)


CLIENTS: Mapping[str, Callable[[Path, str, Folder], Told]] = {
    "harness": harness,
    "aiperf": aiperf,
    "guidellm": guidellm,
    "endpoints": endpoints,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--venv", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--endpoints", type=Path)
    options = parser.parse_args()
    if options.venv is None and options.endpoints is None:
        parser.error("no other client: pass --venv or --endpoints")
    chosen = {"harness": Path(sys.executable)}
    if options.venv is not None:
        venv = options.venv.resolve()
        tokenizer = installed(venv)
        chosen |= {name: venv / "bin" / name for name in PEERS}
    else:
        tokenizer = trained(options.endpoints.parent / "python", Path(tempfile.mkdtemp()))
    if options.endpoints is not None:
        chosen["endpoints"] = options.endpoints
    seen: dict[str, list[Told]] = {name: [] for name in chosen}
    with NullServer(REPLY) as server:
        for number in range(options.rounds):
            order = [*chosen] if number % 2 == 0 else [*reversed(chosen)]
            for name in order:
                with tempfile.TemporaryDirectory() as path:
                    folder = Folder(Path(path), tokenizer)
                    told = CLIENTS[name](chosen[name], server.url, folder)
                seen[name].append(told)
                print(
                    f"round {number + 1}: {name:10} {told.per_s:9,.0f} requests/s, "
                    f"p50 {told.p50_ms:.2f} ms, p99 {told.p99_ms:.2f} ms",
                    flush=True,
                )
    own = [told.per_s for told in seen["harness"]]
    for name, many in seen.items():
        ratios = [mine / theirs.per_s for mine, theirs in zip(own, many, strict=True)]
        p50, p99 = median(t.p50_ms for t in many), median(t.p99_ms for t in many)
        print(
            f"{name:10} {median(t.per_s for t in many):9,.0f} requests/s, p50 {p50:.2f} ms, p99 {p99:.2f} ms; "
            f"harness is {median(ratios):.1f} times as fast ({min(ratios):.1f} to {max(ratios):.1f})"
        )
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
