"""Passes a run's samples to two judges of the steady state: the referee, and the MLPerf Endpoints rule."""

import math
from typing import NamedTuple

import numpy as np

from harness.loadgen.plan import LoadPlan
from harness.loadgen.scenario import scenario_named
from harness.results.evidence.stages import Completions, query_completed_ns, query_latency_ns
from harness.results.steady import official
from harness.results.steady.official import Official, Samples
from harness.results.steady.referee import Refereed, referee
from harness.results.steady.series import Stream
from harness.types import Array

LOAD_CHANGE = 0.10
"""If the rate of replayed arrivals changes by more than this share from the first third of the run to the last, the run
gets no verdict on its steady state, because latency changes with the rate.
"""

_MOST_PASSES = 200
"""The official rule gets at most this many passes, because the rule compares every pair of passes in each window."""


class SteadyState(NamedTuple):
    """Both judges' verdicts on a run."""

    run: Refereed
    official: Official | None
    """Verdict by the official rule; None for a run without token times."""


def steady_state(done: Completions, plan: LoadPlan) -> SteadyState | None:
    """Returns the verdicts; None if there are too few samples, or if the rate of replayed arrivals changed."""
    if plan.schedule is not None and _load_changed(done):
        return None
    found = referee(stream_of(done, plan))
    return SteadyState(found, _official(done, plan)) if found is not None else None


def stream_of(done: Completions, plan: LoadPlan) -> Stream:
    """Returns the run's batches if it issues all samples at once; otherwise its queries of one or more samples."""
    columns, scenario = done.columns, scenario_named(plan.scenario)
    if scenario.all_at_once:
        return _batches(done)
    issued_ns, is_ok = columns["scheduled_ns"], columns["failed"] == 0
    each = plan.samples_per_query
    if each > 1:
        latency_ns = query_latency_ns(done, each)
        count = len(latency_ns)
        done_ns = query_completed_ns(done, each)
        ok = is_ok[: count * each].reshape(-1, each).all(axis=1)
        return Stream(done_ns - latency_ns, latency_ns, np.arange(count), ok)
    first_ns, token_ns = _token_times(done)
    return Stream(
        issued_ns=issued_ns,
        latency_ns=done.latency_ns,
        sample=columns["index"],
        is_ok=is_ok,
        ttft_ns=first_ns,
        tpot_ns=token_ns,
        is_paced=scenario.scheduled and plan.concurrency is None,
    )


def _batches(done: Completions) -> Stream:
    """Returns one row per batch, in the order of the answers. A row's time is the time per sample, because the latency
    grows with the queue.
    """
    columns = done.columns
    _, first = np.unique(columns["batch"], return_index=True)
    first = first[np.argsort(columns["completed_ns"][first], kind="stable")]
    size = done.batch_size[first]
    spent_ns = columns["completed_ns"][first] - columns["taken_ns"][first]
    return Stream(
        issued_ns=columns["taken_ns"][first],
        latency_ns=spent_ns // size,
        sample=np.arange(len(first)),
        is_ok=columns["failed"][first] == 0,
        done_ns=columns["completed_ns"][first],
        work=size,
    )


def _token_times(done: Completions) -> tuple[Array | None, Array | None]:
    """Returns the (n,) TTFT and the (n,) TPOT in ns, or NaN for samples without them; None if every sample lacks them."""
    columns = done.columns
    if "first_token_ns" not in columns:
        return None, None
    first_ns, tokens = columns["first_token_ns"], columns["tokens"]
    ttft_ns = np.where(first_ns > 0, first_ns - columns["scheduled_ns"], math.nan)
    several = (first_ns > 0) & (tokens > 1)
    since_ns = columns["completed_ns"] - first_ns
    return ttft_ns, np.where(several, since_ns / np.maximum(tokens - 1, 1), math.nan)


def _official(done: Completions, plan: LoadPlan) -> Official | None:
    """Returns the verdict by the official rule. In a pass, each sample in the run's pool is used once."""
    ttft_ns, tpot_ns = _token_times(done)
    if ttft_ns is None or tpot_ns is None or len(done) > _MOST_PASSES * plan.performance_count:
        return None
    columns = done.columns
    ok = columns["failed"] == 0
    samples = Samples(
        issued_ns=columns["entry_ns"],
        ttft_ns=np.where(ok, ttft_ns, math.nan),
        tpot_ns=np.where(ok, tpot_ns, math.nan),
        latency_ns=np.where(ok, done.latency_ns, math.nan),
        tokens=np.where(ok, np.maximum(columns["tokens"] - 1, 0), 0),
    )
    return official.judge(samples, plan.performance_count)


def _load_changed(done: Completions) -> bool:
    """Returns whether the arrival rate of a replayed schedule changed."""
    due_ns = done.columns["scheduled_ns"]
    third = len(due_ns) // 3
    if not third:
        return False
    first_ns, last_ns = int(due_ns[third] - due_ns[0]), int(due_ns[-1] - due_ns[-1 - third])
    return abs(last_ns - first_ns) > LOAD_CHANGE * max(first_ns, last_ns)
