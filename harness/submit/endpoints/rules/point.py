"""Checks the keys and values in point.yaml, one point at a time."""

from collections.abc import Iterator
from typing import Any

from harness.core.numbers import number, whole
from harness.submit.endpoints.cohorts import cohort_or_none
from harness.submit.endpoints.regions import Regions
from harness.submit.endpoints.rules.findings import Finding
from harness.submit.endpoints.rules.submission import DEDICATED, POINT, Curve, Point, mapping
from harness.submit.endpoints.tables import (
    SEEDS,
    adoptable,
    drafters,
    least_queries,
    limits,
    models,
)


def point_file(curve: Curve, point: Point) -> Iterator[Finding]:
    """Checks everything that depends only on this point and the curve's regions."""
    if not point.yaml:
        return  # another rule reports a missing or wrong file
    for part in (_keys, _division, _dataset_type, _load_pattern, _warm_up, _seeds, _steady):
        yield from part(point)
    yield from _dataset(point, curve.model)
    yield from _minimum(point, curve.regions)
    yield from _region(point, curve.regions)
    yield from _drafter(point, curve.model)


def _of(point: Point, rule: str, actual: str, expected: str) -> Finding:
    return Finding(rule, point.file(POINT), actual, expected)


def _keys(point: Point) -> Iterator[Finding]:
    keys = limits()["keys"]["point"]
    for key in keys["required"]:
        if point.yaml.get(key) in (None, ""):
            yield _of(point, "point-key", f"{key} is missing", "a value")
    for key in point.yaml:
        if key not in (*keys["required"], *keys["optional"]):
            yield _of(point, "unknown-key", f"{key}", "only keys that the rules define")
    for key in ("concurrency", "max_supported_concurrency"):
        value = point.yaml.get(key)
        if value is not None and (whole(value) is None or value < 1):
            yield _of(point, "point-key", f"{key}: {value!r}", "a whole number above 0")
    if not mapping(mapping(point.yaml.get("runtime_settings")).get("runtime")):
        yield _of(point, "point-key", "runtime_settings.runtime is missing", "the three seeds")


def _division(point: Point) -> Iterator[Finding]:
    value = point.yaml.get("division")
    if value is not None and str(value).lower() not in limits()["divisions"]:
        yield _of(point, "division", f"{value}", ", ".join(limits()["divisions"]))


def _dataset_type(point: Point) -> Iterator[Finding]:
    value, known = point.yaml.get("dataset_type"), limits()["dataset_types"]
    if value is not None and value not in known:
        yield _of(point, "dataset-type", f"{value}", ", ".join(known))


def _dataset(point: Point, name: str) -> Iterator[Finding]:
    """Checks the key that determines how many requests the run must send."""
    model, value = models().get(name), point.yaml.get("dataset")
    if model is None or value in (None, model.dataset):
        return
    if {str(value), model.dataset} & least_queries().keys():
        yield _of(point, "dataset", f"dataset: {value}", model.dataset)


def _load_pattern(point: Point) -> Iterator[Finding]:
    kind = "dedicated" if point.offline == DEDICATED else "point"
    known = limits()["load_patterns"][kind]
    if point.pattern not in known:
        yield _of(point, "load-pattern", point.pattern, ", ".join(known))


def _minimum(point: Point, regions: Regions | None) -> Iterator[Finding]:
    """Checks min_duration_ms, which MLCommons' checker ignores."""
    settings = mapping(point.yaml.get("runtime_settings"))
    if "min_duration_ms" not in settings or regions is None:
        return
    agentic = point.pattern == "agentic_inference"
    least_ms = 1000 * regions.least_s(point.concurrency, agentic=agentic)
    value = number(settings["min_duration_ms"])
    if value is None or (value < least_ms and not agentic):
        actual = f"min_duration_ms: {settings['min_duration_ms']}"
        yield _of(point, "min-duration", actual, f"at least {least_ms:.0f}")


_COUNTS = ("requests_issued", "requests_completed", "concurrency")


def _warm_up(point: Point) -> Iterator[Finding]:
    block = point.yaml.get("warmup")
    if block is None:
        return
    warm_up = mapping(block)
    if not str(warm_up.get("data_source") or ""):
        yield _of(point, "warm-up", "data_source is missing", "the data, e.g. none")
    duration_s = number(warm_up.get("duration_s"))
    most_s = limits()["most_warm_up_s"]
    if duration_s is None or not 0 <= duration_s <= most_s:
        actual = f"duration_s: {warm_up.get('duration_s')}"
        yield _of(point, "warm-up", actual, f"0 to {most_s}")
    counts = {key: whole(warm_up.get(key)) for key in _COUNTS}
    for key, count in counts.items():
        if count is None or count < 0:
            yield _of(point, "warm-up", f"{key}: {warm_up.get(key)}", "a whole number")
    yield from _warm_up_counts(point, warm_up, counts)


def _warm_up_counts(
    point: Point, warm_up: dict[str, Any], counts: dict[str, int | None]
) -> Iterator[Finding]:
    issued, completed, in_flight = (counts[key] or 0 for key in _COUNTS)
    if completed > issued:
        actual = f"{completed:,} completed, {issued:,} issued"
        yield _of(point, "warm-up", actual, "at most the issued requests")
    if not (issued or completed or number(warm_up.get("duration_s"))):
        return  # the run had no warm-up
    if in_flight == 0:
        yield _of(point, "warm-up", "concurrency: 0", "the concurrency of the warm-up")
    if warm_up.get("logs_retained") is not True:
        actual = f"logs_retained: {warm_up.get('logs_retained')}"
        yield _of(point, "warm-up", actual, "true: reviewers may ask for the logs")
    salted = mapping(mapping(point.yaml.get("runtime_settings")).get("warmup")).get("salt")
    same = str(point.yaml.get("dataset") or point.yaml.get("dataset_name") or "")
    if same and same in str(warm_up.get("data_source")) and salted is not True:
        actual = f"samples of {same} without salt"
        yield _of(point, "warm-up", actual, "other data, or salt in every prompt")


def _seeds(point: Point) -> Iterator[Finding]:
    text = point.yaml.get("target_cohort")
    cohort = cohort_or_none(text)
    if text is not None and cohort is None:
        yield _of(point, "cohort", f"{text}", "e.g. 2026-10-C1")
    name = point.yaml.get("seed_set")
    if name is None or cohort is None:
        return
    known = [one for one in adoptable(cohort) if one.id == str(name)]
    if not known:
        allowed = ", ".join(f"{one.id} of {one.cohort}" for one in adoptable(cohort)) or "none yet"
        yield _of(point, "seed-set", f"{name} for {cohort}", allowed)
        return
    runtime = mapping(mapping(point.yaml.get("runtime_settings")).get("runtime"))
    for key in SEEDS:
        if not any(runtime.get(key) == one.seeds[key] for one in known):
            yield _of(point, "seeds", f"{key}: {runtime.get(key)}", str(known[0].seeds[key]))


def _steady(point: Point) -> Iterator[Finding]:
    block = mapping(point.yaml.get("steady_state"))
    if not block:
        return  # another rule reports a missing key
    words = limits()["steady"]
    status, verdict = block.get("status"), block.get("verdict")
    if status not in words["status"]:
        yield _of(point, "steady-state", f"status: {status}", ", ".join(words["status"]))
    elif status != words["official"]:
        actual = f"status: {status}, so the whole run counts"
        yield _of(point, "steady-state", actual, words["official"])
    if verdict is not None and verdict not in words["verdict"]:
        yield _of(point, "steady-state", f"verdict: {verdict}", ", ".join(words["verdict"]))
    elif verdict not in (None, words["official_verdict"]):
        actual = f"verdict: {verdict} with status: {status}"
        yield _of(point, "steady-state", actual, words["official_verdict"])
    states = mapping(block.get("state"))
    for metric, state in states.items():
        if state != "Plateau":
            yield _of(point, "steady-state", f"{metric}: {state}", "Plateau")
    yield from _window(point, mapping(block.get("window")))


_MOST_RATE = 1.5
"""The window's rate may exceed the rate of the whole run by at most this factor, because the whole run also includes
its slow start and end.
"""


_WINDOW = ("super_pass_start", "super_pass_end", "super_pass_size", "n_samples", "duration_s")


def _window(point: Point, window: dict[str, Any]) -> Iterator[Finding]:
    """Checks that the window lies within the run."""
    for key, value in window.items():
        read = number if key == "duration_s" else whole
        if key in _WINDOW and value is not None and read(value) is None:
            yield _of(point, "steady-state", f"window.{key}: {value!r}", "a number")
    first, last = (whole(window.get(f"super_pass_{end}")) for end in ("start", "end"))
    least = limits()["least_window_passes"]
    if first is not None and last is not None:
        passes = last - first + 1
        if passes < least:
            yield _of(point, "steady-state", f"a window of {passes} passes", f"at least {least}")
        yield from _window_passes(point, window, passes)
    duration_s, run_ns = number(window.get("duration_s")), number(point.summary.get("duration_ns"))
    if duration_s is not None and run_ns is not None and duration_s > run_ns / 1e9:
        actual = f"a window of {duration_s:g} s in a run of {run_ns / 1e9:g} s"
        yield _of(point, "steady-state", actual, "a window within the run")
    samples, completed = (
        number(window.get("n_samples")),
        number(point.summary.get("n_samples_completed")),
    )
    if duration_s and run_ns and samples and completed:
        rates = samples / duration_s, completed / (run_ns / 1e9)
        if not 1 / _MOST_RATE <= rates[0] / rates[1] <= _MOST_RATE:
            actual = f"{rates[0]:.3g} samples/s in the window, {rates[1]:.3g} in the run"
            yield _of(point, "steady-state", actual, "about the same rate")


def _window_passes(point: Point, window: dict[str, Any], passes: int) -> Iterator[Finding]:
    size, samples = (whole(window.get(key)) for key in ("super_pass_size", "n_samples"))
    issued = whole(point.summary.get("n_samples_issued"))
    last = whole(window.get("super_pass_end")) or 0
    if samples is not None and issued is not None and samples > issued:
        actual = f"{samples:,} samples in the window, {issued:,} issued"
        yield _of(point, "steady-state", actual, "a window within the run")
    if size and samples is not None and samples > size * passes:
        actual = f"{samples:,} samples in {passes} passes of {size:,}"
        yield _of(point, "steady-state", actual, "at most the passes' samples")
    if size and issued is not None and last * size > issued + size:
        actual = f"pass {last} of {size:,} samples in a run of {issued:,}"
        yield _of(point, "steady-state", actual, "a window within the run")


def _region(point: Point, regions: Regions | None) -> Iterator[Finding]:
    value = point.yaml.get("region")
    if value is None:
        return
    if value not in limits()["regions"]:
        yield _of(point, "region", f"{value}", ", ".join(limits()["regions"]))
    elif regions is not None and value != "submitters_choice":
        allowed = {*regions.covered(point.concurrency), regions.of(point.concurrency)}
        if value not in allowed:
            expected = ", ".join(sorted(filter(None, allowed)))
            yield _of(point, "region", f"{value}", expected or "no region")


def _drafter(point: Point, model: str) -> Iterator[Finding]:
    used = mapping(point.yaml.get("speculative_decoding"))
    if not used:
        return
    known = [one for one in drafters(model) if one.checksum == used.get("weight_checksum")]
    if not known:
        actual = str(used.get("model_id") or used.get("weight_checksum") or "a drafter")
        allowed = ", ".join(one.model for one in drafters(model)) or f"none for {model}"
        yield _of(point, "drafter", actual, allowed)
        return
    cohort = cohort_or_none(point.yaml.get("target_cohort"))
    if cohort is not None and cohort < known[0].earliest():
        yield _of(point, "drafter", f"for {cohort}", f"{known[0].earliest()} or later")
