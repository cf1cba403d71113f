"""Finds rates in LoadGen's detail log that contradict its counts, latencies and times under LoadGen's formulas. Has no
side effects.

Source: mlcommons/inference b66003e, loadgen/results.cc and loadgen/loadgen.cc.
"""

from collections.abc import Iterator
from math import sqrt

from harness.core.units import NS_PER_MS, NS_PER_S, show_ns, show_percent, show_rate
from harness.loadgen.logs import RATE_DIGITS, DetailLog
from harness.machine.power.energy import utc_ns
from harness.results.verdict import log_numbers

_SPAN_NS = 5 * NS_PER_MS
"""Resolution of the time from power_begin to power_end, which LoadGen writes in ms."""

_DEVIATIONS = 6
"""The number of Poisson arrivals may differ from rate x time by at most this many standard deviations."""


def contradictions(log: DetailLog) -> Iterator[str]:
    """Yields rates that do not match the number of queries, the latencies, and the start and end of the run."""
    scenario = log.get("effective_scenario")
    queries, samples = log_numbers.queries(log), log_numbers.samples(log)
    longest_ns, mean_ns = (
        log_numbers.number(log, f"result_{name}_latency_ns") for name in ("max", "mean")
    )
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
    """Returns the time from the first query to the last answer."""
    try:
        return utc_ns(str(log.get("power_end"))) - utc_ns(str(log.get("power_begin")))
    except (ValueError, OverflowError):
        return None


def _offline(log: DetailLog, samples: int, longest_ns: float, span_ns: int | None) -> Iterator[str]:
    key = "result_samples_per_second"
    rate = log_numbers.number(log, key)
    by_latency = samples * NS_PER_S / longest_ns
    if rate is not None and abs(rate / by_latency - 1) > 10 * RATE_DIGITS:
        yield (
            f"{key} is {show_rate(rate)}/s, but {samples:,} samples in the longest latency give "
            f"{show_rate(by_latency)}/s"
        )
    if span_ns is not None and abs(span_ns - longest_ns) > _SPAN_NS + RATE_DIGITS * longest_ns:
        yield f"the run took {show_ns(span_ns)}, but its longest latency is {show_ns(longest_ns)}"


def _server(log: DetailLog, queries: int, longest_ns: float, span_ns: int | None) -> Iterator[str]:
    keys = ("result_completed_samples_per_sec", "result_scheduled_samples_per_sec")
    done_ns, scheduled_ns = (_took_ns(log, key, queries) for key in keys)
    if done_ns is not None and span_ns is not None:
        yield from _within(keys[0], done_ns, span_ns, longest_ns)
    if done_ns is not None and scheduled_ns is not None:
        yield from _within(keys[1], scheduled_ns, done_ns, longest_ns)
    target = log_numbers.number(log, "effective_target_qps")
    if scheduled_ns is None or target is None or queries < 100:
        return
    rate = (queries - 1) * NS_PER_S / scheduled_ns
    allowed = _DEVIATIONS / sqrt(queries) + 10 * RATE_DIGITS
    if abs(rate - target) > allowed * target:
        yield (
            f"queries were scheduled at {show_rate(rate)}/s, but effective_target_qps is {show_rate(target)}: "
            f"they differ by more than {show_percent(allowed, 2)}"
        )


def _stream(log: DetailLog, queries: int, longest_ns: float, span_ns: int) -> Iterator[str]:
    """Yields contradictions in a stream scenario's log. The queries do not overlap, so the sum of their latencies must
    fit into the run.
    """
    unit = "query_latency" if log_numbers.by_query(log) else "latency"
    mean_ns = log_numbers.number(log, f"result_mean_{unit}_ns")
    if mean_ns is not None and queries * mean_ns > span_ns + _SPAN_NS:
        yield f"{queries:,} queries with a mean latency of {show_ns(mean_ns)} took only {show_ns(span_ns)}"
    key, without = "result_qps_with_loadgen_overhead", "result_qps_without_loadgen_overhead"
    issued_ns, alone = _took_ns(log, key, queries), log_numbers.number(log, without)
    if issued_ns is not None:
        yield from _within(key, issued_ns, span_ns, longest_ns)
    if alone is not None and mean_ns and abs(alone * mean_ns / NS_PER_S - 1) > 10 * RATE_DIGITS:
        yield f"{without} is {show_rate(alone)}/s, which contradicts the mean latency of {show_ns(mean_ns)}"


def _took_ns(log: DetailLog, key: str, queries: int) -> float | None:
    """Returns the time from the first to the last query, computed from a rate in the log."""
    rate = log_numbers.number(log, key)
    return (queries - 1) * NS_PER_S / rate if rate is not None and rate > 1e-9 else None


def _within(key: str, took_ns: float, span_ns: float, longest_ns: float) -> Iterator[str]:
    """Yields a contradiction unless the queries end within one latency before the end of the run."""
    slack_ns = _SPAN_NS + 2 * RATE_DIGITS * took_ns
    if not span_ns - longest_ns - slack_ns <= took_ns <= span_ns + slack_ns:
        yield (
            f"the queries took {show_ns(took_ns)} by {key}, but {show_ns(span_ns)} by the log's times, with a "
            f"longest latency of {show_ns(longest_ns)}"
        )
