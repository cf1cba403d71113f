"""Compares a run with the reference dispatcher, whose only cost is the model. Has no side effects.

The reference answers the same queries with the service times of bare loops, which call only the model
(harness/run/measured/service_times.py). The difference is the cost of the load generator. Both sides include the
queueing that no dispatcher can avoid.
"""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from harness.core.queueing import Simulated, simulate
from harness.core.service_times import ServiceTimes, together
from harness.core.stats import percentile_ns
from harness.loadgen.plan import InstanceGroup, LoadPlan
from harness.loadgen.scenario import scenario_named
from harness.results.evidence.simulation import BatchesInRun, at_run_speed
from harness.results.evidence.stages import Completions
from harness.results.schema.performance import NoReference, Reference
from harness.types import Array

LIMIT_QUERIES = 50_000
"""The simulation covers at most this many queries from the start of the run. A simulation of this many queries takes
0.1 to 0.2 s.
"""

DRIFT = 0.10
"""If the bare loops before and after the run differ by more than this share, the machine has changed, and the run is
also compared with the slower loops.
"""

IDLE = 2
"""Factor that decides whether cores are idle. The plan leaves cores idle if the cores could hold this many times the
plan's instances. One spare core for LoadGen's thread does not count as idle.
"""


def report(
    plan: LoadPlan,
    done: Completions,
    bare: Mapping[str, Any],
    spec: InstanceGroup,
    wait_ns: int = 0,
) -> Reference | NoReference:
    """Compares the run with the reference. bare: bare loops in the measured process, as `before` and `after`, or the
    `reason` why they are missing.

    wait_ns: longest time that a sample may wait for others in Server.
    """
    if "reason" in bare:
        return {"reason": bare["reason"]}
    before, after = (ServiceTimes.from_json(bare[name]) for name in ("before", "after"))
    # a slow model leaves too little time to measure some sizes
    both = set(before.sizes) & set(after.sizes)
    before, after = before.only(both), after.only(both)
    service = together(before, after)
    run = BatchesInRun.of(done, service, spec.instances, _wide_of(bare))
    scenario = scenario_named(plan.scenario)
    # Offline compares only the last size; the other scenarios compare batches of every size.
    sizes = service.sizes[-1:] if scenario.all_at_once else service.sizes
    medians = [np.median(part.only(sizes).ns, axis=1) for part in (before, after)]
    drift = float(np.median(medians[1] / medians[0])) - 1.0
    section: dict[str, Any] = {
        "service_ns": [
            {"batch": n, "before": before.median_ns(n), "after": after.median_ns(n)}
            for n in service.sizes
        ],
        "batches": sum(service.counts),
        "drift": drift,
        "model_ratio": run.ratio,
        "null_backend_per_s": None,  # the caller fills this in from a null-backend run
    }

    def compared(service: ServiceTimes, *sides: str, spec: InstanceGroup = spec) -> dict[str, Any]:
        if scenario.scheduled:
            return _server(plan, done, service, spec, run, wait_ns, _wide_of(bare, *sides))
        if scenario.all_at_once:
            return _offline(done, service, spec, run)
        return _streams(plan, done, service, spec.max_batch, run)

    section |= compared(service)
    instances = int(spec.cores // max(spec.threads, 1))
    if not scenario.streams and instances >= IDLE * spec.instances:
        more = spec._replace(instances=instances)
        section["on_all_cores"] = {
            "instances": instances,
            "reference": compared(service, spec=more)["reference"],
        }
    if abs(drift) > DRIFT:
        slower = compared(after, "after") if drift > 0 else compared(before, "before")
        section["at_slower_loops"] = {key: slower[key] for key in ("reference", "ratio")}
    return cast("Reference", section)


def _wide_of(bare: Mapping[str, Any], *sides: str) -> ServiceTimes | None:
    """Returns the wide instance's service times;
    None without a wide instance. sides: which loops to use; default: both.
    """
    if "wide" not in bare:
        return None
    names = sides or ("before", "after")
    return together(*(ServiceTimes.from_json(bare["wide"][name]) for name in names))


def _server(
    plan: LoadPlan,
    done: Completions,
    service: ServiceTimes,
    spec: InstanceGroup,
    run: BatchesInRun,
    wait_ns: int,
    wide: ServiceTimes | None,
) -> dict[str, Any]:
    percentile = plan.percentile or 0.99
    scheduled_ns = done.columns["scheduled_ns"][:LIMIT_QUERIES]
    ideal = simulate(scheduled_ns, service, spec.instances, spec.max_batch, wait_ns, wide)
    ideal_ns = ideal.queue_ns + ideal.infer_ns
    ours_ns = done.latency_ns[:LIMIT_QUERIES]
    alike_ns = at_run_speed(scheduled_ns, run, service, spec, wait_ns, wide)
    numbers = [percentile_ns(np.sort(ns), percentile) for ns in (ours_ns, ideal_ns, alike_ns)]
    return {
        **_compared(f"p{percentile * 100:.10g}", "ns", *numbers),
        "queries": len(scheduled_ns),
        "of_queries": len(done),
        "lost_ns": _lost_ns(done, ours_ns, ideal, ideal_ns, percentile),
    }


def _compared(
    what: str, unit: str, ours: float, reference: float, at_run_speed: float
) -> dict[str, Any]:
    """Returns the compared numbers and their ratios. at_run_speed: the reference's number at the speed that the model
    had during the run.
    """
    # Avoids a division by 0, because a forged journal may contain 0.
    as_slow = max(at_run_speed, 1e-9)
    return {
        "what": what,
        "unit": unit,
        "reference": reference,
        "ours": ours,
        "ratio": ours / reference,
        "at_run_speed": {"reference": at_run_speed, "ratio": ours / as_slow},
    }


def _lost_ns(
    done: Completions, ours_ns: Array, ideal: Simulated, ideal_ns: Array, percentile: float
) -> dict[str, float]:
    """Returns the mean extra time of each stage in the run, in ns, over the slowest queries on each side.

    The stages of a query add up to its latency, so the returned values add up to the difference between the means of
    the tails.
    """
    count = max(1, round(len(ours_ns) * (1 - percentile)))
    ours_slowest = np.argpartition(ours_ns, -count)[-count:]
    ideal_slowest = np.argpartition(ideal_ns, -count)[-count:]
    lost = {}
    for stage in done.edges:
        lost[stage] = float(done.spent_ns(stage)[ours_slowest].mean())
    lost["queue"] -= float(ideal.queue_ns[ideal_slowest].mean())
    lost["infer"] -= float(ideal.infer_ns[ideal_slowest].mean())
    return lost


def _offline(
    done: Completions, service: ServiceTimes, spec: InstanceGroup, run: BatchesInRun
) -> dict[str, Any]:
    took_ns = int(done.columns["completed_ns"].max() - done.columns["scheduled_ns"].min())
    ours = len(done) * 1e9 / took_ns
    bare = len(done) * 1e9 / _bare_ns(len(done), service, spec)
    return _compared("samples/s", "samples/s", ours, bare, bare / run.ratio)


def _bare_ns(samples: int, service: ServiceTimes, spec: InstanceGroup) -> float:
    """Returns the time that bare batches would take for the same samples: batches of the largest size first, then one
    batch for the remaining samples.
    """
    largest, rest = divmod(samples, spec.max_batch)
    rounds, more = divmod(largest, spec.instances)
    largest_ns = float(service.of(spec.max_batch).mean())
    rest_ns = float(service.of(rest).mean()) if rest else 0.0
    return max((rounds + bool(more)) * largest_ns, rounds * largest_ns + rest_ns)


def _streams(
    plan: LoadPlan, done: Completions, service: ServiceTimes, max_batch: int, run: BatchesInRun
) -> dict[str, Any]:
    """Compares the run with a bare loop over one query's batches. Uses medians, because a single stall does not affect
    them.
    """
    samples = plan.samples_per_query
    sizes = [min(max_batch, samples - start) for start in range(0, samples, max_batch)]
    bare_ns = sum(service.median_ns(size) for size in sizes)
    latency_ns = done.latency_ns
    whole = len(latency_ns) // samples * samples
    ours_ns = percentile_ns(np.sort(latency_ns[:whole].reshape(-1, samples).max(axis=1)), 0.5)
    # Only the last sample of each query counts, because the last sample's latency is the query's latency.
    last = slice(samples - 1, whole, samples)
    lost = {stage: float(np.median(done.spent_ns(stage)[last])) for stage in done.edges}
    lost["infer"] -= service.median_ns(sizes[-1])
    lost["queue"] -= sum(service.median_ns(size) for size in sizes[:-1])
    as_slow_ns = bare_ns * float(np.median(run.slower))
    return {**_compared("p50", "ns", ours_ns, bare_ns, as_slow_ns), "lost_ns": lost}
