"""Computes when each query was due, from LoadGen's seed or from a stored schedule.

LoadGen counts latency from this scheduled time, but does not pass the time to the issue callback.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.core.files import reading
from harness.core.units import NS_PER_S
from harness.loadgen import real_time
from harness.loadgen.plan import LoadPlan
from harness.loadgen.scenario import scenario_named
from harness.types import Array

SCHEDULE = "schedule.npz"
"""File in the run's folder that holds the arrivals of --arrivals."""


def server_schedule_ns(queries: int, qps: float, seed: int) -> Array:
    """Returns (queries,) int64 due times in ns after the start of the run, ascending. The first due time is 0.

    qps: target rate in queries/s. seed: LoadGen's schedule seed.
    LoadGen draws the gaps from std::exponential_distribution with std::mt19937, as libstdc++ implements them, with two
    32-bit draws per gap. A test shows that the result equals LoadGen's trace to the ns.
    Source: ScheduleDistribution<Server> in loadgen.cc.
    """
    if queries < 1:
        return np.zeros(0, np.int64)
    random = np.random.RandomState(seed & 0xFFFFFFFF)
    draws = random.randint(0, 2**32, 2 * (queries - 1), dtype=np.uint64).astype(float)
    gaps_s = -np.log1p(-(draws[0::2] + draws[1::2] * 2.0**32) / 2.0**64) / qps
    after_ns = np.cumsum((gaps_s * NS_PER_S).astype(np.int64))
    return np.concatenate([np.zeros(1, np.int64), after_ns])


class Stored(NamedTuple):
    """A schedule that was read from its file."""

    after_ns: Array
    """(n,) times in ns after the start, ascending."""
    samples: Array | None
    """(n,) dataset indices; None if the user's file has no dataset indices."""


def store(path: Path, after_ns: Array, samples: Array | None) -> None:
    columns: dict[str, Any] = {"after_ns": after_ns}
    if samples is not None:
        columns["samples"] = samples
    np.savez(path, **columns)


def read_stored(path: str) -> Stored:
    """Reads a file that `store` wrote. Raises a ConfigError for any other file."""
    with (
        reading(f"{path} cannot be read", also=(OSError,)),
        Path(path).open("rb") as opened,
        np.load(opened, allow_pickle=False) as file,
    ):
        return Stored(file["after_ns"], file.get("samples"))


stored = lru_cache(maxsize=1)(read_stored)
"""`read_stored` with a cache. Because of this cache, a run can still be judged after its folder has been removed."""


def planned_ns(plan: LoadPlan, queries: int) -> Array | None:
    """Returns (queries,) due times in ns after the start; None if only the issue callback shows the due times."""
    if plan.accuracy or plan.sessions or not scenario_named(plan.scenario).scheduled:
        return None
    if plan.schedule is not None:
        return stored(plan.schedule).after_ns[:queries]
    if plan.streams is not None and plan.frame_period_ns is not None:
        return real_time.due_ns(queries, plan.streams, plan.frame_period_ns, plan.seeds.schedule)
    if plan.target_qps is not None:
        return server_schedule_ns(queries, plan.target_qps, plan.seeds.schedule)
    return None


def drawn_samples(plan: LoadPlan) -> Array:
    """Returns (queries,) samples, drawn with replacement from the seed sample_index, as LoadGen draws them.

    Uses RandomState, because NumPy guarantees that its numbers are the same in every version.
    """
    random = np.random.RandomState(plan.seeds.sample_index & 0xFFFFFFFF)
    return random.randint(0, plan.performance_count, plan.query_count, dtype=np.int64)


def freed_ns(completed_ns: Array, order: Array, concurrency: int, start_ns: int) -> Array:
    """Returns (n,) due times in ns of the queries of a closed loop with `concurrency` queries in flight.

    completed_ns, order: (n,) completion time and issue order of the answered queries. The first `concurrency` queries
    are due at the start. The k-th query after these queries is due when k queries have been answered. A latency that
    begins at the due time includes the time for issuing the query. Therefore, Little's law holds: queries/s =
    concurrency / mean latency.
    """
    in_time = np.concatenate([np.full(concurrency, start_ns, np.int64), np.sort(completed_ns)])
    freed: Array = in_time[np.minimum(order, len(in_time) - 1)]
    return freed
