"""Runs the digits model in Server at half its capacity for a long time, during which nothing may grow, drift or be
lost.

python benchmarks/soak.py [--minutes 30]
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.command import ROOT, environment, harness
from benchmarks.report import RESULTS, machine
from harness.types import Array

MARGIN_MB = 20.0
PLAN = ("--instances", "1", "--threads", "1", "--max-batch", "1")
"""Batches contain one sample: at the capacity of large batches, LoadGen would need 30 GB for the queries of 30 minutes.
"""

_FIRST_PER_S = 4000
_STEP = 1.2

_LOADGEN_GROWTH_BYTES = 16
"""Memory that LoadGen needs per query, because it stores each latency twice (by arrival and for sorting), in vectors
that double in size.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--minutes",
        type=int,
        default=30,
        help="length of the run in minutes, at least 3 (default 30)",
    )
    minutes = max(3, parser.parse_args().minutes)
    rate = _capacity_per_s() / 2
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "run"
        memory = _watched(folder, rate, minutes)
        result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        p99_us = _p99_by_minute_us(folder / "performance/run_1/completions.npz")
    found = _judged(result, memory, p99_us, rate, minutes)
    for key, value in found.items():
        print(f"{key}: {value}")
    RESULTS.mkdir(exist_ok=True)
    content = {**found, "date": datetime.now(UTC).isoformat(timespec="seconds")}
    text = json.dumps({**content, "machine": machine()}, indent=1)
    (RESULTS / "soak.json").write_text(text + "\n", encoding="utf-8")
    return 0 if found["passed"] else 4


def _capacity_per_s() -> float:
    """Returns the highest rate of a ladder at which LoadGen measures p99 ≤ 10 ms.

    The bare model is not the yardstick, because one Python process cannot dispatch single queries as fast as the bare
    model answers them.
    """
    capacity, rate = 0.0, float(_FIRST_PER_S)
    while _is_valid(rate) or _is_valid(rate):
        capacity, rate = rate, rate * _STEP
    if not capacity:
        raise SystemExit(f"not even {_FIRST_PER_S} queries/s are VALID here: is the machine idle?")
    return capacity


def _is_valid(rate_per_s: float) -> bool:
    load = ("--target-qps", f"{rate_per_s:.0f}", "--duration", "5s", "--slo", "p99=10ms")
    run = harness("--scenario", "server", "--mode", "performance", *load, *PLAN)
    return bool(run.result["verdict"] == "VALID")


def _watched(folder: Path, rate: float, minutes: int) -> list[tuple[float, float, float]]:
    """Returns one entry per second: the seconds since the first query, and the private memory of both processes in MB."""
    command = [
        sys.executable, "-m", "harness", "--scenario", "server", "--mode", "performance",
        "--target-qps", f"{rate:.0f}", "--duration", f"{minutes}min", "--quiet", *PLAN,
        "--out", str(folder),
    ]  # fmt: skip
    seen = []
    with subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL
    ) as process:
        supervisor = psutil.Process(process.pid)
        log = folder.with_name("run.partial") / "performance/run_1/mlperf_log_detail.txt"
        start = None
        while process.poll() is None:
            if start is None and log.is_file() and log.stat().st_size:
                start = time.monotonic()
            children = supervisor.children()
            if start is not None and children:
                since = time.monotonic() - start
                seen.append((since, _private_mb(children[0].pid), _private_mb(process.pid)))
            time.sleep(1.0)
    if process.returncode not in (0, 4):
        raise RuntimeError(f"status {process.returncode}")
    return seen


def _private_mb(pid: int) -> float:
    """Returns the process's private memory (RssAnon). RssAnon excludes the journal, which both processes share and
    which grows by design.
    """
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return float("nan")
    line = next((x for x in text.splitlines() if x.startswith("RssAnon")), "RssAnon: 0 kB")
    return int(line.split()[1]) / 1e3


def _p99_by_minute_us(path: Path) -> list[float]:
    with np.load(path) as done:
        scheduled, completed = done["scheduled_ns"], done["completed_ns"]
    minute = (scheduled - scheduled.min()) // 60_000_000_000
    latency_us: Array = (completed - scheduled) / 1e3
    whole = range(int(minute.max()) + (1 if (minute == minute.max()).mean() > 0.01 else 0))
    return [round(float(np.percentile(latency_us[minute == m], 99)), 1) for m in whole]


def _judged(
    result: dict[str, Any],
    memory: Sequence[tuple[float, float, float]],
    p99_us: Sequence[float],
    rate: float,
    minutes: int,
) -> dict[str, Any]:
    """Judges the growth from the end of the first minute to the last reading before the run ended."""
    since, measured, supervisor = np.array([m for m in memory if 60 < m[0] < 60 * minutes - 5]).T
    grown_mb, queries = float(measured[-1] - measured[0]), rate * (since[-1] - since[0])
    allowed_mb = _LOADGEN_GROWTH_BYTES * queries / 1e6 + MARGIN_MB
    supervisor_mb = float(supervisor[-1] - supervisor[0])
    spread_us = float(np.subtract(*np.percentile(p99_us, [90, 10])))
    counts = result["queries"]
    lost = counts["planned"] - counts["samples_answered"]
    return {
        "rate_per_s": round(rate),
        "minutes": minutes,
        "verdict": result["verdict"],
        "reasons": [r["code"] for r in result["reasons"]],
        "doubts": [d["code"] for d in result["doubts"]],
        "queries": counts["planned"],
        "samples_lost": lost,
        "measured_growth_mb": round(grown_mb, 1),
        "measured_growth_bytes_a_query": round(grown_mb * 1e6 / queries, 2),
        "measured_growth_allowed_mb": round(allowed_mb, 1),
        "supervisor_growth_mb": round(supervisor_mb, 1),
        "p99_first_us": p99_us[0],
        "p99_last_us": p99_us[-1],
        "p99_spread_between_minutes_us": round(spread_us, 1),
        "p99_by_minute_us": list(p99_us),
        "passed": bool(
            not lost
            and result["verdict"] == "VALID"
            and grown_mb <= allowed_mb
            and supervisor_mb <= MARGIN_MB
            and abs(p99_us[-1] - p99_us[0]) <= max(2 * spread_us, 0.1 * p99_us[0])
        ),
    }


if __name__ == "__main__":
    sys.exit(main())
