"""Simulates the reference dispatcher at the speed that the model had during the run. Has no side effects."""

from bisect import bisect_left
from functools import cache
from typing import NamedTuple, Self

import numpy as np

from harness.core.queueing import dispatched, rule_of
from harness.core.service_times import ServiceTimes
from harness.loadgen.plan import InstanceGroup
from harness.results.evidence.stages import Completions
from harness.types import Array


class BatchesInRun(NamedTuple):
    begins_ns: Array
    """(batches,) start of each call to the model, ascending."""
    slower: Array
    """(batches,) float64: duration of each call, divided by the bare loops' mean for batches of the same size."""
    ratio: float
    """Total duration of all calls, divided by the sum of the bare loops' means for batches of the same sizes."""

    @classmethod
    def of(
        cls, done: Completions, service: ServiceTimes, instances: int, wide: ServiceTimes | None
    ) -> Self:
        """Reads the batches from the journal.

        instances: number of instances, not counting the wide instance, which has the next worker number. wide: the wide
        instance's service times; None without a wide instance.
        """
        batch = done.columns["batch"]
        first = np.flatnonzero(np.diff(batch, prepend=batch[:1] - 1))
        first = first[np.argsort(done.columns["gathered_ns"][first], kind="stable")]
        begins_ns, ends_ns, sizes = (
            done.columns[name][first] for name in ("gathered_ns", "inferred_ns", "batch_size")
        )
        different, which = np.unique(sizes, return_inverse=True)
        bare_ns = np.array([max(service.of(int(n)).mean(), 1.0) for n in different])[which]
        if wide is not None:
            is_wide = done.columns["worker"][first] == instances
            bare_ns = np.where(is_wide, max(wide.of(1).mean(), 1.0), bare_ns)
        took_ns = ends_ns - begins_ns
        return cls(begins_ns, took_ns / bare_ns, float(took_ns.sum() / bare_ns.sum()))


def at_run_speed(
    scheduled_ns: Array,
    run: BatchesInRun,
    service: ServiceTimes,
    spec: InstanceGroup,
    wait_ns: int,
    wide: ServiceTimes | None = None,
) -> Array:
    """Returns the reference dispatcher's (queries,) latencies in ns if the model is as fast as it was during the run.

    Bare loops before and after a run cannot show that the machine was slower for one second during the run. Near
    capacity, that one second determines the tail of any dispatcher. A simulated batch therefore takes the bare loops'
    time for its size, multiplied by the slowdown of the next batch in the run.
    """
    begins_ns: list[int] = run.begins_ns.tolist()
    slower: list[float] = run.slower.tolist()

    @cache
    def usual_ns(size: int) -> float:
        return float(service.of(size).mean())

    def slowed(ns: float, start_ns: int) -> int:
        return round(ns * slower[min(bisect_left(begins_ns, start_ns), len(slower) - 1)])

    alone_ns = float(wide.of(1).mean()) if wide is not None else None
    rule = None if wait_ns else rule_of(service, spec.instances, spec.max_batch)
    simulated = dispatched(
        scheduled_ns,
        spec.instances,
        spec.max_batch,
        wait_ns,
        rule,
        lambda size, _, start_ns: slowed(usual_ns(size), start_ns),
        (lambda _, start_ns: slowed(alone_ns, start_ns)) if alone_ns is not None else None,
    )
    return simulated.queue_ns + simulated.infer_ns
