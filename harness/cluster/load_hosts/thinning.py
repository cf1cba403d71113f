"""Divides one schedule among load hosts with an independent draw for each query. Pure.

A Poisson process whose arrivals are given to hosts by independent draws is a Poisson process at each host, and
together these are the process itself, to the nanosecond.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from harness.core.units import counted
from harness.errors import ConfigError
from harness.loadgen import schedule
from harness.loadgen.plan import LoadPlan
from harness.types import Array

WITNESS_SHARE = 0.01
FEWEST_WITNESSES = 20
MOST_WITNESSES = 2000
"""Queries of the coordinator's own on top of the schedule, as a share of it, and the bounds of their number."""

MOST_WITNESS_SHARE = 0.2
"""Share of a very short schedule that they do not exceed."""

_WORD = 0xFFFFFFFF
_WITNESS = 1
"""Follows the schedule's seed in the seed of the coordinator's own queries."""


def parts_of(plan: LoadPlan, hosts: Sequence[str]) -> list[Array]:
    """For each host the queries that it issues, by their place in the schedule: (n,) ascending, each query once.

    hosts: their names. A ConfigError where one of them would have nothing to do.
    """
    # RandomState, because numpy promises that its numbers are the same in every version.
    seed = plan.seeds.schedule
    random = np.random.RandomState([seed & _WORD, seed >> 32 & _WORD, len(hosts)])
    owner = random.randint(0, len(hosts), plan.query_count)
    parts = [np.flatnonzero(owner == host) for host in range(len(hosts))]
    idle = [name for name, part in zip(hosts, parts, strict=True) if not len(part)]
    if idle:
        raise ConfigError(
            f"--load-hosts: of {counted(plan.query_count, 'query', 'queries')} none is drawn for {' and '.join(idle)}: "
            "name fewer hosts, or raise --queries or --duration"
        )
    return parts


def samples_of(plan: LoadPlan) -> Array:
    """(queries,) the dataset index that each query of the whole schedule asks for."""
    if plan.schedule is not None:
        samples = schedule.stored(plan.schedule).samples
        if samples is not None:
            return samples
    return schedule.drawn_samples(plan)


def plan_of(plan: LoadPlan, part: Array, outdir: Path) -> LoadPlan:
    """The plan of the host that issues `part`. Its schedule is written into `outdir`."""
    after_ns = schedule.planned_ns(plan, plan.query_count)
    assert after_ns is not None
    own = _own_plan(plan, after_ns[part], samples_of(plan)[part], outdir)
    share = len(part) / plan.query_count
    return replace(own, logged_answers=round(plan.logged_answers * share))


def witness_plan(plan: LoadPlan, outdir: Path) -> LoadPlan:
    """The plan of the coordinator's own queries, which come on top of the schedule, at times drawn evenly over it.

    No query repeats one of the schedule at its moment: it would always find the server busy with its twin.
    """
    planned_ns = schedule.planned_ns(plan, plan.query_count)
    assert planned_ns is not None
    few = int(min(FEWEST_WITNESSES, MOST_WITNESS_SHARE * plan.query_count))
    count = min(max(int(WITNESS_SHARE * plan.query_count), few, 1), MOST_WITNESSES)
    seed = plan.seeds.schedule
    random = np.random.RandomState([seed & _WORD, seed >> 32 & _WORD, _WITNESS])
    after_ns = np.sort(random.randint(0, int(planned_ns[-1]) + 1, count, dtype=np.int64))
    samples = random.choice(samples_of(plan), count)
    return replace(_own_plan(plan, after_ns, samples, outdir), logged_answers=0)


def _own_plan(plan: LoadPlan, after_ns: Array, samples: Array, outdir: Path) -> LoadPlan:
    """The plan of these queries alone, as in `schedule.store`. Their schedule is written into `outdir`."""
    path = outdir / schedule.SCHEDULE
    schedule.store(path, after_ns, samples)
    count = len(after_ns)
    rate = plan.target_qps
    return replace(
        plan,
        schedule=str(path),
        query_count=count,
        journal_samples=count,
        target_qps=rate * count / plan.query_count if rate is not None else None,
    )
