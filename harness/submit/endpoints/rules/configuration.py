"""Checks config.yaml, which is the client's configuration. MLCommons' checker ignores this file."""

from collections.abc import Iterator
from typing import Any

from harness.core.numbers import whole
from harness.submit.endpoints.rules.findings import Finding
from harness.submit.endpoints.rules.submission import (
    CONFIG,
    DEDICATED,
    SUMMARY,
    Curve,
    Point,
    mapping,
)
from harness.submit.endpoints.tables import SEEDS, limits

CLIENT_SEEDS = {
    "scheduler_random_seed": "scheduler_rng_seed",
    "dataloader_random_seed": "sample_index_rng_seed",
}
"""Maps the client's names for two seeds to the seeds' names in point.yaml."""

_DEFAULT_SEED = 42


def pattern_differences(point: Point, value: object) -> Iterator[tuple[str, str]]:
    """Yields an (actual, expected) pair for each difference between the client's load pattern and the point."""
    if not isinstance(value, dict):
        return
    kind, in_flight = value.get("type"), value.get("target_concurrency")
    if kind is not None and kind != point.pattern:
        yield f"load pattern {kind}", point.pattern
    elif kind != "max_throughput" and in_flight != point.concurrency:
        yield f"target_concurrency {in_flight}", str(point.concurrency)


def client_config(curve: Curve, point: Point) -> Iterator[Finding]:
    """Compares config.yaml with point.yaml."""
    if not point.config or not point.yaml:
        return
    settings = mapping(point.config.get("settings"))
    declared = mapping(mapping(point.yaml.get("runtime_settings")).get("runtime"))
    runtime = mapping(settings.get("runtime"))
    for theirs, ours in CLIENT_SEEDS.items():
        # If the configuration does not set a seed, the client uses its default.
        actual = runtime.get(theirs, _DEFAULT_SEED)
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
    for actual, expected in pattern_differences(point, pattern):
        yield _config(point, actual, expected)
    yield from _warm_up(point, settings)
    if curve.is_agentic:
        yield from _agentic(point)
    else:
        yield from _queries(point, runtime)


def _queries(point: Point, runtime: dict[str, Any]) -> Iterator[Finding]:
    asked, issued = runtime.get("n_samples_to_issue"), point.summary.get("n_samples_issued")
    if None not in (asked, issued) and asked != issued:
        yield _config(point, f"n_samples_to_issue: {asked}", f"{issued} issued requests")


def _warm_up(point: Point, settings: dict[str, Any]) -> Iterator[Finding]:
    """Checks that point.yaml declares the client's warm-up."""
    recorded = mapping(point.summary.get("run_config"))
    if mapping(point.yaml.get("warmup")).get("requests_issued") != 0:
        return
    for where, block in ((CONFIG, settings), (SUMMARY, recorded)):
        if mapping(block.get("warmup")).get("enabled") is True:
            yield _config(point, f"a warm-up in {where}", "the warm-up in point.yaml, too")


def _config(point: Point, actual: str, expected: str) -> Finding:
    return Finding("config-differs", point.file(CONFIG), actual, expected)


def _agentic(point: Point) -> Iterator[Finding]:
    """Checks the settings that the rules prescribe for trajectories."""
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
