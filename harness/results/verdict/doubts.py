"""Derives doubts about a run's length, its load generator and the machine. Has no side effects.

A doubt is a reason to check the numbers before use, even in a VALID run.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from harness.core.clock import SLEW_PPM
from harness.core.codes import Reason
from harness.core.number_types import BITS
from harness.core.stats import percentile_ns, queries_needed
from harness.core.units import NS_PER_S, NS_PER_US, show_ns, show_percent
from harness.loadgen.plan import Loaded, LoadPlan
from harness.loadgen.scenario import percentile_key, scenario_named
from harness.results.evidence.evidence import Evidence
from harness.results.evidence.stages import PERCENTILES, Completions
from harness.results.schema.performance import Steady, SteadyChange
from harness.results.steady.referee import CHANGED
from harness.results.steady.shown import NOT_STEADY, change_text

NOISE_SHARE = 0.10
"""The run gets a doubt if the noise floor exceeds this share of the SLO's bound, because the noise then determines the
tail.
"""

OTHERS_SHARE = 0.10
"""If other processes use more than this share of all cores during the run, the run gets a doubt."""

STEAL_SHARE = 0.02
_HARMLESS_WARNING = "Logging allocation detected"
"""Start of LoadGen's warning that its log buffer grew, which does not affect the run."""

AGREE_SHARE = 0.01
AGREE_NS = 20 * NS_PER_US
"""The journal's percentiles may differ from LoadGen's by AGREE_NS or by AGREE_SHARE of the percentile, whichever is
larger.
"""

STALL_NS = NS_PER_S
STALL_BATCHES = 20
"""The run gets a doubt if a gap without completions exceeds both STALL_NS and STALL_BATCHES times the slowest batch.
Such a gap is too long to come from a slow batch or the operating system's scheduler.
"""

SHORT_NS = NS_PER_S

LASTING_SHARE = 0.05
"""The last quarter's level counts as changed if it differs from the run's mean by at least this share."""

SETTLED_S = 5.0
MOVED_FACTOR = 2.0
MOVED_S = 0.5
"""Limits on changes in a run shorter than SETTLED_S. In such a run, a change other than a ramp causes a doubt only if
the level stays changed by MOVED_FACTOR for the last MOVED_S or longer. On an idle machine, a process that moves to
another core causes a smaller change, and a stall causes a shorter one.
"""

WARMING_SHARE = 0.05
"""The run gets a doubt if a slow start adds more than this share to the mean time."""

FEWEST_HELD = 64
LARGE_BYTES = 64 << 20
"""Samples that together take up this much memory do not fit into any processor's caches."""


def performance(
    run: Evidence, ours: Mapping[str, int] | None, bound_ns: int | None
) -> Iterator[Reason]:
    """Yields doubts about the performance run. ours: percentiles from the journal. bound_ns: the SLO's bound."""
    if abs(run.clock.slew_ppm) > SLEW_PPM:
        yield Reason(
            "clock-slewed",
            f"the wall clock was slewed by {run.clock.slew_ppm:.0f} ppm (limit {SLEW_PPM}): "
            "wait until time synchronisation has settled",
        )
    if run.ended is not None and run.ended["close_error"]:
        yield Reason(
            "close-raised", f"the backend raised an exception in close: {run.ended['close_error']}"
        )
    if ours is not None and run.logged:
        yield from _disagreement(run, ours)
    warnings = [w for w in run.log.warnings if _HARMLESS_WARNING not in w]
    if warnings:
        yield Reason("loadgen-warnings", f"LoadGen warns: {warnings[0]}")
    scheduled = scenario_named(run.plan.scenario).scheduled
    if scheduled and bound_ns and run.done:
        delay = run.done.columns["entry_ns"] - run.done.columns["scheduled_ns"]
        late_ns = percentile_ns(np.sort(delay), 0.99)
        if late_ns > NOISE_SHARE * bound_ns:
            yield Reason(
                "generator-late",
                f"{run.log.source} issued 1 % of the queries more than {show_ns(late_ns)} after their "
                f"scheduled time, which is more than 10 % of the SLO ({show_ns(bound_ns)}): part of the tail comes from the load generator"
                + _no_short_slice(run),
            )


def _no_short_slice(run: Evidence) -> str:
    reason = ((run.ended or {}).get("slice") or {}).get("reason")
    return f"; its thread has no short time slice ({reason})" if reason else ""


def _disagreement(run: Evidence, ours: Mapping[str, int]) -> Iterator[Reason]:
    scenario = scenario_named(run.plan.scenario)
    for name in ("p50", "p99"):
        theirs = run.log.get(percentile_key(scenario, PERCENTILES[name]))
        if theirs is None:
            continue
        gap = abs(ours[name] - theirs)
        if gap > max(AGREE_SHARE * theirs, AGREE_NS):
            yield Reason(
                "percentiles-disagree",
                f"{name} is {show_ns(theirs)} by LoadGen and {show_ns(ours[name])} by the journal: "
                "the machine was busy between the two time stamps",
            )


def machine(
    noise_p99_ns: int, load: Mapping[str, float | None], bound_ns: int | None
) -> Iterator[Reason]:
    """Yields doubts about the machine. load: steal and other load during the performance run, as shares."""
    if bound_ns is not None and noise_p99_ns > NOISE_SHARE * bound_ns:
        yield Reason(
            "noisy-machine",
            f"timed sleeps before the run overran by {show_ns(noise_p99_ns)} (p99), which is above "
            f"10 % of the SLO ({show_ns(bound_ns)}): the machine determines the tail",
        )
    steal, others = load.get("steal"), load.get("others")
    if steal is not None and steal > STEAL_SHARE:
        yield Reason(
            "steal", f"{show_percent(steal, 1)} of the CPU time went to other guests of this host"
        )
    throttled_s = load.get("throttled_s")
    if throttled_s:
        yield Reason(
            "throttled",
            f"the container's CPU quota held the run back for {throttled_s:.2f} s: raise the quota "
            "or use fewer --instances and --threads",
        )
    if others is not None and others > OTHERS_SHARE:
        yield Reason(
            "busy-machine",
            f"other processes used {show_percent(others)} of the cores during the run",
        )


def pinning(
    backend: str, pinned: Sequence[Sequence[int]], placed: Sequence[tuple[int | None, int | None]]
) -> Iterator[Reason]:
    """Yields a doubt if the user set --pin but a computing thread may run on other processors.

    placed: for each instance, the number of threads that computed, and how many of them may run on other processors.
    """
    for instance, (cpus, (threads, outside)) in enumerate(zip(pinned, placed, strict=True)):
        where = ", ".join(map(str, cpus))
        if threads is None:
            yield Reason("not-pinned", "--pin: this kernel does not report which threads computed")
            return
        if outside:
            yield Reason(
                "not-pinned",
                f"--pin: {outside} of {threads} threads that computed for instance {instance} may "
                f"leave its processors ({where}), because backend {backend!r} shares threads between "
                "instances: --backend-option processes=on gives each instance separate threads",
            )
            return


def stall(done: Completions, scenario: str, slowest_batch_ns: int) -> Iterator[Reason]:
    gap_ns = longest_gap_ns(done, scenario)
    if gap_ns > max(STALL_NS, STALL_BATCHES * slowest_batch_ns):
        yield Reason(
            "stalled",
            f"no sample was completed for {show_ns(gap_ns)} although some were waiting: the process "
            "was stopped or the model stalled",
        )


def longest_gap_ns(done: Completions, scenario: str) -> int:
    """Returns the longest time between two completions, or from the first query to the first completion.

    In Server, time without a due query does not count.
    """
    completed, kind = np.sort(done.columns["completed_ns"]), scenario_named(scenario)
    if not len(completed):
        return 0
    # In Offline, the time starts at the entry, because LoadGen first assembles its only query from many samples.
    begun = done.columns["entry_ns" if kind.all_at_once else "scheduled_ns"]
    since = np.concatenate([begun.min(keepdims=True), completed[:-1]])
    if kind.scheduled:
        # After i completions, either the (i + 1)-th sample in the schedule is due, or no sample is due.
        since = np.maximum(since, np.sort(done.columns["scheduled_ns"]))
    return int((completed - since).max())


def steadiness(steady: Steady | None) -> Iterator[Reason]:
    """Yields a doubt if the run changed significantly, and another if its slow start affects its numbers."""
    if steady is None:
        return
    change = steady["change"]
    if change is not None and _is_large(change, steady) and _is_lasting(steady):
        yield Reason("drift", change_text(change))
    added = steady["warm_up_change"]
    if steady["verdict"] == "steady" and added > WARMING_SHARE:
        yield Reason(
            "warming",
            f"the first {show_ns(steady['warm_up_s'] * NS_PER_S)} were a warm-up, which raises the mean time of the run "
            f"by {show_percent(added)}",
        )


def _is_large(change: SteadyChange, steady: Steady) -> bool:
    length_s = steady["warm_up_s"] + steady["judged_s"]
    if change["shape"] == "ramp" or length_s >= SETTLED_S:
        return abs(change["size"]) >= CHANGED
    returned = steady["series"][change["series"]]["end_change"] * change["size"] <= 0
    is_stall = change["shape"] != "step" or change["series"] == "tail" or returned
    stays = not is_stall and length_s - change["after_s"] >= MOVED_S
    return stays and not 1 / MOVED_FACTOR < 1 + change["size"] < MOVED_FACTOR


def _is_lasting(steady: Steady) -> bool:
    """Returns whether the end of the run differs from the run's mean. A change that does not last is harmless."""
    return any(
        one["verdict"] == NOT_STEADY and abs(one["end_change"]) >= LASTING_SHARE
        for one in steady["series"].values()
    )


def few_held(plan: LoadPlan, loaded: Loaded | None) -> Iterator[Reason]:
    """Yields a doubt if the run held fewer than FEWEST_HELD samples in memory, all of them small, although the dataset
    contains more.
    """
    held = plan.performance_count
    if held >= min(FEWEST_HELD, plan.total_count) or held * sample_bytes(loaded) >= LARGE_BYTES:
        return
    each = plan.planned_samples / held
    yield Reason(
        "few-held",
        f"the run drew from {held} of the dataset's {plan.total_count:,} samples and answered each sample about "
        f"{each:,.0f} times, so the data stays in the processor's caches: hold {FEWEST_HELD} samples or more",
    )


def sample_bytes(loaded: Loaded | None) -> int:
    """Returns the size of one sample's inputs in bytes. A variable dimension counts as 1."""
    return sum(
        math.prod(size for size in spec.shape[1:] if isinstance(size, int))
        * BITS.get(spec.dtype, 8)
        // 8
        for spec in (loaded.inputs if loaded is not None else ())
    )


def few_samples(run: Evidence, percentile: float) -> Iterator[Reason]:
    """Yields a doubt if the percentile needs more queries than the run has, even if no query is late. In Offline,
    yields a doubt if the run is too short.
    """
    all_at_once = scenario_named(run.plan.scenario).all_at_once
    if all_at_once and run.logged:
        took_ns = run.log.get("result_max_latency_ns", 0)
        if took_ns < SHORT_NS:
            yield Reason(
                "short-run",
                f"all samples took {show_ns(took_ns)}: a rate measured in less than a second is "
                "mostly start and end",
            )
    count = run.log.get("result_query_count", 0) if run.logged else 0
    needed = queries_needed(0, percentile)
    if not all_at_once and 0 < count < needed:
        yield Reason(
            "few-samples",
            f"{count:,} queries are too few for p{percentile * 100:.10g}: {needed:,} are needed",
        )
