"""Compares the results of different points. The same requests must have the same lengths, and two runs never produce
the same times.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from harness.core.numbers import number
from harness.core.units import show_percent
from harness.submit.endpoints.rules.findings import Finding
from harness.submit.endpoints.rules.submission import ACCURACY, SUMMARY, Curve, Point, mapping

_MOST_INPUT, _MOST_OUTPUT = 0.001, 0.1
"""A finding reports a point whose mean input or output length differs from the curve's median by more than these
shares. Every point sends whole passes of the same prompts, but the answers vary if the server's numerics depend on the
batch.
"""

_TIMES = (("duration_ns",), ("ttft", "total"), ("latency", "total"))
_SAME = 2
"""Two runs that share this many equal sums in ns count as copies, because such matches do not arise by chance."""


def same_lengths(curve: Curve) -> Iterator[Finding]:
    """Checks that all points sent the same prompts and received answers of similar length."""
    if curve.is_agentic:
        return
    for name, most in (
        ("input_sequence_lengths", _MOST_INPUT),
        ("output_sequence_lengths", _MOST_OUTPUT),
    ):
        means = {p: mean for p in curve.points if (mean := _mean(p, name))}
        if len(means) < 3:  # because either of only two points may be the wrong one
            continue
        middle = sorted(means.values())[len(means) // 2]
        for point, mean in means.items():
            if abs(mean / middle - 1) > most:
                actual = f"a mean of {mean:.6g} in {name}"
                expected = f"within {show_percent(most, 1)} of {middle:.6g}, as in the other points"
                yield Finding("points-differ", point.file(SUMMARY), actual, expected)


def _mean(point: Point, name: str) -> float | None:
    return number(mapping(point.summary.get(name)).get("avg"))


def copied(curves: Sequence[Curve]) -> Iterator[Finding]:
    """Searches the whole submission for two results that come from the same run."""
    points = [point for one in curves for point in one.points]
    for position, point in enumerate(points):
        for earlier in points[:position]:
            yield from _same_times(earlier, point)
    yield from _same_scores(points)


def _same_times(earlier: Point, point: Point) -> Iterator[Finding]:
    pairs = [(_at(earlier.summary, keys), _at(point.summary, keys)) for keys in _TIMES]
    same = sum(one is not None and one == other for one, other in pairs)
    if same >= _SAME:
        actual = f"the times of {earlier.path}"
        yield Finding("copied-result", point.file(SUMMARY), actual, "times of a separate run")


def _at(content: dict[str, Any], keys: Sequence[str]) -> float | None:
    found: object = content
    for key in keys:
        found = mapping(found).get(key)
    return number(found) or None


def _same_scores(points: Sequence[Point]) -> Iterator[Finding]:
    """Compares the scores, and the duration that the client writes next to the scores. Scores alone may match by
    chance.
    """
    seen: dict[str, Point] = {}
    for point in points:
        for entry in point.scores:
            if number(entry.get("duration_s")) is None:
                continue
            text = json.dumps(entry, sort_keys=True, default=str)
            earlier = seen.setdefault(text, point)
            if earlier is not point:
                actual = f"the score of {earlier.path}, of the same duration"
                expected = "the score of a separate run"
                yield Finding("copied-result", point.file(ACCURACY), actual, expected)
