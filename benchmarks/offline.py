"""Compares Offline throughput with the bare loop's; both use the bare loop's best plan."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks import pairs
from benchmarks.command import DIGITS, Noise, harness, script
from benchmarks.pairs import estimate
from benchmarks.report import Row, ratio_of


def row(
    name: str,
    path: Path,
    batches: Sequence[int],
    samples: int,
    bar: float,
    count: int,
    noise: Noise,
) -> Row:
    """Finds the bare loop's best plan in the grid, then measures pairs with that plan."""
    grid = [f"{cores}x{batch}" for batch in batches for cores in ("1x1", "1x2", "2x1")]
    found = [noise.quiet(partial(script, "bare.py", str(path), "2", plan))[0] for plan in grid]
    best = max(found, key=lambda plan: float(plan["samples_per_s"]))["plan"]
    instances, threads, batch = best.split("x")
    ask = (
        "--scenario", "offline", "--queries", str(samples),
        "--model", "digits" if path == DIGITS else str(path),
        "--instances", instances, "--threads", threads, "--max-batch", batch,
        "--backend", "ort", "--mode", "performance",
    )  # fmt: skip
    bare = ("bare.py", str(path), "4", best)
    seen = pairs.alternate(
        lambda: noise.quiet(lambda: float(harness(*ask).result["throughput_per_s"]["completed"])),
        lambda: noise.quiet(lambda: float(script(*bare)[0]["samples_per_s"])),
        count,
    )
    return ratio_of(
        f"offline-{name}",
        "samples/s over the bare loop's, both with the bare loop's best plan",
        "at least",
        bar,
        seen,
        {
            "harness, samples/s": estimate(seen.a).value,
            "bare": estimate(seen.b).value,
            "instances x threads x batch": best,
        },
        {"grid": found},
    )
