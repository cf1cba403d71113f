"""Compares the peak that `peak` finds with the computed peak, for a sleeping model on 1, 2 and 4 servers.

python benchmarks/peak.py [--cases N]

The true peak is computed, not measured. At each rate, LoadGen's schedule for the same seed is recomputed and passes
through a queue with the same number of servers. Each server serves one query at a time, in order. LoadGen's rule then
judges the result (early stopping at the harness's number of queries). Just before the search, a bare loop with the same
number of threads measures the service time.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.command import HERE, ROOT, Noise, environment
from benchmarks.pairs import Estimate, Verdict
from benchmarks.report import Row, save
from benchmarks.sleeper import Sleeper
from harness.core.stats import late_allowed, queries_needed
from harness.loadgen.schedule import server_schedule_ns
from harness.types import Array, BackendSetup, Batch

SERVICE_MS = 5.0
BOUND_NS = 50_000_000
PERCENTILE = 0.99
DURATION_S = 10
SERVERS = (1, 2, 4)
CASES = 10
WITHIN = 0.05
MOST_RUNS = 12
MOST_S = 180.0
_BARE_S = 2.0
_STEP = 0.0025
"""Step between simulated rates, relative to the servers' capacity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One search. Rates are in queries/s. found: None if the search found no peak."""

    servers: int
    seed: int
    service_ms: float
    true: float
    found: float | None
    failed_above: float | None
    runs: int
    seconds: float

    @property
    def is_met(self) -> bool:
        near = self.found is not None and abs(self.found / self.true - 1) <= WITHIN
        return near and self.runs <= MOST_RUNS and self.seconds <= MOST_S


def latency_ns(arrivals_ns: Array, servers: int, service_ns: float) -> Array:
    """Returns the (n,) latencies of queries that equally fast servers answer in order, each server one at a time.

    Query i goes to the server that served query i - servers, so each server has a separate queue.
    """
    done_ns = np.empty(len(arrivals_ns))
    for first in range(servers):
        own = arrivals_ns[first::servers].astype(float)
        before = service_ns * np.arange(len(own))
        done_ns[first::servers] = np.maximum.accumulate(own - before) + before + service_ns
    return done_ns - arrivals_ns


def is_valid(rate: float, servers: int, service_ns: float, seed: int) -> bool:
    """Returns LoadGen's verdict on a full run of an ideal harness."""
    count = max(queries_needed(10, PERCENTILE), ceil(DURATION_S * rate))
    spent_ns = latency_ns(server_schedule_ns(count, rate, seed), servers, service_ns)
    return int((spent_ns > BOUND_NS).sum()) <= late_allowed(count, PERCENTILE)


def true_peak(servers: int, service_ns: float, seed: int) -> float:
    """Returns the highest valid rate."""
    most = servers * 1e9 / service_ns
    rates = most * np.arange(0.3, 1.1, _STEP)
    return float(max(r for r in rates if is_valid(float(r), servers, service_ns, seed)))


def bare_ms(servers: int) -> float:
    """Returns the median service time in ms while `servers` threads run at the same time."""
    setup = BackendSetup(
        model=None, model_name="", options={"service_ms": str(SERVICE_MS)}, instances=servers
    )
    backend, batch = Sleeper(setup).__enter__(), Batch(1, {})
    taken_s: list[float] = []

    def work() -> None:
        end = time.monotonic() + _BARE_S
        while (begun := time.monotonic()) < end:
            backend.infer(batch)
            taken_s.append(time.monotonic() - begun)

    threads = [threading.Thread(target=work) for _ in range(servers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return float(np.median(taken_s)) * 1e3


def searched(servers: int, seed: int) -> tuple[Mapping[str, Any], float]:
    """Returns the content of peak.json, and the command's duration in s."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "peak"
        command = [
            sys.executable, "-m", "harness", "peak", "--scenario", "server",
            "--backend", f"{HERE / 'sleeper.py'}:Sleeper", "--backend-option",
            f"service_ms={SERVICE_MS}", "--max-batch", "1", "--instances", str(servers),
            # The instances may outnumber the cores, because they only sleep.
            "--threads", "1", "--oversubscribe",
            "--slo", f"p{PERCENTILE * 100:g}={BOUND_NS // 10**6}ms",
            "--duration", f"{DURATION_S}s", "--seed", str(seed), "--no-metrics",
            "--out", str(folder), "--json",
        ]  # fmt: skip
        begun = time.monotonic()
        done = subprocess.run(
            command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
        )
        seconds = time.monotonic() - begun
        if done.returncode not in (0, 4):
            raise RuntimeError(f"{' '.join(command)}: status {done.returncode}: {done.stderr}")
        return json.loads(done.stdout), seconds


def case(servers: int, seed: int) -> Case:
    service_ms = bare_ms(servers)
    content, seconds = searched(servers, seed)
    return Case(
        servers=servers,
        seed=seed,
        service_ms=service_ms,
        true=true_peak(servers, service_ms * 1e6, seed),
        found=content["peak"],
        failed_above=content["failed_above"],
        runs=len(content["probes"]),
        seconds=seconds,
    )


def row(cases: Sequence[Case]) -> Row:
    """Returns the row. Nine of ten cases must be met; with fewer cases, the verdict stays open."""
    met = sum(one.is_met for one in cases)
    verdict: Verdict = "met" if met >= 0.9 * len(cases) else "missed"
    near = [(one.found or 0.0) / one.true for one in cases]
    return Row(
        name="peak",
        what=f"searches within {WITHIN:.0%} of the true peak in {MOST_RUNS} runs and {MOST_S:.0f} s",
        unit=f"of {len(cases)}",
        limit="at least",
        bar=0.9 * len(cases),
        found=Estimate(met, met, met),
        decided=verdict if len(cases) >= CASES else "not decidable here",
        beside={
            "found ÷ true, least": min(near),
            "most": max(near),
            "most runs": max(one.runs for one in cases),
            "longest, s": max(one.seconds for one in cases),
        },
        runs={"cases": [asdict(one) for one in cases]},
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Checks whether `peak` finds the peak of a known model."
    )
    parser.add_argument(
        "--cases", type=int, default=CASES, metavar="N", help=f"number of cases (default {CASES})"
    )
    count = parser.parse_args(arguments).cases
    # One try suffices, because the model sleeps and other programs may use the cores.
    noise = Noise(tries=1)
    cases = []
    for i in range(count):
        one = noise.quiet(partial(case, SERVERS[i % len(SERVERS)], 1000 + i))
        cases.append(one)
        print(
            f"{one.servers} servers, seed {one.seed}: true {one.true:,.1f}, found "
            f"{one.found or 0:,.1f} ({(one.found or 0) / one.true - 1:+.1%}), {one.runs} runs, "
            f"{one.seconds:.0f} s: {'met' if one.is_met else 'missed'}",
            flush=True,
        )
    made = row(cases)
    print(f"{made.line()}; {noise.text()}")
    save(made, noise, quick=count < CASES)
    return 4 if made.verdict == "missed" else 0


if __name__ == "__main__":
    sys.exit(main())
