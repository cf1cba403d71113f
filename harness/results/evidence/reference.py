"""The reference dispatcher: how the same queries would have fared without any cost but the model's.

Server: a queue first in, first out; whoever of the instances is free takes what waits, up to the
largest batch, at once. Simulated over LoadGen's recomputed schedule with service times of bare loops
(harness/run/measured/service_times.py), so that what a run lost to its load generator shows apart from what any
dispatcher would lose to queueing. Pure: a run's files in, numbers out.
"""

import heapq
from bisect import bisect_left
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from harness.core.service_times import QUANTILES, VERSION, ServiceTimes, together
from harness.core.stats import percentile_ns
from harness.core.units import show_ns, show_percent, show_rate
from harness.loadgen.plan import Instances, LoadPlan
from harness.loadgen.scenario import scenario_named
from harness.results.evidence.stages import STAGE_EDGES, STAGES, Completions
from harness.types import Array

LIMIT_QUERIES = 50_000
"""The first so many of a run are simulated: a tenth of a second or two of Python."""

_SEED = 1
DRIFT = 0.10
"""Bare loops before and after the run that differ by more say that the machine has changed."""

TIGHT = 1.15
"""A run within this of the reference was not held back by its load generator."""


class Simulated(NamedTuple):
    """queue_ns, infer_ns: (queries,) int64, of each query."""

    queue_ns: Array
    infer_ns: Array


def simulate(
    scheduled_ns: Array, service: ServiceTimes, instances: int, max_batch: int, wait_ns: int = 0
) -> Simulated:
    """scheduled_ns: (queries,) ascending. wait_ns: how long a query may wait for others to fill its
    batch, although an instance is free. Service times are drawn with a fixed seed.
    """
    draws = np.random.default_rng(_SEED).integers(0, QUANTILES, len(scheduled_ns)).tolist()

    @cache  # of the sizes that occur: all of a large --max-batch's would fill the memory
    def times_ns(size: int) -> list[int]:
        times: list[int] = service.of(size).astype(np.int64).tolist()
        return times

    return _dispatched(
        *(scheduled_ns, instances, max_batch, wait_ns),
        lambda size, first, _: times_ns(size)[draws[first]],
    )


def _dispatched(
    scheduled_ns: Array,
    instances: int,
    max_batch: int,
    wait_ns: int,
    took_ns: Callable[[int, int, int], int],
) -> Simulated:
    """As `simulate`. took_ns: of a batch of so many, by its first query and when it starts."""
    arrivals: list[int] = scheduled_ns.tolist()
    free = [arrivals[0]] * instances if arrivals else []
    started: list[int] = []
    sizes: list[int] = []
    took: list[int] = []
    first, count = 0, len(arrivals)
    while first < count:
        end = min(first + max_batch, count)
        until = arrivals[first] + wait_ns
        if end - first == max_batch:
            until = min(until, arrivals[end - 1])  # full before that
        start = max(free[0], until)
        last = first + 1
        while last < end and arrivals[last] <= start:
            last += 1
        took.append(took_ns(last - first, first, start))
        heapq.heapreplace(free, start + took[-1])
        started.append(start)
        sizes.append(last - first)
        first = last
    batch_of = np.repeat(np.arange(len(sizes)), sizes)
    queue_ns = np.asarray(started, np.int64)[batch_of] - scheduled_ns
    return Simulated(queue_ns, np.asarray(took, np.int64)[batch_of])


class _InRun(NamedTuple):
    """The batches of a run. begins_ns: (batches,) ascending, when the model was called.

    slower: (batches,) float64, how long it took over the bare loops' mean for that size.
    ratio: the same of all batches together.
    """

    begins_ns: Array
    slower: Array
    ratio: float

    @classmethod
    def of(cls, done: Completions, service: ServiceTimes) -> "_InRun":
        batch = done.columns["batch"]
        first = np.flatnonzero(np.diff(batch, prepend=batch[:1] - 1))
        first = first[np.argsort(done.columns["gathered_ns"][first], kind="stable")]
        begins_ns, ends_ns, sizes = (
            done.columns[name][first] for name in ("gathered_ns", "inferred_ns", "batch_size")
        )
        different, which = np.unique(sizes, return_inverse=True)
        bare_ns = np.array([max(service.of(int(n)).mean(), 1.0) for n in different])[which]
        took_ns = ends_ns - begins_ns
        return cls(begins_ns, took_ns / bare_ns, float(took_ns.sum() / bare_ns.sum()))


def _at_run_speed(
    scheduled_ns: Array, run: _InRun, service: ServiceTimes, spec: Instances, wait_ns: int
) -> Array:
    """(queries,) ns: the same dispatcher with a model that is as fast as it was in the run just then.

    Bare loops before and after a run know nothing of a machine that is slower for a second in its
    middle, and near capacity that second makes the tail of any dispatcher. So here a batch takes what
    bare loops say of its size, times how much slower than that the run's next batch was.
    """
    begins_ns: list[int] = run.begins_ns.tolist()
    slower: list[float] = run.slower.tolist()

    @cache
    def usual_ns(size: int) -> float:
        return float(service.of(size).mean())

    def took_ns(size: int, _: int, start_ns: int) -> int:
        batch = min(bisect_left(begins_ns, start_ns), len(slower) - 1)
        return round(usual_ns(size) * slower[batch])

    found = _dispatched(scheduled_ns, spec.instances, spec.max_batch, wait_ns, took_ns)
    return found.queue_ns + found.infer_ns


def report(
    plan: LoadPlan,
    done: Completions,
    bare: Mapping[str, Any],
    spec: Instances,
    ceiling_per_s: float | None = None,
    wait_ns: int = 0,
) -> dict[str, Any]:
    """bare: what the measured process sent, `before` and `after`, or the `reason` why there is none.

    ceiling_per_s: what this machine's null backend answered in this scenario, None if never tried.
    wait_ns: how long a sample of Server was allowed to wait for others.
    """
    if "reason" in bare:
        return {"reason": bare["reason"]}
    before, after = (ServiceTimes.from_json(bare[name]) for name in ("before", "after"))
    both = set(before.sizes) & set(after.sizes)  # sizes are left out where batches take long
    before, after = before.only(both), after.only(both)
    as_now = bare.get("version") == VERSION  # `check` derives an older run as it was
    service = together(before, after)
    run = _InRun.of(done, service)
    drifted = [before, after]
    scenario = scenario_named(plan.scenario)
    if scenario.all_at_once:  # what is left over is one batch of the run
        drifted = [part.only(part.sizes[-1:]) for part in drifted]
    found = {
        "service_ns": [
            {"batch": n, "before": before.median_ns(n), "after": after.median_ns(n)}
            for n in service.sizes
        ],
        "batches": sum(service.counts),
        "drift": _drift(*drifted),
        "model_ratio": run.ratio,
        "null_backend_per_s": ceiling_per_s,
    }
    if scenario.scheduled:
        found |= _server(plan, done, service, spec, run, wait_ns if as_now else 0)
    elif scenario.all_at_once:
        found |= _offline(done, service, spec, run, dealt_out=as_now)
    else:
        found |= _streams(plan, done, service, spec.max_batch, run)
    if not as_now:
        del found["model_ratio"], found["at_run_speed"]
    return found


def _drift(before: ServiceTimes, after: ServiceTimes) -> float:
    """Of the medians, the median over the sizes: 0.1 means a tenth slower after the run."""
    return float(np.median(np.median(after.ns, axis=1) / np.median(before.ns, axis=1))) - 1.0


def _server(
    plan: LoadPlan,
    done: Completions,
    service: ServiceTimes,
    spec: Instances,
    run: _InRun,
    wait_ns: int,
) -> dict[str, Any]:
    percentile = plan.percentile or 0.99
    scheduled_ns = done.columns["scheduled_ns"][:LIMIT_QUERIES]
    ideal = simulate(scheduled_ns, service, spec.instances, spec.max_batch, wait_ns)
    ideal_ns = ideal.queue_ns + ideal.infer_ns
    ours_ns = done.latency_ns[:LIMIT_QUERIES]
    at_ideal = percentile_ns(np.sort(ideal_ns), percentile)
    at_ours = percentile_ns(np.sort(ours_ns), percentile)
    alike_ns = _at_run_speed(scheduled_ns, run, service, spec, wait_ns)
    as_slow = percentile_ns(np.sort(alike_ns), percentile)
    return {
        "what": f"p{percentile * 100:.10g}",
        "unit": "ns",
        "reference": at_ideal,
        "ours": at_ours,
        "ratio": at_ours / at_ideal,
        "at_run_speed": {"reference": as_slow, "ratio": at_ours / as_slow},
        "queries": len(scheduled_ns),
        "of_queries": len(done),
        "lost_ns": _lost_ns(done, ours_ns, ideal, ideal_ns, percentile),
    }


def _lost_ns(
    done: Completions, ours_ns: Array, ideal: Simulated, ideal_ns: Array, percentile: float
) -> dict[str, float]:
    """stage -> mean ns by which it is longer here, over the slowest queries of each side.

    The stages of one query sum to its latency, so these sum to the difference of the tails' means.
    """
    count = max(1, round(len(ours_ns) * (1 - percentile)))
    ours_slowest = np.argpartition(ours_ns, -count)[-count:]
    ideal_slowest = np.argpartition(ideal_ns, -count)[-count:]
    lost = {}
    for stage in STAGES:
        begin, end = STAGE_EDGES[stage]
        lost[stage] = float((done.columns[end] - done.columns[begin])[ours_slowest].mean())
    lost["queue"] -= float(ideal.queue_ns[ideal_slowest].mean())
    lost["infer"] -= float(ideal.infer_ns[ideal_slowest].mean())
    return lost


def _offline(
    done: Completions, service: ServiceTimes, spec: Instances, run: _InRun, *, dealt_out: bool
) -> dict[str, Any]:
    """dealt_out: in batches, as the run's work; without, it divides as it likes."""
    took_ns = int(done.columns["completed_ns"].max() - done.columns["scheduled_ns"].min())
    ours = len(done) * 1e9 / took_ns
    size = min(spec.max_batch, len(done))
    bare = spec.instances * size * 1e9 / float(service.of(size).mean())
    if dealt_out:
        bare = len(done) * 1e9 / _bare_ns(len(done), service, spec)
    return {
        "what": "samples/s",
        "unit": "samples/s",
        "reference": bare,
        "ours": ours,
        "ratio": ours / bare,
        "at_run_speed": {"reference": bare / run.ratio, "ratio": ours / bare * run.ratio},
    }


def _bare_ns(samples: int, service: ServiceTimes, spec: Instances) -> float:
    """Bare batches dealt out as the run's are: the largest, then what is left over as one more."""
    largest, rest = divmod(samples, spec.max_batch)
    rounds, more = divmod(largest, spec.instances)
    largest_ns = float(service.of(spec.max_batch).mean())
    rest_ns = float(service.of(rest).mean()) if rest else 0.0
    return max((rounds + bool(more)) * largest_ns, rounds * largest_ns + rest_ns)


def _streams(
    plan: LoadPlan, done: Completions, service: ServiceTimes, max_batch: int, run: _InRun
) -> dict[str, Any]:
    """The bare loop over the batches of one query; medians, which a stall or two do not move."""
    samples = plan.samples_per_query
    sizes = [min(max_batch, samples - start) for start in range(0, samples, max_batch)]
    bare_ns = sum(service.median_ns(size) for size in sizes)
    latency_ns = done.latency_ns
    whole = len(latency_ns) // samples * samples
    ours_ns = percentile_ns(np.sort(latency_ns[:whole].reshape(-1, samples).max(axis=1)), 0.5)
    last = slice(
        samples - 1, whole, samples
    )  # its latency is the query's; the others are its queue
    lost = {
        stage: float(np.median((done.columns[end] - done.columns[begin])[last]))
        for stage, (begin, end) in STAGE_EDGES.items()
    }
    lost["infer"] -= service.median_ns(sizes[-1])
    lost["queue"] -= sum(service.median_ns(size) for size in sizes[:-1])
    as_slow_ns = bare_ns * float(np.median(run.slower))
    return {
        "what": "p50",
        "unit": "ns",
        "reference": bare_ns,
        "ours": ours_ns,
        "ratio": ours_ns / bare_ns,
        "at_run_speed": {"reference": as_slow_ns, "ratio": ours_ns / as_slow_ns},
        "lost_ns": lost,
    }


def line(found: Mapping[str, Any], rate_per_s: float | None) -> str:
    """Was the load generator the bottleneck? One line for the table. found: of `report`."""
    if "reason" in found:
        return f"no reference: {found['reason']}"
    show = show_ns if found["unit"] == "ns" else _show_rate
    ratio = found["ratio"]
    some = found.get("queries", 0) < found.get("of_queries", 0)
    of = f" of the first {found['queries']:,} queries" if some else ""
    times = f"{ratio:,.0f}" if ratio >= 1000 else f"{ratio:.3g}"
    told = (
        f"{found['what']}{of} {show(found['ours'])}, {times} x the reference's "
        f"{show(found['reference'])}"
    )
    worse = ratio if found["unit"] == "ns" else 1 / ratio
    if abs(found["drift"]) > DRIFT:
        more = "longer" if found["drift"] > 0 else "less"
        drift = show_percent(abs(found["drift"]))
        judged = f"not decidable: the model itself took {drift} {more} after the run"
    elif worse < 1 / TIGHT:
        judged = "not decidable: the bare loops were slower than the run itself"
    elif worse <= TIGHT:
        judged = "the load generator was not the bottleneck"
    elif (alike := _at_run_speed_worse(found)) is not None and alike <= TIGHT:
        judged = (
            "not decidable: with a model as slow as it was in the run the reference's is "
            f"{show(found['at_run_speed']['reference'])}, and this {alike:.3g} x that"
        )
    else:
        judged = "the load generator held it back" + _where(found.get("lost_ns"))
    head = ""
    ceiling_per_s = found["null_backend_per_s"]
    if ceiling_per_s and rate_per_s:
        head = (
            f"; null backend here {_show_rate(ceiling_per_s)}, {ceiling_per_s / rate_per_s:.0f} x"
        )
    return f"{told}: {judged}{head}"


def _at_run_speed_worse(found: Mapping[str, Any]) -> float | None:
    """How many times worse than `at_run_speed`; None in a result folder of an earlier version."""
    if "at_run_speed" not in found:
        return None
    ratio = float(found["at_run_speed"]["ratio"])
    return ratio if found["unit"] == "ns" else 1 / ratio


def _where(lost_ns: Mapping[str, float] | None) -> str:
    if not lost_ns:
        return ""
    most = sorted(lost_ns, key=lost_ns.__getitem__, reverse=True)[:2]
    told = [f"{show_ns(lost_ns[name])} in {name}" for name in most if lost_ns[name] > 0]
    return f", {', '.join(told)} more" if told else ""


def _show_rate(per_s: float) -> str:
    return f"{show_rate(per_s)}/s"
