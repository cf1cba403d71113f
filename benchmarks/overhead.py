"""How fast the harness itself is: the rows of the table that every release must meet.

python benchmarks/overhead.py [--rows NAME,...] [--quick]
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import pairs, rates, report
from benchmarks.command import DIGITS, Noise, Run, harness, script, wall_s
from benchmarks.pairs import Estimate, difference, estimate, neighbours, ratio
from benchmarks.report import Row
from benchmarks.topology import write_light

US = 1e3
PROBE_S = 1.0
"""The command's own noise probe, which is not its start-up."""

_PERFORMANCE = ("--mode", "performance")
_NULL = (*_PERFORMANCE, "--backend", "null")
_ORT = (*_PERFORMANCE, "--backend", "ort")


def single_stream_null(count: int, noise: Noise) -> Row:
    ask = ("--scenario", "single-stream", "--queries", "300000", *_NULL)
    seen = pairs.alternate(
        lambda: noise.quiet(lambda: _p50_us(harness(*ask))),
        lambda: noise.quiet(
            lambda: script("bare_loadgen.py", "single-stream", "300000")["p50_ns"] / US
        ),
        count,
    )
    return Row(
        name="single-stream-null",
        what="LoadGen's p50, null backend",
        unit="us",
        limit="at most",
        bar=5.0,
        found=estimate(seen.a),
        aa=neighbours(seen.a, difference),
        beside={"bare LoadGen": estimate(seen.b).value},
        runs={"harness": seen.a, "bare": seen.b},
    )


def single_stream_digits(count: int, noise: Noise) -> Row:
    ask = ("--scenario", "single-stream", "--queries", "80000", "--threads", "1", *_ORT)
    seen = pairs.alternate(
        lambda: noise.quiet(lambda: _p50_us(harness(*ask))),
        lambda: noise.quiet(lambda: script("bare.py", str(DIGITS), "3", "1x1x1")[0]["p50_ns"] / US),
        count,
    )
    return Row(
        name="single-stream-digits",
        what="LoadGen's p50 minus the p50 of a bare session.run, digits, one thread",
        unit="us",
        limit="at most",
        bar=6.0,
        found=pairs.compared(seen, difference),
        aa=pairs.same(seen, difference),
        beside={"LoadGen's p50": estimate(seen.a).value, "bare": estimate(seen.b).value},
        runs={"harness": seen.a, "bare": seen.b},
    )


def _p50_us(run: Run) -> float:
    return float(run.result["latency_ns"]["p50"]) / US


def server_null(count: int, noise: Noise) -> Row:
    seen = rates.search("null", (50_000, 100_000, 150_000, 200_000), count, noise)
    return rates.row("server-null", "null", 100_000, seen, rates.bare_null(noise))


def server_digits(count: int, noise: Noise) -> Row:
    seen = rates.search("ort", (30_000, 40_000, 50_000, 60_000, 80_000), count, noise)
    return rates.row("server-digits", "digits", 50_000, seen, rates.bare_digits(noise))


def offline_digits(count: int, noise: Noise) -> Row:
    batches = (16, 32, 64, 128, 256, 512, 1024)
    return _offline("digits", DIGITS, batches, 500_000, 0.9, count, noise)


def offline_squeezenet(count: int, noise: Noise) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "squeezenet.onnx"
        write_light("squeezenet", path)
        return _offline("squeezenet", path, (1, 2, 4, 8, 16, 32), 2000, 0.97, count, noise)


def _offline(
    name: str,
    path: Path,
    batches: tuple[int, ...],
    samples: int,
    bar: float,
    count: int,
    noise: Noise,
) -> Row:
    """The bare loop's best plan of the whole grid, then pairs with that plan."""
    grid = [f"{plan}x{batch}" for batch in batches for plan in ("1x1", "1x2", "2x1")]
    found = noise.quiet(lambda: script("bare.py", str(path), "1", *grid))
    best = max(found, key=lambda plan: float(plan["samples_per_s"]))["plan"]
    instances, threads, batch = best.split("x")
    plan = ("--instances", instances, "--threads", threads, "--max-batch", batch)
    model = ("--model", "digits" if name == "digits" else str(path))
    ask = ("--scenario", "offline", "--queries", str(samples), *plan, *model, *_ORT)
    seen = pairs.alternate(
        lambda: noise.quiet(lambda: float(harness(*ask).result["throughput_per_s"]["completed"])),
        lambda: noise.quiet(lambda: float(script("bare.py", str(path), "4", best)[0]["samples_per_s"])),
        count,
    )
    return Row(
        name=f"offline-{name}",
        what=f"samples/s over the bare loop's, plan {best} (instances x threads x batch)",
        unit="",
        limit="at least",
        bar=bar,
        found=pairs.compared(seen, ratio),
        aa=pairs.same(seen, ratio),
        neutral=1.0,
        beside={
            "plan": best,
            "harness": estimate(seen.a).value,
            "bare": estimate(seen.b).value,
        },
        runs={"harness": seen.a, "bare": seen.b, "grid": found},
    )


_MILLION = {
    "server": ("--scenario", "server", "--target-qps", "100000", "--queries", "1000000", *_NULL),
    "single-stream": ("--scenario", "single-stream", "--queries", "1000000", *_NULL),
}


def million_growth(scenario: str, count: int, noise: Noise) -> Row:
    runs = [noise.quiet(lambda: harness(*_MILLION[scenario])) for _ in range(max(2, count // 2))]
    growth = [r.result["measured_process"]["rss_growth_bytes"] / 1e6 for r in runs]
    ending = [(r.result_written_ns - r.last_completed_ns) / 1e9 for r in runs]
    peaks = [r.supervisor_peak_bytes / 1e6 for r in runs]
    return Row(
        name=f"million-{scenario}-memory",
        what="growth of the measured process over 1,000,000 queries, null backend",
        unit="MB",
        limit="at most",
        bar=450.0,
        found=estimate(growth),
        aa=neighbours(growth, difference),
        beside={"supervisor's peak, MB": estimate(peaks).value},
        runs={"growth_mb": growth, "ending_s": ending, "supervisor_peak_mb": peaks},
    )
