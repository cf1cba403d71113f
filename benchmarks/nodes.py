"""Measures the cost of a node compared with the model in process, on the same cores, in alternating pairs.

    python benchmarks/nodes.py [--quick] [MODEL ...]
    python benchmarks/nodes.py --workers

MODEL: names from `list`, by default light/squeezenet and digits. In Offline with batches of 8, each pair gives two
ratios of the node to the model in process: samples/s, and the CPU time per sample of driver and node together. On a
busy machine, the ratio of CPU times is more reliable, because this ratio hardly changes with load. In single-stream,
each pair gives the time that a node adds to p50.

--workers: measures how many batches per second one driver hands out, with a model that sleeps, on 8 nodes of 8
instances, and what it costs to choose among more nodes.
"""

import json
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from statistics import median
from time import thread_time_ns
from types import SimpleNamespace
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.pairs import MIN_PAIRS, Pairs, alternate, compared, difference, ratio, same
from harness.wire.balance import Balance

MODELS = ("light/squeezenet", "digits")
SECONDS = 5.0
BATCH = 8


class Cost(NamedTuple):
    per_s: float
    cpu_us: float
    """CPU time per sample, over all processes."""
    node_cpu_us: float
    """The node's share of `cpu_us`, from the node's own host readings."""


def p50_us(model: str, *words: str) -> float:
    """Returns the single-stream p50 in us."""
    return float(result_of("single-stream", model, *words)["latency_ns"]["p50"]) / 1e3


def cost(model: str, *words: str) -> Cost:
    result = result_of("offline", model, "--max-batch", str(BATCH), *words)
    driver_s = result["measured_process"]["cpu_s_per_query"]
    nodes = result.get("nodes") or []
    node_s = sum(node["host"]["measured_cpu_s"] for node in nodes)
    node_s /= max(1, sum(node["samples"] for node in nodes))
    per_s = result["throughput_per_s"]["completed"]
    return Cost(per_s, (driver_s + node_s) * 1e6, node_s * 1e6)


def result_of(scenario: str, model: str, *words: str) -> dict[str, Any]:
    """Makes one run and returns its result.json, because even an INVALID run has numbers."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "run")
        command = [
            *(sys.executable, "-m", "harness", "--scenario", scenario, "--backend", "ort"),
            *("--model", model, "--dataset", "synthetic", "--mode", "performance"),
            *("--duration", f"{SECONDS:g}s", "--no-metrics", "--no-report", "--quiet"),
            *("--out", str(out), *words),
        ]
        subprocess.run(command, capture_output=True, check=False)
        result: dict[str, Any] = json.loads((out / "result.json").read_text())
    return result


def sleeping(nodes: int, instances: int, batch_ms: float) -> str:
    """Returns a line with the batches/s of a model that sleeps, and with their share of the rate that the sleep allows."""
    words = [
        *("--backend", f"{Path(__file__).parent / 'sleeper.py'}:Sleeper", "--threads", "1"),
        *(
            "--backend-option",
            f"service_ms={batch_ms:g}",
            "--max-batch",
            str(BATCH),
            "--oversubscribe",
        ),
        *("--nodes", f"local:{nodes}", "--instances", str(instances)),
    ]
    result = result_of("offline", "digits", *words)
    per_s = result["throughput_per_s"]["completed"] / BATCH
    share = per_s * batch_ms / 1e3 / (nodes * instances)
    cpu_us = result["measured_process"]["cpu_s_per_query"] * BATCH * 1e6
    codes = ", ".join(reason["code"] for reason in result["reasons"])
    return (
        f"{nodes} nodes x {instances} instances, {batch_ms:g} ms per batch: {per_s:,.0f} batches/s, {share:.3f} of the "
        f"possible rate, {cpu_us:.0f} us CPU of the driver per batch{codes and f', {codes}'}"
    )


def choosing_us(nodes: int) -> float:
    """Returns the CPU time to choose and release a node."""
    balance: Balance[Any] = Balance([2] * nodes, [1.0] * nodes)
    for number in range(nodes):
        balance.append(SimpleNamespace(number=number))
    rounds = []
    for _ in range(20):
        begin_ns = thread_time_ns()
        for _ in range(1000):
            balance.append(balance.pop())
        rounds.append((thread_time_ns() - begin_ns) / 1e6)
    return min(rounds)


def workers() -> None:
    for plan in ((1, 8, 20), (8, 1, 20), (8, 8, 20), (8, 8, 10), (8, 8, 5), (8, 8, 2)):
        print(sleeping(*plan), flush=True)
    for nodes in (2, 8, 64, 1000):
        print(f"choosing one of {nodes} nodes: {choosing_us(nodes):.2f} us CPU")


def show(name: str, seen: Pairs) -> None:
    found, noise = compared(seen, ratio), same(seen, ratio)
    print(
        f"  {name}: {median(seen.a):,.1f} over a node, {median(seen.b):,.1f} in process: "
        f"{found.value:.3f} ({found.low:.3f} to {found.high:.3f}), A/A {noise.value:.3f}",
        flush=True,
    )


def main() -> None:
    if "--workers" in sys.argv:
        workers()
        return
    words = [word for word in sys.argv[1:] if word != "--quick"]
    pairs = 3 if "--quick" in sys.argv else MIN_PAIRS
    for model in words or MODELS:
        over: list[Cost] = []
        within: list[Cost] = []

        def over_node(model: str = model, into: list[Cost] = over) -> float:
            into.append(cost(model, "--nodes", "local:1"))
            return into[-1].per_s

        def in_process(model: str = model, into: list[Cost] = within) -> float:
            into.append(cost(model))
            return into[-1].per_s

        rates = alternate(over_node, in_process, pairs)
        cpu = Pairs(tuple(c.cpu_us for c in over), tuple(c.cpu_us for c in within))
        print(
            f"{model}: the node uses {median(c.node_cpu_us for c in over):,.1f} us CPU per sample"
        )
        show("samples/s", rates)
        show("us CPU per sample", cpu)
        added = alternate(
            partial(p50_us, model, "--nodes", "local:1"), partial(p50_us, model), pairs
        )
        found, noise = compared(added, difference), same(added, difference)
        print(
            f"  p50 of single-stream: {median(added.a):,.1f} us over a node, {median(added.b):,.1f} us in process: "
            f"{found.value:+.1f} us ({found.low:.1f} to {found.high:.1f}), A/A {noise.value:+.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
