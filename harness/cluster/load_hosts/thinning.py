"""Divides one schedule among load hosts by an independent random draw per query.

If independent draws assign the arrivals of a Poisson process, the arrivals at each host also form a Poisson process.
Together, all hosts issue exactly the original schedule.
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
"""The coordinator itself issues extra queries that check the hosts' times. Their number is WITNESS_SHARE of the number
of scheduled queries, but at least FEWEST_WITNESSES and at most MOST_WITNESSES.
"""

MOST_WITNESS_SHARE = 0.2
"""In a very short schedule, FEWEST_WITNESSES queries would be too many, so the coordinator issues at most this share of
the schedule.
"""

_WORD = 0xFFFFFFFF
_WITNESS = 1
"""Number that is appended to the schedule's seed when the coordinator's queries are drawn, so that this draw is
independent of the schedule.
"""


def parts_of(plan: LoadPlan, hosts: Sequence[str]) -> list[Array]:
    """Returns each host's queries as ascending positions in the schedule, (n,); each query belongs to exactly one host.
    hosts: names of the hosts.

    Raises ConfigError if a host would not get any query.
    """
    # RandomState is used because it is NumPy's only generator whose numbers are guaranteed to stay the same in every
    # version.
    seed = plan.seeds.schedule
    random = np.random.RandomState([seed & _WORD, seed >> 32 & _WORD, len(hosts)])
    owner = random.randint(0, len(hosts), plan.query_count)
    parts = [np.flatnonzero(owner == host) for host in range(len(hosts))]
    idle = [name for name, part in zip(hosts, parts, strict=True) if not len(part)]
    if idle:
        raise ConfigError(
            f"--load-hosts: none of {counted(plan.query_count, 'query', 'queries')} is drawn for {' and '.join(idle)}: "
            "list fewer hosts, or raise --queries or --duration"
        )
    return parts


def samples_of(plan: LoadPlan) -> Array:
    """Returns (queries,) dataset indices, one for each query in the whole schedule."""
    if plan.schedule is not None:
        samples = schedule.stored(plan.schedule).samples
        if samples is not None:
            return samples
    return schedule.drawn_samples(plan)


def plan_of(plan: LoadPlan, part: Array, outdir: Path) -> LoadPlan:
    """Returns the plan for the host that issues `part`. Writes the host's schedule into `outdir`."""
    after_ns = schedule.planned_ns(plan, plan.query_count)
    assert after_ns is not None
    own = _own_plan(plan, after_ns[part], samples_of(plan)[part], outdir)
    share = len(part) / plan.query_count
    return replace(own, logged_answers=round(plan.logged_answers * share))


def witness_plan(plan: LoadPlan, outdir: Path) -> LoadPlan:
    """Returns the plan for the coordinator's queries, which are added to the schedule at uniformly distributed random
    times.

    The coordinator's queries do not repeat scheduled queries at the same times, because the server would then always be
    busy with the scheduled query.
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
    """Returns a plan that contains only these queries. Writes the plan's schedule into `outdir` with `schedule.store`."""
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
