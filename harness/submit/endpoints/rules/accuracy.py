"""Checks accuracy results: the data set, its size, every metric, and the gates for agentic benchmarks."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.core.numbers import number, whole
from harness.submit.endpoints.rules.curve import accuracy_points
from harness.submit.endpoints.rules.findings import Finding
from harness.submit.endpoints.rules.submission import ACCURACY, SUMMARY, Curve, Point, mapping
from harness.submit.endpoints.tables import Model, models

_SCALE = 100.0


def accuracy(curve: Curve) -> Iterator[Finding]:
    model = models().get(curve.model)
    if model is None:
        for point in accuracy_points(curve):
            yield from _is_scored(point)
        return
    if model.is_agentic:
        yield from _agentic(curve, model)
        return
    for point in accuracy_points(curve):
        yield from _is_scored(point)
        yield from _sets(point, model)
        yield from _metrics(point, model)


def _of(point: Point, rule: str, actual: str, expected: str) -> Finding:
    return Finding(rule, point.file(ACCURACY), actual, expected)


def _scores(entry: Mapping[str, Any]) -> dict[str, float]:
    """Maps each metric to its value. A single number is stored under the name `score`."""
    raw = entry.get("score")
    rows = raw.items() if isinstance(raw, dict) else [("score", raw)]
    found: dict[str, float] = {}
    for key, value in rows:
        try:
            found[str(key).lower()] = float(str(value))
        except (TypeError, ValueError):
            continue
    return found


def _is_scored(point: Point) -> Iterator[Finding]:
    for entry in point.scores:
        name = entry.get("dataset_name")
        if not str(name or "").strip():
            yield _of(point, "accuracy-set", "dataset_name is missing", "the data set")
        if not _scores(entry):
            yield _of(
                point, "accuracy-missing", f"score of {name}: {entry.get('score')}", "a score"
            )
        if entry.get("complete") is False:
            yield _of(point, "accuracy-missing", f"{name}: complete: false", "a complete score")
    names = [str(entry.get("dataset_name")) for entry in point.scores]
    for name in sorted({one for one in names if names.count(one) > 1}):
        yield _of(point, "accuracy-set", f"{names.count(name)} scores of {name}", "one score")


def _sets(point: Point, model: Model) -> Iterator[Finding]:
    total = 0
    for entry in point.scores:
        name = str(entry.get("dataset_name") or "")
        if name.partition("::")[0] not in model.sets:
            yield _of(point, "accuracy-set", f"dataset_name: {name}", ", ".join(model.sets))
        samples = whole(entry.get("unit_samples", entry.get("num_samples")))
        repeats = whole(entry.get("num_repeats", entry.get("n_repeats", 1)))
        total += (samples or 0) * max(repeats or 1, 1)
    if total < model.accuracy_samples:
        expected = f"at least {model.accuracy_samples:,}"
        yield _of(point, "accuracy-samples", f"{total:,} scored answers", expected)
    present = {str(entry.get("dataset_name")).partition("::")[0] for entry in point.scores}
    for name in model.parts:
        if name not in present:
            yield _of(point, "accuracy-set", f"no score of {name}", ", ".join(model.parts))


def _metrics(point: Point, model: Model) -> Iterator[Finding]:
    found = _combined(point.scores)
    if set(found) == {"score"} and len(model.least) == 1:
        found = {next(iter(model.least)): found["score"]}
    for metric in (*model.least, *model.ranges):
        value = found.get(metric)
        if value is None:
            yield _of(point, "accuracy-missing", f"no {metric}", "every metric of the benchmark")
            continue
        low, high = model.ranges.get(metric, (model.least.get(metric, 0.0), float("inf")))
        value = value * _SCALE if value <= 1.0 < low else value
        high = (
            min(high, _SCALE) if metric in model.least else high
        )  # because a share cannot exceed the scale
        if not low <= value <= high:
            is_share = metric in model.least
            expected = f"{low:.4f} to 100" if is_share else f"{low:.1f} to {high:.1f}"
            yield _of(point, "accuracy-target", f"{metric}: {value:g}", expected)


def _combined(entries: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns each metric's mean over the data sets, weighted by their numbers of samples."""
    sums: dict[str, list[float]] = {}
    for entry in entries:
        weight = number(entry.get("unit_samples", entry.get("num_samples"))) or 1.0
        for metric, value in _scores(entry).items():
            row = sums.setdefault(metric, [0.0, 0.0])
            row[0] += value * weight
            row[1] += weight
    return {metric: total / weight for metric, (total, weight) in sums.items()}


def _agentic(curve: Curve, model: Model) -> Iterator[Finding]:
    for point in curve.points:
        yield from _inline(point, model)
        yield from _per_turn(point, model)
    values = [
        _fraction(value)
        for point in accuracy_points(curve)
        for entry in point.scores
        if str(entry.get("dataset_name")).partition("::")[0] in model.sets
        for value in _scores(entry).values()
    ]
    for point in accuracy_points(curve):
        yield from _is_scored(point)
        yield from _sets(point, model)
    if values and sum(values) / len(values) < model.gates["swe_bench"]:
        actual = f"a mean of {sum(values) / len(values):.4f} over {len(values)} results"
        yield Finding("accuracy-target", curve.path, actual, f"{model.gates['swe_bench']}")


def _inline(point: Point, model: Model) -> Iterator[Finding]:
    values = [_fraction(v) for entry in point.inline for v in _scores(entry).values()]
    if not values:
        yield _of(point, "accuracy-missing", "no inline score", "the score of the run's turns")
    elif min(values) < model.gates["inline"]:
        yield _of(
            point, "accuracy-target", f"inline: {min(values):.4f}", f"{model.gates['inline']}"
        )


def _fraction(value: float) -> float:
    return value / _SCALE if value > 1.0 else value


def _per_turn(point: Point, model: Model) -> Iterator[Finding]:
    """Checks the mean answer length, which only some versions of MLCommons' client publish."""
    block = mapping(point.summary.get("output_sequence_lengths_full_run"))
    mean = number(mapping(block.get("output_sequence_lengths")).get("avg"))
    low, high = model.tokens_per_turn or (0.0, float("inf"))
    if mean is not None and not low <= mean <= high:
        actual = f"a mean of {mean:g} tokens for each turn"
        yield Finding("accuracy-target", point.file(SUMMARY), actual, f"{low:g} to {high:g}")
