"""Applies the harness's referee and the MLPerf Endpoints rule to synthetic runs, and counts their errors
(docs/steady.md).

    python benchmarks/steady.py > steady.md
    python benchmarks/steady.py --seed 7 --streams 100

A closed loop answers whole passes over a dataset of 400 samples. The samples differ in length, and the mean level of
the times follows a known curve. Both rules judge the same streams. All seeds are fixed, so the same code prints the
same table. The script takes a few minutes.
"""

import argparse
import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from harness.core.stats import LEVEL
from harness.results.steady import official
from harness.results.steady.levels import levels_of
from harness.results.steady.rank_tests import mean_interval
from harness.results.steady.referee import referee
from harness.results.steady.series import Stream
from harness.types import Array

PASS = 400
"""Number of samples in the dataset."""
PASS_S = 150.0
PASSES = (5, 8, 12, 21)
IN_FLIGHT = 16
SPREAD, NOISE = 0.35, 0.15
"""Standard deviations of the logarithm of a time: between samples, and between repetitions of one sample."""

Level = Callable[[np.random.Generator, Array, int], Array]
"""Maps (random numbers, the time of each sample as a share of the run, passes) to the logarithm of the samples' level.
"""


class Case(NamedTuple):
    """A kind of stream with a known truth."""

    name: str
    truth: str
    """flat, changed (by 10 % or more), or open if either verdict is right."""
    level: Level
    heavy: bool = False
    """True if the noise has heavy tails (Student's t with 3 degrees of freedom)."""
    slow_tail: float = 0.0
    """Share of the samples in the second half that take 10 times as long."""


def flat(_: np.random.Generator, x: Array, __: int) -> Array:
    return np.zeros_like(x)


def ramp(change: float) -> Level:
    return lambda _rng, x, _passes: np.log1p(change * x)


def step(change: float) -> Level:
    """Returns a level that changes once, at a random place between 20 and 80 % of the run."""
    return lambda rng, x, _: math.log1p(change) * (x >= rng.uniform(0.2, 0.8))


def warm_up(change: float, passes_long: float) -> Level:
    return lambda _, x, passes: np.log1p(change * np.exp(-x * passes / passes_long))


def period(size: float, passes_long: float) -> Level:
    """Returns a level that oscillates by `size` around the mean, from a random phase."""
    return lambda rng, x, passes: np.log1p(
        size * np.sin(2 * math.pi * (x * passes / passes_long + rng.random()))
    )


def correlated(deviation: float, passes_long: float) -> Level:
    """Returns a level that wanders around its mean (AR(1)). passes_long: its correlation time, in passes."""

    def level(rng: np.random.Generator, x: Array, passes: int) -> Array:
        return deviation * wander(rng, len(x), len(x) / passes * passes_long)

    return level


def wander(rng: np.random.Generator, n: int, correlation: float) -> Array:
    """Returns (n,) values of an AR(1) process with mean 0 and standard deviation 1. correlation: the correlation time,
    in values.
    """
    kept = math.exp(-1 / correlation)
    shocks = rng.normal(size=n) * math.sqrt(1 - kept * kept)
    shocks[0] = rng.normal()
    values = np.empty(n)
    value = 0.0
    for i, shock in enumerate(shocks.tolist()):
        value = kept * value + shock
        values[i] = value
    return values


CASES = (
    Case("flat", "flat", flat),
    Case("flat, heavy tails", "flat", flat, heavy=True),
    Case("flat, correlated over 0.1 passes, 3 %", "flat", correlated(0.03, 0.1)),
    Case("flat, correlated over 0.5 passes, 3 %", "flat", correlated(0.03, 0.5)),
    Case("flat, correlated over 1 pass, 6 %", "flat", correlated(0.06, 1.0)),
    Case("warm-up of +40 %, 0.25 passes", "flat", warm_up(0.4, 0.25)),
    Case("ramp of 5 %", "open", ramp(0.05)),
    Case("ramp of 10 %", "changed", ramp(0.10)),
    Case("ramp of 20 %", "changed", ramp(0.20)),
    Case("ramp of 40 %", "changed", ramp(0.40)),
    Case("ramp of -10 %", "changed", ramp(-0.10)),
    Case("ramp of 20 %, heavy tails", "changed", ramp(0.20), heavy=True),
    Case("step of 10 %", "changed", step(0.10)),
    Case("step of 25 %", "changed", step(0.25)),
    Case("step of -12 %", "changed", step(-0.12)),
    Case("period of 2 passes, ±10 %", "changed", period(0.1, 2)),
    Case("period of 6 passes, ±10 %", "changed", period(0.1, 6)),
    Case("8 % of the samples 10 times as slow in the 2nd half", "changed", flat, slow_tail=0.08),
)


def made(rng: np.random.Generator, case: Case, passes: int) -> tuple[Stream, official.Samples]:
    """Returns the same stream in two forms, one for each rule."""
    n = passes * PASS
    index = np.concatenate([rng.permutation(PASS) for _ in range(passes)])
    x = (np.arange(n) + 0.5) / n
    level = case.level(rng, x, passes)
    noise = rng.standard_t(3, n).clip(-15, 15) if case.heavy else rng.normal(size=n)
    tokens = np.exp(4.6 + SPREAD * rng.normal(size=PASS)).astype(np.int64)[index] + 1
    token_s = PASS_S * IN_FLIGHT / PASS / 115
    tpot_ns = 1e9 * token_s * np.exp(level + NOISE * noise)
    if case.slow_tail:
        tpot_ns *= np.where((x > 0.5) & (rng.random(n) < case.slow_tail), 10.0, 1.0)
    ttft_ns = 1e9 * token_s * 5 * np.exp(level + 2 * NOISE * rng.normal(size=n))
    latency_ns = (ttft_ns + tokens * tpot_ns).astype(np.int64)
    issued_ns = closed_loop(latency_ns, IN_FLIGHT)
    ok = np.ones(n, bool)
    return (
        Stream(issued_ns, latency_ns, index, ok, ttft_ns, tpot_ns),
        official.Samples(issued_ns, ttft_ns, tpot_ns, latency_ns, tokens),
    )


def closed_loop(latency_ns: Array, in_flight: int) -> Array:
    """Returns (n,) issue times of a closed loop, in which each answer triggers the next query."""
    issued = np.zeros(len(latency_ns), np.int64)
    busy: list[int] = []
    for i, latency in enumerate(latency_ns.tolist()):
        at = heapq.heappop(busy) if len(busy) == in_flight else 0
        issued[i] = at
        heapq.heappush(busy, at + latency)
    return issued


class Counted(NamedTuple):
    """Verdicts on the streams of one case and length."""

    ours: Mapping[str, float]
    """Maps each verdict of the referee to its share of the streams."""
    found: float
    """Share of the streams in which the official rule finds a window."""
    clean: float
    """Share of the streams in which the official rule finds a window without a drift warning and without an anomaly."""


def count(case: Case, passes: int, streams: int, seed: int) -> Counted:
    rng = np.random.default_rng([seed, passes, CASES.index(case) if case in CASES else 99])
    verdicts: Counter[str] = Counter()
    found = clean = 0
    for _ in range(streams):
        stream, samples = made(rng, case, passes)
        judged = referee(stream)
        verdicts[judged.verdict if judged is not None else "undecided"] += 1
        rule = official.judge(samples, PASS)
        found += rule.is_found
        clean += rule.is_clean
    shares = {name: verdicts[name] / streams for name in ("steady", "not steady", "undecided")}
    return Counted(shares, found / streams, clean / streams)


def coverage(streams: int, seed: int) -> Iterator[str]:
    """Yields rows with the share of the harness's intervals, and of the official intervals, that contain the true mean
    level.
    """
    for passes in (8, 20):
        for passes_long in (0.0, 0.05, 0.2, 0.4, 1.0, 5.0):
            rng = np.random.default_rng([seed, passes, round(100 * passes_long)])
            ours = theirs = 0
            for _ in range(streams):
                n = passes * 64
                noise = rng.normal(size=n) * 0.05
                if passes_long:
                    noise += 0.05 * wander(rng, n, 64 * passes_long)
                low, high = levels_of(noise.reshape(64, -1).mean(axis=1)).mean_interval(LEVEL)
                ours += low <= 0 <= high
                low, high = mean_interval(noise.reshape(passes, -1).mean(axis=1))
                theirs += low <= 0 <= high
            yield (
                f"| {passes_long:g} passes | {passes} | {ours / streams:.1%} | {theirs / streams:.1%} |"
            )


def main() -> None:
    """Prints both tables as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=15, help="streams per case and length")
    parser.add_argument("--seed", type=int, default=2)
    args = parser.parse_args()
    print("| stream | passes | steady | not steady | undecided | official: window | clean |")
    print("|---|---|---|---|---|---|---|")
    total: dict[str, list[float]] = {}
    for case in CASES:
        for passes in PASSES:
            one = count(case, passes, args.streams, args.seed)
            cells = [f"{one.ours[name]:.0%}" for name in ("steady", "not steady", "undecided")]
            print(
                f"| {case.name} | {passes} |", " | ".join(cells),
                f"| {one.found:.0%} | {one.clean:.0%} |", flush=True,
            )  # fmt: skip
            if case.truth == "changed":
                total.setdefault("changed by 10 % or more, called steady", []).append(
                    one.ours["steady"]
                )
                total.setdefault("the same, official: clean", []).append(one.clean)
            if case.truth == "flat":
                total.setdefault("flat, called not steady", []).append(one.ours["not steady"])
                total.setdefault("the same, official: no clean window", []).append(1 - one.clean)
            if passes == 8:
                total.setdefault("undecided at 8 passes", []).append(one.ours["undecided"])
    print("\n| of all streams | share |\n|---|---|")
    for name, shares in total.items():
        print(f"| {name} | {sum(shares) / len(shares):.2%} |")
    print("\n| correlation of the level | passes | interval | official |")
    print("|---|---|---|---|")
    for row in coverage(40 * args.streams, args.seed):
        print(row, flush=True)


if __name__ == "__main__":
    main()
