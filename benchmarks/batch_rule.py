"""Simulates Server with several values of the constants in `harness/core/batch_rule.py`.

    python benchmarks/batch_rule.py [--instances 2] [--queries 4000]

Each case has a fixed cost per batch (0 to 4 times the cost of a sample) and a load (20 to 90 % of the highest rate).
Service times vary by 5 %, and the rule knows each batch size's time only to 2 %, as after a warm-up. For each case, the
p50 and p99 of each rule are divided by those of the best rule. The simulation is deterministic and needs no idle
machine.
"""

import argparse
from collections.abc import Mapping

import numpy as np

from harness.core import batch_rule
from harness.core.batch_rule import BatchRule, batch_times
from harness.core.console import show
from harness.core.queueing import dispatched
from harness.loadgen.schedule import server_schedule_ns
from harness.results.pages.tables import Column, aligned
from harness.types import Array

RULES = ((0.05, 0.05), (0.10, 0.10), (0.05, 0.15), (0.10, 0.15), (0.05, 0.25), (0.10, 0.25))
"""Pairs of NEARLY and NEARLY_SHORT."""

FIXED_COSTS = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0, 4.0)
"""Cost of a batch that does not depend on its size, relative to the cost of a sample."""

LOADS = (0.2, 0.4, 0.6, 0.75, 0.9)
SIZES = (1, 2, 4, 8)
SINGLE_NS = 10e6

SEEDS = (1, 2, 3)
"""Seeds of the arrivals. Each seed is simulated with three errors of the warm-up."""

SERVICE_NOISE = 0.05
WARM_UP_ERROR = 0.02


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--instances", type=int, default=2)
    parser.add_argument("--queries", type=int, default=4000)
    options = parser.parse_args()
    used = batch_rule.NEARLY, batch_rule.NEARLY_SHORT
    percentiles_ms = np.array(
        [
            [
                _percentiles_ms(rule, fixed, load, options.instances, options.queries)
                for rule in RULES
            ]
            for fixed in FIXED_COSTS
            for load in LOADS
        ]
    )
    ratios = percentiles_ms / percentiles_ms.min(axis=1, keepdims=True)
    mean, worst = ratios.mean(axis=0), ratios.max(axis=0)
    columns = [Column(name, "count") for name in ("long", "short", *_HEADS)] + [Column("")]
    rows = [
        (
            *map(str, rule),
            *(f"{x:.3f}" for x in (*mean[i], *worst[i])),
            "used" if rule == used else "",
        )
        for i, rule in enumerate(RULES)
    ]
    show("\n".join(aligned(columns, rows)))


_HEADS = ("mean p50", "mean p99", "worst p50", "worst p99")


def _percentiles_ms(
    rule: tuple[float, float], fixed: float, load: float, instances: int, queries: int
) -> Array:
    """Returns p50 and p99 of the latency in ms, as the mean over all seeds and errors. Shape (2,)."""
    batch_rule.NEARLY, batch_rule.NEARLY_SHORT = rule
    times_ns = {size: SINGLE_NS * (fixed + size) / (fixed + 1) for size in SIZES}
    capacity_qps = instances * max(size / ns for size, ns in times_ns.items()) * 1e9
    found = []
    for seed in SEEDS:
        due_ns = server_schedule_ns(queries, load * capacity_qps, seed)
        noise: Array = np.exp(np.random.default_rng(3).normal(0, SERVICE_NOISE, queries))
        for error_seed in range(3):
            errors = np.random.default_rng(error_seed).normal(0, WARM_UP_ERROR, len(SIZES))
            measured = [
                (n, ns * (1 + e)) for (n, ns), e in zip(times_ns.items(), errors, strict=True)
            ]
            found.append(_simulated_ms(due_ns, times_ns, noise, measured, instances))
    mean: Array = np.mean(found, axis=0)
    return mean


def _simulated_ms(
    due_ns: Array,
    times_ns: Mapping[int, float],
    noise: Array,
    measured: list[tuple[int, float]],
    instances: int,
) -> Array:
    real_ns = batch_times(sorted(times_ns.items()), SIZES[-1])
    rule = BatchRule(batch_times(measured, SIZES[-1]), instances)
    run = dispatched(
        due_ns - due_ns[0],
        instances,
        SIZES[-1],
        0,
        rule,
        lambda size, first, _: int(real_ns[size] * noise[first]),
        None,
    )
    percentiles: Array = np.percentile((run.queue_ns + run.infer_ns) / 1e6, (50, 99))
    return percentiles


if __name__ == "__main__":
    main()
