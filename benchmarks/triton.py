"""Compares the client with NVIDIA's perf_analyzer. The clients take turns on one Triton with the digits model and 16
requests in flight.

    python benchmarks/triton.py --perf-analyzer PROGRAM [--cores all] [--cache FOLDER] [--rounds 5] [--in-flight 16]

Rates and latencies come from each client's own report. CPU time is the client process's time per request. FOLDER keeps
Triton's environment, which the first call creates (437 MB). perf_analyzer is in PyPI's wheel `perf-analyzer`, which
requires glibc 2.38. On an older system, PROGRAM is a script that starts perf_analyzer with a different loader.
"""

import argparse
import csv
import json
import os
import resource
import sys
import tempfile
import urllib.request
from pathlib import Path
from statistics import median
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.clients import run
from benchmarks.pairs import Pairs, compared, ratio, same
from tests.servers.real_servers import triton

QUERIES = 60_000
CORES = "apart: Triton and client have one core each; all: they share all cores (default: apart)"


class Told(NamedTuple):
    """The numbers in a client's own report, and its CPU time per request."""

    per_s: float
    p50_us: float
    p99_us: float
    cpu_us: float


def harness(url: str, in_flight: int, folder: Path) -> Told:
    out = Path(tempfile.mkdtemp(dir=folder)) / "run"
    words: tuple[str, ...] = (
        "--scenario",
        "server",
        "--backend",
        "kserve",
        "--url",
        url,
        "--model",
        "digits",
    )
    words += ("--concurrency", str(in_flight), "--queries", str(QUERIES), "--slo", "p99=1s")
    words += ("--mode", "performance", "--no-metrics", "--no-report", "--out", str(out))
    run(sys.executable, "-m", "harness", *words)
    result = json.loads((out / "result.json").read_text())
    if result["queries"]["samples_failed"]:
        raise RuntimeError(f"Triton failed {result['queries']['samples_failed']} samples")
    latency, cpu_s = result["latency_ns"], result["measured_process"]["cpu_s_per_query"]
    per_s = result["throughput_per_s"]["completed"]
    return Told(per_s, latency["p50"] / 1e3, latency["p99"] / 1e3, cpu_s * 1e6)


def perf_analyzer(program: Path, url: str, in_flight: int, folder: Path) -> Told:
    """Measures perf_analyzer. CPU time includes the program's start, which is short compared with 3 or more windows of
    requests.

    The number of requests comes from Triton's count.
    """
    out = folder / "perf_analyzer.csv"
    words: tuple[str, ...] = (
        "-m",
        "digits",
        "-u",
        url.removeprefix("http://"),
        "-i",
        "http",
        "-f",
        str(out),
    )
    words += ("--concurrency-range", str(in_flight), "--measurement-interval", "2000")
    words += ("--percentile", "99", "--stability-percentage", "50")
    before_s, before = _children_cpu_s(), _answered(url)
    run(program, *words)
    used_s, count = _children_cpu_s() - before_s, _answered(url) - before
    (row,) = csv.DictReader(out.read_text().splitlines())
    per_s = float(row["Inferences/Second"])
    return Told(per_s, float(row["p50 latency"]), float(row["p99 latency"]), used_s / count * 1e6)


def _answered(url: str) -> int:
    with urllib.request.urlopen(f"{url}/v2/models/digits/stats", timeout=10) as reply:  # noqa: S310
        (stats,) = json.load(reply)["model_stats"]
    return int(stats["inference_count"])


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--perf-analyzer", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=Path(".pytest_cache/d/servers"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--in-flight", type=int, default=16)
    parser.add_argument("--cores", choices=("apart", "all"), default="apart", help=CORES)
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    cores = sorted(os.sched_getaffinity(0))
    of_triton, of_client = {
        "apart": ({cores[0]}, {cores[-1]}),
        "all": ({*cores}, {*cores}),
    }[options.cores]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        os.sched_setaffinity(0, of_triton)
        with triton(options.cache.absolute(), folder) as addresses:
            os.sched_setaffinity(0, of_client)
            ours, theirs = [], []
            for n in range(options.rounds):
                for turn in (0, 1) if n % 2 == 0 else (1, 0):
                    if turn == 0:
                        ours.append(harness(addresses.url, options.in_flight, folder))
                    else:
                        told = perf_analyzer(
                            options.perf_analyzer, addresses.url, options.in_flight, folder
                        )
                        theirs.append(told)
    for name, rows in (("harness", ours), ("perf_analyzer", theirs)):
        per_s, p50_us, p99_us, cpu_us = (median(column) for column in zip(*rows, strict=True))
        print(
            f"{name}: {per_s:,.0f} requests/s, p50 {p50_us:,.0f} us, p99 {p99_us:,.0f} us, "
            f"{cpu_us:.1f} us CPU per request"
        )
    for name, field in (("requests/s", "per_s"), ("CPU per request", "cpu_us")):
        pairs = Pairs(
            tuple(getattr(told, field) for told in ours),
            tuple(getattr(told, field) for told in theirs),
        )
        found, noise = compared(pairs, ratio), same(pairs, ratio)
        print(
            f"{name}, harness / perf_analyzer: {found.value:.2f} ({found.low:.2f} to "
            f"{found.high:.2f}), A/A {noise.value:.2f}"
        )


if __name__ == "__main__":
    main()
