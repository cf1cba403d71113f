"""Finds numbers in LoadGen's detail log that contradict each other, by the formulas that LoadGen uses. Pure.

Source: mlcommons/inference b66003e, loadgen/results.cc and loadgen/loadgen.cc.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from math import sqrt
from typing import NamedTuple

from harness.core.stats import late_allowed
from harness.core.units import NS_PER_MS, NS_PER_S, show_ns, show_percent, show_rate
from harness.loadgen.logs import EARLY_STOPPING, RATE_DIGITS, DetailLog
from harness.machine.power.energy import utc_ns
from harness.results.evidence.stages import PERCENTILES

_SPAN_NS = 5 * NS_PER_MS
"""Resolution of the difference of power_begin and power_end, which are written in ms."""

_MOST = 10**10
"""No run has more samples; a larger number is a damaged log."""

_RANKS = 2
"""Ranks by which our port of early stopping may differ from LoadGen in a run of millions of queries."""

_DEVIATIONS = 6
"""Standard deviations by which the number of Poisson arrivals may differ from rate times time."""

_PERCENTILES = {f"{fraction * 100:.2f}": fraction for fraction in PERCENTILES.values()}
_PROCESSED = re.compile(r"Processed at least \d+ queries \((\d+)\)")
_ESTIMATED = re.compile(r"Early stopping ([\d.]+)th percentile estimate: (\d+)")
_FAILED = re.compile(r"unsuccessful|Only processed|Need to process|Would need to run")


class _Ranked(NamedTuple):
    """One of the sorted latencies of a run."""

    rank: int
    """From 0, the lowest latency."""
    key: str
    ns: int


def contradictions(log: DetailLog) -> Iterator[str]:
    """Sentences, each with the two numbers that disagree. log: of a whole performance run."""
    yield from _flags(log)
    yield from _order(log)
    yield from _late(log)
    yield from _rates(log)
    yield from _early_stopping_text(log)


def settings_stated_twice(log: DetailLog) -> Iterator[str]:
    """Settings whose effective value is not the requested one, where LoadGen takes that one unchanged."""
    for key, requested in log.values.items():
        name = key.removeprefix("requested_")
        if name in (key, "min_query_count", "sample_concatenate_permutation"):
            continue  # LoadGen computes these two
        for prefix in ("", "single_stream_", "multi_stream_", "server_"):
            effective = f"effective_{name.removeprefix(prefix)}"
            if name.startswith(prefix) and log.get(effective, requested) != requested:
                yield f"{effective} is {log.get(effective)}, {key} is {requested}"
                break


def _number(log: DetailLog, key: str) -> float | None:
    """An int or a finite float; None where the log has no such value."""
    value = log.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) < 1e300 else None


def _queries(log: DetailLog) -> int:
    """Completed queries; 0 where the log's number is not one of a run."""
    count = _number(log, "result_query_count")
    return int(count) if count is not None and 1 <= count <= _MOST else 0


def _samples(log: DetailLog) -> int:
    """Completed samples; 0 where the log's numbers are not those of a run.

    Where each sample is issued equally often, Offline's query is filled up to a multiple of the samples held.
    """
    per_query = _number(log, "generated_samples_per_query")
    if per_query is None:
        per_query = _number(log, "effective_samples_per_query")
    if per_query is None or not 1 <= per_query <= _MOST:
        return 0
    return _queries(log) * int(per_query)


def _counts_tokens(log: DetailLog) -> bool:
    """Early stopping is then judged and estimated by tokens."""
    return log.get("requested_use_token_latencies") is True


def _flags(log: DetailLog) -> Iterator[str]:
    """A VALID log meets each constraint that it states."""
    if log.get("result_validity") == "VALID":
        for key, value in log.values.items():
            if key.endswith("_met") and value is False:
                yield f"result_validity is VALID although {key} is false"
    asked, made = (log.get(f"{which}_samples_per_query") for which in ("effective", "generated"))
    if made not in (None, asked) and not log.get("effective_sample_concatenate_permutation"):
        yield f"generated_samples_per_query is {made}, effective_samples_per_query is {asked}"
    issued, generated = _number(log, "result_query_count"), _number(log, "generated_query_count")
    if issued is not None and generated is not None and issued > generated:
        yield f"result_query_count {issued:,.0f} is above generated_query_count {generated:,.0f}"


def _ranked(log: DetailLog, unit: str, per: str, count: int) -> list[_Ranked]:
    """Logged latencies in ascending rank. unit: 'latency' or 'query_latency'. per: unit in percentiles' keys."""
    keys = [(0, f"result_min_{unit}_ns"), (count - 1, f"result_max_{unit}_ns")]
    keys += [
        (int(count * fraction), f"result_{percent}_percentile_{per}_ns")
        for percent, fraction in _PERCENTILES.items()
    ]
    known = [(rank, key, _number(log, key)) for rank, key in keys]
    return sorted(_Ranked(rank, key, int(ns)) for rank, key, ns in known if ns is not None)


def _order(log: DetailLog) -> Iterator[str]:
    """A latency of a higher rank is not smaller, and the mean fits to the latencies at known ranks."""
    for unit, per, count in (
        ("latency", "latency", _samples(log)),
        ("query_latency", "per_query_latency", _queries(log)),
    ):
        ranked = _ranked(log, unit, per, count) if count else []
        for lower, upper in pairwise(ranked):
            if lower.ns > upper.ns:
                yield f"{lower.key} {lower.ns:,} is above {upper.key} {upper.ns:,}"
            elif lower.rank == upper.rank and lower.ns != upper.ns:
                yield (
                    f"{lower.key} {lower.ns:,} is not {upper.key} {upper.ns:,}, the same one of "
                    f"{count:,} latencies"
                )
        mean = _number(log, f"result_mean_{unit}_ns")
        if mean is not None and len(ranked) > 1:
            yield from _mean(mean, ranked, count)
        if unit == ("query_latency" if _by_query(log) else "latency"):
            yield from _estimate(log, ranked)
    least = _number(log, "result_min_latency_ns")
    if least is not None and least < 0:
        yield f"result_min_latency_ns is {least:,.0f}"


def _by_query(log: DetailLog) -> bool:
    return bool(log.get("effective_scenario") == "MultiStream")


def _mean(mean: float, ranked: list[_Ranked], count: int) -> Iterator[str]:
    least = most = ranked[-1].ns
    for lower, upper in pairwise(ranked):
        between = max(0, upper.rank - lower.rank - 1)
        at_lower = lower.ns if upper.rank > lower.rank else 0
        least += at_lower + between * lower.ns
        most += at_lower + between * upper.ns
    if not least // count - 1 <= mean <= most // count + 1:
        yield (
            f"the mean latency {mean:,.0f} ns lies outside {least // count:,} to {most // count:,}, by the "
            "percentiles"
        )


def _estimate(log: DetailLog, ranked: list[_Ranked]) -> Iterator[str]:
    """Early stopping's estimate is the latency of another rank."""
    key = EARLY_STOPPING.get(str(log.get("effective_scenario")), "")
    estimate, percentile = _number(log, key), _number(log, "effective_target_latency_percentile")
    count = _queries(log)
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
    """Server: the number of late queries, the percentiles and the bound belong together."""
    queries, late = _queries(log), _number(log, "result_overlatency_query_count")
    bound_ns = _number(log, "effective_target_latency_ns")
    percentile = _number(log, "effective_target_latency_percentile")
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
    at = _number(log, f"result_{percentile * 100:.2f}_percentile_latency_ns")
    if at is not None and log.get("result_perf_constraints_met") and at > bound_ns:
        yield (
            f"result_perf_constraints_met is true with p{percentile * 100:.10g} {show_ns(at)} "
            f"above {show_ns(bound_ns)}"
        )


def _rates(log: DetailLog) -> Iterator[str]:
    """Rates follow from the number of queries, the latencies and the run's begin and end."""
    scenario, queries, samples = log.get("effective_scenario"), _queries(log), _samples(log)
    longest_ns, mean_ns = (_number(log, f"result_{name}_latency_ns") for name in ("max", "mean"))
    if not samples or longest_ns is None or mean_ns is None or longest_ns <= 0:
        return
    span_ns = _span_ns(log)
    if scenario == "Offline":
        yield from _offline(log, samples, longest_ns, span_ns)
    elif scenario == "Server":
        yield from _server(log, queries, longest_ns, span_ns)
    elif span_ns is not None:
        yield from _stream(log, queries, longest_ns, span_ns)


def _span_ns(log: DetailLog) -> int | None:
    """From the first query to the last answer."""
    try:
        return utc_ns(str(log.get("power_end"))) - utc_ns(str(log.get("power_begin")))
    except (ValueError, OverflowError):
        return None


def _offline(log: DetailLog, samples: int, longest_ns: float, span_ns: int | None) -> Iterator[str]:
    key = "result_samples_per_second"
    rate = _number(log, key)
    by_latency = samples * NS_PER_S / longest_ns
    if rate is not None and abs(rate / by_latency - 1) > 10 * RATE_DIGITS:
        yield (
            f"{key} is {show_rate(rate)}/s, {samples:,} samples in the longest latency give "
            f"{show_rate(by_latency)}/s"
        )
    if span_ns is not None and abs(span_ns - longest_ns) > _SPAN_NS + RATE_DIGITS * longest_ns:
        yield f"the run took {show_ns(span_ns)}, its longest latency is {show_ns(longest_ns)}"


def _server(log: DetailLog, queries: int, longest_ns: float, span_ns: int | None) -> Iterator[str]:
    keys = ("result_completed_samples_per_sec", "result_scheduled_samples_per_sec")
    done_ns, scheduled_ns = (_took_ns(log, key, queries) for key in keys)
    if done_ns is not None and span_ns is not None:
        yield from _within(keys[0], done_ns, span_ns, longest_ns)
    if done_ns is not None and scheduled_ns is not None:
        yield from _within(keys[1], scheduled_ns, done_ns, longest_ns)
    target = _number(log, "effective_target_qps")
    if scheduled_ns is None or target is None or queries < 100:
        return
    rate = (queries - 1) * NS_PER_S / scheduled_ns
    allowed = _DEVIATIONS / sqrt(queries) + 10 * RATE_DIGITS
    if abs(rate - target) > allowed * target:
        yield (
            f"queries were scheduled at {show_rate(rate)}/s, effective_target_qps is {show_rate(target)}: "
            f"more than {show_percent(allowed, 2)} apart"
        )


def _stream(log: DetailLog, queries: int, longest_ns: float, span_ns: int) -> Iterator[str]:
    """One query at a time: their latencies do not exceed the run."""
    unit = "query_latency" if _by_query(log) else "latency"
    mean_ns = _number(log, f"result_mean_{unit}_ns")
    if mean_ns is not None and queries * mean_ns > span_ns + _SPAN_NS:
        yield f"{queries:,} queries with a mean latency of {show_ns(mean_ns)} took {show_ns(span_ns)}"
    key, without = "result_qps_with_loadgen_overhead", "result_qps_without_loadgen_overhead"
    issued_ns, alone = _took_ns(log, key, queries), _number(log, without)
    if issued_ns is not None:
        yield from _within(key, issued_ns, span_ns, longest_ns)
    if alone is not None and mean_ns and abs(alone * mean_ns / NS_PER_S - 1) > 10 * RATE_DIGITS:
        yield f"{without} is {show_rate(alone)}/s with a mean latency of {show_ns(mean_ns)}"


def _took_ns(log: DetailLog, key: str, queries: int) -> float | None:
    """Time in which the queries after the first came, by a rate in the log."""
    rate = _number(log, key)
    return (queries - 1) * NS_PER_S / rate if rate is not None and rate > 1e-9 else None


def _within(key: str, took_ns: float, span_ns: float, longest_ns: float) -> Iterator[str]:
    """The last query ends within one latency of the run's end."""
    slack_ns = _SPAN_NS + 2 * RATE_DIGITS * took_ns
    if not span_ns - longest_ns - slack_ns <= took_ns <= span_ns + slack_ns:
        yield (
            f"by {key} the queries took {show_ns(took_ns)}, by the log's times {show_ns(span_ns)} with a "
            f"longest latency of {show_ns(longest_ns)}"
        )


def _early_stopping_text(log: DetailLog) -> Iterator[str]:
    """LoadGen's sentence about early stopping repeats numbers of the log."""
    text = " ".join(str(log.get("early_stopping_result", "")).split())
    if log.get("early_stopping_met") is True and _FAILED.search(text):
        yield f"early_stopping_met is true although early_stopping_result is {text[:100]!r}"
    processed = _PROCESSED.search(text)
    if processed and int(processed[1][:18]) != _number(log, "result_query_count"):
        yield f"early_stopping_result counts {processed[1]} queries, result_query_count is {log.get('result_query_count')}"
    judged = (_number(log, "effective_target_latency_percentile") or 0) * 100
    for percent, estimate in _ESTIMATED.findall(text):
        key = EARLY_STOPPING.get(str(log.get("effective_scenario")), "")
        if percent != f"{judged:.1f}":
            # A single-stream run estimates multi-stream's percentile, too.
            key = EARLY_STOPPING["MultiStream"]
        logged = _number(log, key)
        if logged is not None and int(estimate[:18]) != logged:
            yield f"early_stopping_result estimates {estimate} ns, {key} is {logged:,.0f}"
