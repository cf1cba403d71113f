"""Counts the reasons and doubts of honest runs, in every scenario, with every backend, servers and nodes.

    python benchmarks/honest_runs.py [--rounds 4] [--python PATH] [--only WORD]

No run here cheats or is broken, so a reason is a fault of the harness or of the machine. Each row has the number of
runs, of VALID runs, and of runs with each reason and doubt. --python runs the harness of another environment, e.g. of
an earlier commit: a comparison with its rows shows new reasons and doubts.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from harness.core.console import say, show

SCENARIOS = ("single-stream", "multi-stream", "server", "offline")
BACKENDS = ("null", "ort", "tensorflow", "openvino", "litert", "torch", "executorch", "trees")
_WAIT_S = 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    totals: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as servers:
        for name, words in _workloads(options.python, servers):
            if options.only not in name:
                continue
            counts: Counter[str] = Counter()
            for number in range(options.rounds):
                counts.update(_codes(options.python, words, Path(temporary) / f"{name}-{number}"))
            show(f"{name:<36}{_text(counts)}")
            totals.update(counts)
    show(f"{'all':<36}{_text(totals)}")


def _workloads(python: str, servers: ExitStack) -> Iterator[tuple[str, list[str]]]:
    """Yields (name, options) of each kind of run; starts a server before its first run."""
    for backend in BACKENDS:
        for scenario in SCENARIOS:
            mode = ["--mode", "performance"] if backend == "null" else []  # it answers zeros
            yield f"{backend} {scenario}", ["--backend", backend, "--scenario", scenario, *mode]
    for scenario in SCENARIOS:
        count = 1 if scenario in SCENARIOS[:2] else 2  # streams issue one query at a time
        yield f"nodes {scenario}", ["--nodes", f"local:{count}", "--scenario", scenario]
    yield "tinylm", ["--model", "tinylm", "--scenario", "offline"]
    digits = servers.enter_context(_serving(python, "digits"))
    ours = ["--backend", "kserve", "--url", digits, "--model", "digits"]
    for scenario in SCENARIOS:
        yield f"kserve {scenario}", [*ours, "--scenario", scenario]
    hosts = ["--scenario", "server", "--target-qps", "200", "--load-hosts", "2"]
    yield "kserve load hosts server", [*ours, *hosts]
    tinylm = servers.enter_context(_serving(python, "tinylm"))
    ours = ["--backend", "openai", "--url", tinylm, "--model", "tinylm"]
    for scenario in ("single-stream", "server", "offline"):
        for more in ([], ["--backend-option", "stream=off"]):
            yield f"openai {scenario} {' '.join(more[1:])}", [*ours, "--scenario", scenario, *more]


@contextmanager
def _serving(python: str, model: str) -> Iterator[str]:
    """Runs `serve` until the end of the block, and yields its URL."""
    command = [python, "-P", "-m", "harness", "serve", model, "--listen", "127.0.0.1:0"]
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
    """Makes one run; yields `runs`, the verdict, and the code of each reason and doubt."""
    command = [python, "-P", "-m", "harness", *words, "--duration", "1s", "--no-report", "--quiet"]
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
