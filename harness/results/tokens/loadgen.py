"""Reads LoadGen's token measurements from its detail log, and compares them with the journal. Has no side effects."""

from collections.abc import Iterator
from itertools import pairwise
from typing import cast

import numpy as np

from harness.core.stats import percentile_ns
from harness.core.units import NS_PER_MS, NS_PER_S, NS_PER_US, show_ns, show_percent, show_rate
from harness.loadgen.logs import DetailLog
from harness.loadgen.plan import LoadPlan
from harness.loadgen.scenario import percent_text, scenario_named
from harness.results.evidence.stages import PERCENTILES, Completions
from harness.results.schema.client import LoadGenTokens, TokenBounds, TokenTimes
from harness.types import Array

APART_SHARE = 0.01
APART_NS = 20 * NS_PER_US
"""Limits on differences between LoadGen's token times and the journal's. The journal records a first token before
LoadGen does. LoadGen's TTFT must therefore be at least as large as the journal's, and LoadGen's TPOT at most as large.
The larger of these two limits is tolerated, and PREEMPTED_SHARE of the answers may exceed it.
"""
PREEMPTED_SHARE = 0.02
"""Share of answers for which another thread or program may have run between the journal's timestamp of a completion and
LoadGen's timestamp right after it. A percentile may then move by this share of the ranks.
"""
LEAST_SLOWER = 5
"""A percentile is checked only if at least this many answers lie above it. Otherwise preempted answers alone may
determine the percentile.
"""
RATE_SHARE = 0.01
RATE_NS = 20 * NS_PER_MS
"""The journal's rate and LoadGen's may differ by at most RATE_SHARE plus RATE_NS / the run's length. On a busy machine,
LoadGen or the journal may record the last completion up to RATE_NS earlier than the other.
"""

_PERCENTILES = {name: PERCENTILES[name] for name in ("p50", "p90", "p99")}
_TTFT = {
    name: f"result_first_token_{percent_text(share)}_percentile_latency_ns"
    for name, share in _PERCENTILES.items()
}
_TPOT = {
    name: f"result_time_per_output_token_{percent_text(share)}_percentile_ns"
    for name, share in _PERCENTILES.items()
}
_RATE = "result_completed_tokens_per_second"
_BOUNDS = ("requested_server_ttft_latency", "requested_server_tpot_latency")


def told(
    log: DetailLog, plan: LoadPlan, one_token_answers: int, failed: int
) -> LoadGenTokens | None:
    """Returns LoadGen's part of the section `tokens`; None if the harness did not report tokens to LoadGen."""
    if not plan.token_latencies or _TTFT["p50"] not in log.values:
        return None
    # LoadGen divides by the number of tokens minus one, even if the result is 0, so an answer with one token makes
    # LoadGen's TPOT and rate wrong.
    wrong = one_token_answers or failed
    return {
        "ttft_ns": _times(log, _TTFT),
        "tpot_ns": None if wrong else _times(log, _TPOT),
        "tokens_per_s": None if wrong else log.get(_RATE),
        "bounds": _bounds(log, plan),
    }


def _bounds(log: DetailLog, plan: LoadPlan) -> TokenBounds | None:
    """Returns the bounds in an official Server run. In the stream scenarios, LoadGen logs bounds but does not apply
    them.
    """
    percentile = f"p{(plan.percentile or 0) * 100:.10g}"
    ttft_ns, tpot_ns = (log.get(key) for key in _BOUNDS)
    official = plan.model_key is not None and scenario_named(plan.scenario).scheduled
    if not official or percentile not in _PERCENTILES or None in (ttft_ns, tpot_ns):
        return None
    return {"percentile": percentile, "ttft_ns": ttft_ns, "tpot_ns": tpot_ns}


def _times(log: DetailLog, keys: dict[str, str]) -> TokenTimes | None:
    times = {name: log.get(key) for name, key in keys.items()}
    return cast("TokenTimes", times) if None not in times.values() else None


def contradictions(log: DetailLog, done: Completions) -> Iterator[str]:
    """Yields one sentence per contradiction, with the numbers that disagree. log: from a complete run without failures."""
    columns = done.columns
    if "first_token_ns" not in columns:
        return
    first_ns, tokens = columns["first_token_ns"], columns["tokens"].astype(np.int64)
    if not (first_ns > 0).all() or not (tokens > 1).all():
        return
    # LoadGen's start may be earlier than the journal's start by this duration, as in witnesses.py.
    early_ns = int((columns["entry_ns"] - columns["scheduled_ns"]).min())
    ttft_ns = np.sort(first_ns - columns["scheduled_ns"] - early_ns)
    tpot_ns = np.sort((columns["completed_ns"] - first_ns) // (tokens - 1))
    yield from _order(log, _TTFT)
    yield from _order(log, _TPOT)
    for name, key in _TTFT.items():
        ours, theirs = _at(ttft_ns, name), log.get(key)
        if theirs is not None and ours > theirs + _slack_ns(theirs):
            yield (
                f"{key} is {show_ns(theirs)}, but the journal's is {show_ns(ours)}: LoadGen cannot know a first token "
                "before it arrives"
            )
    for name, key in _TPOT.items():
        count, share = len(tpot_ns), _PERCENTILES[name]
        if count - 1 - int(count * share) < LEAST_SLOWER:
            continue
        rank = min(int(count * (share + PREEMPTED_SHARE)), count - 1)
        ours, theirs = int(tpot_ns[rank]), log.get(key)
        if theirs is not None and theirs > ours + _slack_ns(ours):
            yield (
                f"{key} is {show_ns(theirs)}, but the journal's is at most {show_ns(ours)}: later tokens cannot "
                "take longer than the time since the first token"
            )
    yield from _rate(log, done, int(tokens.sum()))


def _at(ordered_ns: Array, name: str) -> int:
    return percentile_ns(ordered_ns, _PERCENTILES[name])


def _slack_ns(ns: float) -> float:
    return max(APART_SHARE * ns, APART_NS)


def _order(log: DetailLog, keys: dict[str, str]) -> Iterator[str]:
    known = [(key, log.get(key)) for key in keys.values() if log.get(key) is not None]
    for (lower, below), (upper, above) in pairwise(known):
        if below > above:
            yield f"{lower} {below:,} is above {upper} {above:,}"


def _rate(log: DetailLog, done: Completions, tokens: int) -> Iterator[str]:
    """Compares LoadGen's token rate with the journal's. LoadGen's rate covers the time until the last issued query was
    answered.
    """
    theirs = log.get(_RATE)
    took_ns = int(done.columns["completed_ns"][-1] - done.columns["scheduled_ns"].min())
    if theirs is not None and took_ns > 0:
        yield from other_rate(_RATE, theirs, tokens, took_ns)


def other_rate(key: str, theirs: float, count: int, took_ns: int) -> Iterator[str]:
    """Yields a contradiction if LoadGen's rate differs from the journal's `count` in `took_ns`. key: the rate's key in
    LoadGen's log.
    """
    ours = count * NS_PER_S / took_ns
    allowed = RATE_SHARE + RATE_NS / took_ns
    if abs(theirs / ours - 1) > allowed:
        yield (
            f"{key} is {show_rate(theirs)}/s, but the journal's rate is {show_rate(ours)}/s: "
            f"they differ by more than {show_percent(allowed, 1)}"
        )
