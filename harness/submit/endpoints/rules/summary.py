"""Checks that the numbers in result_summary.json agree with each other and with point.yaml."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from harness.core.numbers import number, whole
from harness.submit.endpoints.regions import Regions
from harness.submit.endpoints.rules.configuration import CLIENT_SEEDS, pattern_differences
from harness.submit.endpoints.rules.findings import Finding
from harness.submit.endpoints.rules.submission import DEDICATED, SUMMARY, Curve, Point, mapping
from harness.submit.endpoints.tables import least_queries, limits, models

_SERIES = ("ttft", "tpot", "latency")
_ORDER = ("1", "5", "10", "25", "50", "75", "80", "90", "95", "97", "99", "99.9")
_COUNTS = ("n_samples_completed", "n_samples_issued", "n_samples_failed")
_MOST_IN_FLIGHT, _LEAST_IN_FLIGHT = 1.02, 0.75
"""Limits for the mean number of queries in flight, as a share of the concurrency; a mean outside these limits is a
finding. The lower limit is generous because the end of a short run reduces the mean.
"""

_MOST_TIMES = 2.0
"""The mean latency may differ from the sum of its parts by at most this factor, because the parts are means over
different samples.
"""


def results(curve: Curve, point: Point) -> Iterator[Finding]:
    if not point.summary:
        return  # another rule reports a missing or wrong file
    yield from _present(point)
    yield from _recorded(point)
    yield from _ended(point)
    yield from _counts(curve, point)
    yield from _percentiles(point)
    yield from _duration(point, curve.regions)
    yield from _little(point)
    yield from _token_times(point)
    yield from _stored(point)
    yield from _run_config(point)


def _of(point: Point, rule: str, actual: str, expected: str) -> Finding:
    return Finding(rule, point.file(SUMMARY), actual, expected)


def _block(point: Point, name: str) -> dict[str, Any]:
    return mapping(point.summary.get(name))


def _percentile(point: Point, name: str, key: str) -> float | None:
    found = mapping(_block(point, name).get("percentiles"))
    return number(found.get(key, found.get(f"{key}.0")))


def _present(point: Point) -> Iterator[Finding]:
    duration_ns = number(point.summary.get("duration_ns"))
    if duration_ns is None or duration_ns <= 0:
        actual = f"duration_ns: {point.summary.get('duration_ns')}"
        yield _of(point, "result-key", actual, "a number above 0")
    for key in _COUNTS:
        count = whole(point.summary.get(key))
        if count is None or count < 0:
            yield _of(point, "result-key", f"{key}: {point.summary.get(key)}", "a whole number")
    tokens = number(_block(point, "output_sequence_lengths").get("total"))
    if tokens is None or tokens <= 0:
        yield _of(point, "result-key", f"output_sequence_lengths.total: {tokens}", "above 0")
    for name in ("ttft", "tpot") if point.offline != DEDICATED else ():
        value = _percentile(point, name, "90")
        if value is None or value <= 0:
            yield _of(point, "result-key", f"p90 of {name}: {value}", "above 0")


def _recorded(point: Point) -> Iterator[Finding]:
    """Checks that the client's record of the run is present."""
    recorded = _block(point, "run_config")
    for key in ("load_pattern", *CLIENT_SEEDS):
        if recorded.get(key) is None:
            yield _of(point, "result-key", f"run_config.{key} is missing", "the client's record")


def _ended(point: Point) -> Iterator[Finding]:
    state, complete = point.summary.get("state"), point.summary.get("complete")
    if state is not None and str(state).lower() not in ("complete", "completed", "done"):
        yield _of(point, "not-complete", f"state: {state}", "complete")
    if complete is False:
        yield _of(point, "not-complete", "complete: false", "true")
    failed = whole(point.summary.get("n_samples_failed"))
    if failed:
        yield _of(point, "failed-requests", f"{failed:,} failed requests", "none")
    reasons = mapping(point.summary.get("finish_reason_counts"))
    for reason in ("error", "abort", "cancelled", "content_filter"):
        if whole(reasons.get(reason)):
            actual = f"{reasons[reason]:,} answers ended with {reason}"
            yield _of(point, "failed-requests", actual, "none")


def _counts(curve: Curve, point: Point) -> Iterator[Finding]:
    issued, completed, failed = (
        whole(point.summary.get(f"n_samples_{name}")) for name in ("issued", "completed", "failed")
    )
    if issued is None or completed is None:
        return
    if completed + (failed or 0) != issued:
        actual = f"{completed:,} completed and {failed or 0:,} failed of {issued:,} issued"
        yield _of(point, "counts", actual, "the same sum")
    model, dataset = models().get(curve.model), point.yaml.get("dataset")
    least = model.samples if model else least_queries().get(str(dataset))
    if least is None or curve.is_agentic:
        return
    if completed < least:
        yield _of(point, "too-few-queries", f"{completed:,} completed", f"at least {least:,}")
    if issued % least:
        passes = issued / least
        actual = f"{issued:,} issued, {passes:.2f} times the data set of {least:,}"
        yield _of(point, "whole-passes", actual, "a whole multiple")


def _percentiles(point: Point) -> Iterator[Finding]:
    for name in _SERIES:
        block = _block(point, name)
        found = [(key, value) for key in _ORDER if (value := _percentile(point, name, key))]
        for (low, lower), (high, higher) in pairwise(found):
            if higher < lower:
                actual = f"p{high} of {name} is {higher:.0f} ns, but p{low} is {lower:.0f} ns"
                yield _of(point, "numbers-disagree", actual, "percentiles in order")
                break
        least, most = number(block.get("min")), number(block.get("max"))
        for key, value in (*found, ("mean", number(block.get("avg")))):
            outside = value is not None and (
                (most is not None and value > most * 1.001)
                or (least is not None and value < least - abs(least) * 0.001)
            )
            if outside:
                actual = f"{key} of {name} is {value:.0f} ns, outside its minimum and maximum"
                yield _of(point, "numbers-disagree", actual, f"{least} to {most}")
                break


def _duration(point: Point, regions: Regions | None) -> Iterator[Finding]:
    run_ns = number(point.summary.get("duration_ns"))
    if regions is None or run_ns is None or point.offline == DEDICATED:
        return
    window = mapping(mapping(point.yaml.get("steady_state")).get("window"))
    window_s = number(window.get("duration_s"))
    least_s = regions.least_s(point.concurrency, agentic=point.pattern == "agentic_inference")
    length_s, of = (run_ns / 1e9, "run") if window_s is None else (window_s, "steady window")
    if length_s < least_s:
        yield _of(point, "too-short", f"a {of} of {length_s:.0f} s", f"at least {least_s:.0f} s")


def _little(point: Point) -> Iterator[Finding]:
    """Checks Little's law: the sum of the latencies must equal the concurrency times the duration."""
    run_ns, completed = (
        number(point.summary.get(k)) for k in ("duration_ns", "n_samples_completed")
    )
    mean_ns = number(_block(point, "latency").get("avg"))
    if not (run_ns and completed and mean_ns) or point.pattern != "concurrency":
        return
    share = mean_ns * completed / run_ns / point.concurrency if point.concurrency else 1.0
    if point.offline != DEDICATED and not _LEAST_IN_FLIGHT <= share <= _MOST_IN_FLIGHT:
        actual = f"a mean of {share * point.concurrency:.1f} queries in flight"
        yield _of(point, "in-flight", actual, f"about {point.concurrency}")


def _token_times(point: Point) -> Iterator[Finding]:
    """Checks that the mean latency equals the mean TTFT plus the mean TPOT for each later token."""
    means = [number(_block(point, name).get("avg")) for name in _SERIES]
    tokens, completed = (
        number(_block(point, "output_sequence_lengths").get("total")),
        number(point.summary.get("n_samples_completed")),
    )
    ttft, tpot, latency = means
    if not (ttft and tpot and latency and tokens and completed):
        return
    parts = ttft + tpot * max(tokens / completed - 1, 0.0)
    if not 1 / _MOST_TIMES <= parts / latency <= _MOST_TIMES:
        actual = (
            f"TTFT and {tokens / completed:.0f} tokens at the mean TPOT take {parts / 1e6:.1f} ms, "
            f"but the mean answer takes {latency / 1e6:.1f} ms"
        )
        yield _of(point, "token-times", actual, "about the same time")


def _stored(point: Point) -> Iterator[Finding]:
    """Checks the metrics that a tool stored next to the client's numbers."""
    p90_ns = _percentile(point, "tpot", "90")
    own = {
        "system_tps": point.tokens_per_s,
        "tps_per_user": 1e9 / p90_ns if p90_ns else None,
    }
    for key, value in own.items():
        stored = number(point.summary.get(key))
        if stored is not None and value and abs(stored / value - 1) > limits()["stored_tolerance"]:
            yield _of(point, "stored-metric", f"{key}: {stored:g}", f"{value:g}")


def _run_config(point: Point) -> Iterator[Finding]:
    """Compares the client's record of the run with point.yaml."""
    found = _block(point, "run_config")
    declared = mapping(mapping(point.yaml.get("runtime_settings")).get("runtime"))
    for theirs, ours in CLIENT_SEEDS.items():
        if theirs in found and ours in declared and found[theirs] != declared[ours]:
            actual = f"run_config.{theirs}: {found[theirs]}"
            yield _of(point, "run-differs", actual, f"{ours}: {declared[ours]}")
    for actual, expected in pattern_differences(point, found.get("load_pattern")):
        yield _of(point, "run-differs", f"run_config: {actual}", expected)
