"""Finds the highest Server rate with a p99 below 10 ms, by making runs at every rate of a ladder."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from benchmarks.command import DIGITS, Noise, harness, script
from benchmarks.pairs import Estimate, estimate, passes_verdict
from benchmarks.report import Row

BOUND_MS = 10.0
DURATION_S = 3

Seen = Mapping[int, Sequence[tuple[bool, float]]]
"""Maps each rate to its runs. For each run: whether it was VALID, and LoadGen's p99 in ms."""


def search(
    run: Callable[[int], tuple[bool, float]], ladder: Sequence[int], count: int, noise: Noise
) -> Seen:
    """Makes `count` runs at every rate. The rates take turns, so that a slow minute affects all rates."""
    seen: dict[int, list[tuple[bool, float]]] = {rate: [] for rate in ladder}
    for turn in range(count):
        for rate in ladder if turn % 2 == 0 else reversed(ladder):
            seen[rate].append(noise.quiet(partial(run, rate)))
    return seen


def run_at(backend: str, rate: int) -> tuple[bool, float]:
    run = harness(
        "--scenario", "server", "--backend", backend, "--mode", "performance",
        "--slo", f"p99={BOUND_MS:g}ms", "--target-qps", str(rate),
        "--duration", f"{DURATION_S}s",
    )  # fmt: skip
    return run.result["verdict"] == "VALID", run.result["latency_ns"]["p99"] / 1e6


def bare_null(noise: Noise, rate: int = 200_000) -> Mapping[str, float | str]:
    """Measures bare_loadgen.py at twice the bar's rate, as the yardstick."""
    arguments = ("server", str(rate * DURATION_S), str(rate))
    found = noise.quiet(lambda: script("bare_loadgen.py", *arguments))
    return {f"bare LoadGen's p99 at {rate:,}/s, ms": found["p99_ns"] / 1e6}


def bare_digits(noise: Noise) -> Mapping[str, float | str]:
    """Measures the bare loop's samples/s with full batches on every core, as the yardstick."""
    plans = ("2x1x16", "2x1x64", "1x2x64")
    found = noise.quiet(lambda: script("bare.py", str(DIGITS), "2", *plans))
    return {"bare loop, samples/s": max(float(plan["samples_per_s"]) for plan in found)}


def row(name: str, what: str, bar: int, seen: Seen, beside: Mapping[str, float | str]) -> Row:
    """Returns the row for the highest rate at which most runs passed, provided that most runs also passed at every
    lower rate of the ladder.
    """
    passed = {rate: sum(valid for valid, _ in runs) for rate, runs in seen.items()}
    highest = 0
    for rate, runs in seen.items():
        if 2 * passed[rate] <= len(runs):
            break
        highest = rate
    shown = {f"{rate:,}/s": f"{passed[rate]}/{len(runs)}" for rate, runs in seen.items()}
    p99 = estimate([ms for _, ms in seen[bar]])
    return Row(
        name=name,
        what=f"highest rate with p99 < {BOUND_MS:g} ms, {what}",
        unit="queries/s",
        limit="at least",
        bar=bar,
        found=Estimate(highest, highest, highest),
        decided=passes_verdict(passed[bar], len(seen[bar])),
        beside={**shown, f"p99 at {bar:,}/s, ms": p99.value, **beside},
        runs={str(rate): runs for rate, runs in seen.items()},
    )
