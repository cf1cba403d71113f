"""When each query was due: LoadGen's Server schedule, recomputed from its seed, or a replayed one.

The callback is told ids and indices but not the scheduled time, from which LoadGen counts latency.
"""

import zipfile
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.core.units import NS_PER_S
from harness.errors import ConfigError
from harness.loadgen.plan import LoadPlan
from harness.loadgen.scenario import scenario_named
from harness.types import Array

SCHEDULE = "schedule.npz"
"""In the run's folder: what --arrivals was read as."""


def server_schedule_ns(queries: int, qps: float, seed: int) -> Array:
    """(queries,) int64 ns after the start of the run, ascending, the first 0.

    qps: target rate in queries/s. seed: LoadGen's schedule seed.
    Source: loadgen.cc, ScheduleDistribution<Server>: std::exponential_distribution over
    std::mt19937 as libstdc++ implements them (two 32-bit draws a gap); equal to the ns to LoadGen's
    own trace, which a test repeats.
    """
    if queries < 1:
        return np.zeros(0, np.int64)
    random = np.random.RandomState(seed & 0xFFFFFFFF)
    draws = random.randint(0, 2**32, 2 * (queries - 1), dtype=np.uint64).astype(float)
    gaps_s = -np.log1p(-(draws[0::2] + draws[1::2] * 2.0**32) / 2.0**64) / qps
    after_ns = np.cumsum((gaps_s * NS_PER_S).astype(np.int64))
    return np.concatenate([np.zeros(1, np.int64), after_ns])


class Stored(NamedTuple):
    """after_ns: (n,) ns after the start, ascending. samples: (n,) dataset indices, or None."""

    after_ns: Array
    samples: Array | None


def store(path: Path, after_ns: Array, samples: Array | None) -> None:
    columns: dict[str, Any] = {"after_ns": after_ns}
    if samples is not None:
        columns["samples"] = samples
    np.savez(path, **columns)


def read_stored(path: str) -> Stored:
    """A ConfigError where the file is not what `store` wrote."""
    try:
        with Path(path).open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            return Stored(file["after_ns"], file.get("samples"))
    except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as e:
        raise ConfigError(f"{path} cannot be read: {e}") from None


stored = lru_cache(maxsize=1)(read_stored)
"""Kept in memory: a run whose folder is taken away is still judged."""


def planned_ns(plan: LoadPlan, queries: int) -> Array | None:
    """(queries,) ns after the start when each query is due; None where only its callback tells."""
    if plan.accuracy or not scenario_named(plan.scenario).scheduled:
        return None
    if plan.schedule is not None:
        return stored(plan.schedule).after_ns[:queries]
    if plan.target_qps is not None:
        return server_schedule_ns(queries, plan.target_qps, plan.seeds.schedule)
    return None


def freed_ns(completed_ns: Array, order: Array, concurrency: int, start_ns: int) -> Array:
    """When the place of each query became free, where `concurrency` are kept in flight.

    completed_ns, order: (n,) of the queries answered, by issue order. The first `concurrency` may
    come at the start, the k-th after them when the k-th of all was answered. A query that counts
    from there waits for nothing but the harness, so latencies fill the run: concurrency / mean
    latency = queries/s (Little's law), and what issuing costs shows as issue delay.
    """
    in_time = np.concatenate([np.full(concurrency, start_ns, np.int64), np.sort(completed_ns)])
    freed: Array = in_time[np.minimum(order, len(in_time) - 1)]
    return freed
