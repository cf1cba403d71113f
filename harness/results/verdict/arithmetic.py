"""Finds numbers in LoadGen's detail log that contradict each other under LoadGen's formulas. Has no side effects.

Source: mlcommons/inference b66003e, loadgen/results.cc and loadgen/loadgen.cc.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from harness.core.stats import late_allowed
from harness.core.units import show_ns
from harness.loadgen.logs import EARLY_STOPPING, DetailLog
from harness.loadgen.scenario import percent_text
from harness.results.evidence.stages import PERCENTILES
from harness.results.verdict import log_numbers, rates

_RANKS = 2
"""With millions of queries, early stopping in LoadGen and in the harness may differ by this many ranks."""

_PROCESSED = re.compile(r"Processed at least \d+ queries \((\d+)\)")
_ESTIMATED = re.compile(r"Early stopping ([\d.]+)th percentile estimate: (\d+)")
_FAILED = re.compile(r"unsuccessful|Only processed|Need to process|Would need to run")


class _Ranked(NamedTuple):
    """A latency and its rank in the run."""

    rank: int
    """Rank, counted from 0 for the lowest latency."""
    key: str
    ns: int


def contradictions(log: DetailLog) -> Iterator[str]:
    """Yields one sentence per contradiction, with the numbers that disagree. log: from a complete performance run."""
    yield from _flags(log)
    yield from _order(log)
    yield from _late(log)
    yield from rates.contradictions(log)
    yield from _early_stopping_text(log)


def settings_stated_twice(log: DetailLog) -> Iterator[str]:
    """Yields settings that LoadGen should apply as requested, but whose effective value differs."""
    for key, requested in log.values.items():
        name = key.removeprefix("requested_")
        if name in (key, "min_query_count", "sample_concatenate_permutation"):
            # LoadGen computes these two settings, so the requested and the effective value may differ.
            continue
        for prefix in ("", "single_stream_", "multi_stream_", "server_"):
            effective = f"effective_{name.removeprefix(prefix)}"
            if name.startswith(prefix) and log.get(effective, requested) != requested:
                yield f"{effective} is {log.get(effective)}, but {key} is {requested}"
                break


def _counts_tokens(log: DetailLog) -> bool:
    """Returns whether early stopping uses token times to judge and to estimate."""
    return log.get("requested_use_token_latencies") is True


def _flags(log: DetailLog) -> Iterator[str]:
    """Yields constraints that a VALID log fails to meet, and counts that contradict each other."""
    if log.get("result_validity") == "VALID":
        for key, value in log.values.items():
            if key.endswith("_met") and value is False:
                yield f"result_validity is VALID although {key} is false"
    asked, made = (log.get(f"{which}_samples_per_query") for which in ("effective", "generated"))
    if made not in (None, asked) and not log.get("effective_sample_concatenate_permutation"):
        yield f"generated_samples_per_query is {made}, but effective_samples_per_query is {asked}"
    issued, generated = (
        log_numbers.number(log, "result_query_count"),
        log_numbers.number(log, "generated_query_count"),
    )
    if issued is not None and generated is not None and issued > generated:
        yield f"result_query_count {issued:,.0f} is above generated_query_count {generated:,.0f}"


def _ranked(log: DetailLog, unit: str, per: str, count: int) -> list[_Ranked]:
    """Returns logged latencies by rank. unit: 'latency' or 'query_latency'. per: unit in the keys of percentiles."""
    keys = [(0, f"result_min_{unit}_ns"), (count - 1, f"result_max_{unit}_ns")]
    keys += [
        (int(count * fraction), f"result_{percent_text(fraction)}_percentile_{per}_ns")
        for fraction in PERCENTILES.values()
    ]
    known = [(rank, key, log_numbers.number(log, key)) for rank, key in keys]
    return sorted(_Ranked(rank, key, int(ns)) for rank, key, ns in known if ns is not None)


def _order(log: DetailLog) -> Iterator[str]:
    """Yields latencies that are below a latency of lower rank, and means that do not fit the latencies at the known
    ranks.
    """
    for unit, per, count in (
        ("latency", "latency", log_numbers.samples(log)),
        ("query_latency", "per_query_latency", log_numbers.queries(log)),
    ):
        ranked = _ranked(log, unit, per, count) if count else []
        for lower, upper in pairwise(ranked):
            if lower.ns > upper.ns:
                yield f"{lower.key} {lower.ns:,} is above {upper.key} {upper.ns:,}"
            elif lower.rank == upper.rank and lower.ns != upper.ns:
                yield (
                    f"{lower.key} {lower.ns:,} differs from {upper.key} {upper.ns:,}, although both have the same "
                    f"rank among {count:,} latencies"
                )
        mean = log_numbers.number(log, f"result_mean_{unit}_ns")
        if mean is not None and len(ranked) > 1:
            yield from _mean(mean, ranked, count)
        if unit == ("query_latency" if log_numbers.by_query(log) else "latency"):
            yield from _estimate(log, ranked)
    least = log_numbers.number(log, "result_min_latency_ns")
    if least is not None and least < 0:
        yield f"result_min_latency_ns is {least:,.0f}"


def _mean(mean: float, ranked: list[_Ranked], count: int) -> Iterator[str]:
    least = most = ranked[-1].ns
    for lower, upper in pairwise(ranked):
        between = max(0, upper.rank - lower.rank - 1)
        at_lower = lower.ns if upper.rank > lower.rank else 0
        least += at_lower + between * lower.ns
        most += at_lower + between * upper.ns
    if not least // count - 1 <= mean <= most // count + 1:
        yield (
            f"the mean latency {mean:,.0f} ns lies outside {least // count:,} to {most // count:,} ns, the range "
            "that the percentiles allow"
        )


def _estimate(log: DetailLog, ranked: list[_Ranked]) -> Iterator[str]:
    """Yields latencies whose rank contradicts early stopping's estimate."""
    key = EARLY_STOPPING.get(str(log.get("effective_scenario")), "")
    estimate, percentile = (
        log_numbers.number(log, key),
        log_numbers.number(log, "effective_target_latency_percentile"),
    )
    count = log_numbers.queries(log)
    if not estimate or not count or percentile is None or not 0 < percentile < 1:
        return
    if _counts_tokens(log):
        return
    rank = count - late_allowed(count, percentile)
    for one in ranked:
        if one.rank <= rank - _RANKS and one.ns > estimate:
            yield f"the early-stopping estimate {estimate:,.0f} is below {one.key} {one.ns:,}"
        elif one.rank >= rank + _RANKS and one.ns < estimate:
            yield f"the early-stopping estimate {estimate:,.0f} is above {one.key} {one.ns:,}"


def _late(log: DetailLog) -> Iterator[str]:
    """Yields contradictions between Server's number of late queries, its percentiles and its bound."""
    queries, late = (
        log_numbers.queries(log),
        log_numbers.number(log, "result_overlatency_query_count"),
    )
    bound_ns = log_numbers.number(log, "effective_target_latency_ns")
    percentile = log_numbers.number(log, "effective_target_latency_percentile")
    if late is None or not queries or not bound_ns or percentile is None or _counts_tokens(log):
        return
    if not 0 <= late <= queries:
        yield f"{late:,.0f} of {queries:,} queries were late"
        return
    judged = log.get("early_stopping_met")
    if 0 < percentile < 1 and judged != (late <= late_allowed(queries, percentile)):
        yield f"early_stopping_met is {judged} with {late:,.0f} of {queries:,} queries late"
    for one in _ranked(log, "latency", "latency", queries):
        if (one.ns > bound_ns) != (one.rank >= queries - late):
            yield (
                f"{one.key} is {show_ns(one.ns)} under a bound of {show_ns(bound_ns)}, although "
                f"{late:,.0f} of {queries:,} queries were late"
            )
    at = log_numbers.number(log, f"result_{percentile * 100:.2f}_percentile_latency_ns")
    if at is not None and log.get("result_perf_constraints_met") and at > bound_ns:
        yield (
            f"result_perf_constraints_met is true with p{percentile * 100:.10g} {show_ns(at)} "
            f"above {show_ns(bound_ns)}"
        )


def _early_stopping_text(log: DetailLog) -> Iterator[str]:
    """Yields numbers in LoadGen's sentence on early stopping that disagree with the log."""
    text = " ".join(str(log.get("early_stopping_result", "")).split())
    if log.get("early_stopping_met") is True and _FAILED.search(text):
        yield f"early_stopping_met is true although early_stopping_result is {text[:100]!r}"
    processed = _PROCESSED.search(text)
    if processed and int(processed[1][:18]) != log_numbers.number(log, "result_query_count"):
        yield f"early_stopping_result counts {processed[1]} queries, but result_query_count is {log.get('result_query_count')}"
    judged = (log_numbers.number(log, "effective_target_latency_percentile") or 0) * 100
    for percent, estimate in _ESTIMATED.findall(text):
        key = EARLY_STOPPING.get(str(log.get("effective_scenario")), "")
        if percent != f"{judged:.1f}":
            # A single-stream run also estimates multi-stream's percentile.
            key = EARLY_STOPPING["MultiStream"]
        logged = log_numbers.number(log, key)
        if logged is not None and int(estimate[:18]) != logged:
            yield f"early_stopping_result estimates {estimate} ns, but {key} is {logged:,.0f}"
