"""Divides one schedule among load hosts by a draw of its own for each query. Pure.

A Poisson process whose arrivals are given to hosts by independent draws is a Poisson process at each of them, and
together they are the process itself, to the nanosecond.
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

_WORD = 0xFFFFFFFF


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
    path = outdir / schedule.SCHEDULE
    schedule.store(path, after_ns[part], samples_of(plan)[part])
    share = len(part) / plan.query_count
    return replace(
        plan,
        schedule=str(path),
        query_count=len(part),
        journal_samples=len(part),
        target_qps=plan.target_qps * share if plan.target_qps is not None else None,
        logged_answers=round(plan.logged_answers * share),
    )
