"""Checks result_summary.json and config.yaml: whether their numbers fit each other and point.yaml."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from harness.submit.endpoints.regions import Regions
from harness.submit.endpoints.rules.findings import Finding
from harness.submit.endpoints.rules.submission import (
    CONFIG,
    DEDICATED,
    SUMMARY,
    Curve,
    Point,
    mapping,
    number,
    whole,
)
from harness.submit.endpoints.tables import SEEDS, least_queries, limits, models

_SERIES = ("ttft", "tpot", "latency")
_ORDER = ("1", "5", "10", "25", "50", "75", "80", "90", "95", "97", "99", "99.9")
_CLIENT_SEEDS = {
    "scheduler_random_seed": "scheduler_rng_seed",
    "dataloader_random_seed": "sample_index_rng_seed",
}
"""The client's names of two seeds -> the names in point.yaml."""

_MOST_IN_FLIGHT, _LEAST_IN_FLIGHT = 1.02, 0.75
"""Mean number of queries in flight, over the concurrency. More cannot be; less can only be the end of a short run."""

_MOST_TIMES = 2.0
"""Largest factor between the latency and the sum of its parts; the parts are means of different samples."""


def results(curve: Curve, point: Point) -> Iterator[Finding]:
    if not point.summary:
        return  # another rule reports a missing or wrong file
    yield from _present(point)
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
    for key in ("duration_ns", "n_samples_completed", "n_samples_issued", "n_samples_failed"):
        value = number(point.summary.get(key))
        if value is None or value < 0 or (key == "duration_ns" and value == 0):
            yield _of(point, "result-key", f"{key}: {point.summary.get(key)}", "a number")
    tokens = number(_block(point, "output_sequence_lengths").get("total"))
    if tokens is None or tokens <= 0:
        yield _of(point, "result-key", f"output_sequence_lengths.total: {tokens}", "above 0")
    if point.offline == DEDICATED:
        return
    for name in ("ttft", "tpot"):
        value = _percentile(point, name, "90")
        if value is None or value <= 0:
            yield _of(point, "result-key", f"p90 of {name}: {value}", "above 0")


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
    least = least_queries().get(str(dataset)) or (model.samples if model else None)
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
                actual = f"p{high} of {name} is {higher:.0f} ns, p{low} is {lower:.0f} ns"
                yield _of(point, "numbers-disagree", actual, "percentiles in order")
                break
        least, most = number(block.get("min")), number(block.get("max"))
        for key, value in (*found, ("mean", number(block.get("avg")))):
            outside = value is not None and (
                (most is not None and value > most * 1.001)
                or (least is not None and value < least - abs(least) * 0.001)
            )
            if outside:
                actual = f"{key} of {name} is {value:.0f} ns, outside its extremes"
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
    """Checks Little's law: the sum of the latencies is the concurrency times the duration."""
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
    """Checks that a mean answer takes its TTFT and, for each further token, its TPOT."""
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
            f"the mean answer {latency / 1e6:.1f} ms"
        )
        yield _of(point, "token-times", actual, "about the same time")


def _stored(point: Point) -> Iterator[Finding]:
    """Checks metrics that a tool stored next to the client's numbers."""
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
    """Compares what the client recorded about its run with point.yaml."""
    found = _block(point, "run_config")
    declared = mapping(mapping(point.yaml.get("runtime_settings")).get("runtime"))
    for theirs, ours in _CLIENT_SEEDS.items():
        if theirs in found and ours in declared and found[theirs] != declared[ours]:
            actual = f"run_config.{theirs}: {found[theirs]}"
            yield _of(point, "run-differs", actual, f"{ours}: {declared[ours]}")
    for actual, expected in _pattern_differences(point, found.get("load_pattern")):
        yield _of(point, "run-differs", f"run_config: {actual}", expected)


def _pattern_differences(point: Point, value: object) -> Iterator[tuple[str, str]]:
    """Yields (actual, expected) for each difference between a client's load pattern and the point."""
    if not isinstance(value, dict):
        return
    kind, in_flight = value.get("type"), value.get("target_concurrency")
    if kind is not None and kind != point.pattern:
        yield f"load pattern {kind}", point.pattern
    elif kind != "max_throughput" and in_flight is not None and in_flight != point.concurrency:
        yield f"target_concurrency {in_flight}", str(point.concurrency)


def client_config(curve: Curve, point: Point) -> Iterator[Finding]:
    """Compares config.yaml, which MLCommons' checker does not read, with point.yaml."""
    if not point.config or not point.yaml:
        return
    settings = mapping(point.config.get("settings"))
    declared = mapping(mapping(point.yaml.get("runtime_settings")).get("runtime"))
    runtime = mapping(settings.get("runtime"))
    for theirs, ours in _CLIENT_SEEDS.items():
        # The client's default seed counts if the configuration does not set one.
        actual = runtime.get(theirs, 42)
        if ours in declared and actual != declared[ours]:
            yield _config(point, f"{theirs}: {actual}", f"{ours}: {declared[ours]}")
    model = mapping(point.config.get("model_params"))
    seed, known = model.get("seed"), declared.get(SEEDS[2])
    if seed is not None and known is not None and seed != known:
        yield _config(point, f"model_params.seed: {seed}", f"model_seed: {known}")
    if str(model.get("streaming", "auto")) == "off" and point.offline != DEDICATED:
        yield _config(point, "streaming: off", "a stream of each answer")
    pattern = settings.get("load_pattern")
    if not isinstance(pattern, dict):
        yield _config(point, "no settings.load_pattern", point.pattern)
    for actual, expected in _pattern_differences(point, pattern):
        yield _config(point, actual, expected)
    if curve.is_agentic:
        yield from _agentic(point)


def _config(point: Point, actual: str, expected: str) -> Finding:
    return Finding("config-differs", point.file(CONFIG), actual, expected)


def _agentic(point: Point) -> Iterator[Finding]:
    """Checks the settings that the rules fix for trajectories."""
    sets = point.config.get("datasets")
    rows = [mapping(row) for row in sets] if isinstance(sets, list) else []
    fixed = {
        "enable_salt": True,
        "inject_tool_delay": True,
        "stop_issuing_on_first_user_complete": False,
    }
    for row in rows:
        block = row.get("agentic_inference")
        if not isinstance(block, dict):
            continue
        for key, value in fixed.items():
            if block.get(key, False) is not value:
                yield _config(point, f"{key}: {block.get(key)}", str(value).lower())
        count = whole(block.get("num_trajectories_to_issue"))
        unit = limits()["trajectories"]
        if count is None or count % unit or not count:
            yield _config(point, f"num_trajectories_to_issue: {count}", f"a multiple of {unit}")
    for row in rows:
        extras = mapping(mapping(row.get("accuracy_config")).get("extras"))
        count, all_of = extras.get("num_instances"), limits()["swe_bench_instances"]
        if count is not None and count != all_of:
            yield _config(point, f"num_instances: {count}", str(all_of))
