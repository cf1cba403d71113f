"""Checks that the numbers of each series in result_summary.json are consistent: sums, means, percentiles and the
histogram.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from harness.core.numbers import number, whole
from harness.submit.endpoints.rules.findings import Finding
from harness.submit.endpoints.rules.submission import SUMMARY, Point, mapping

LATENCY, LENGTHS = "latency", "output_sequence_lengths"
SERIES = ("ttft", "tpot", LATENCY, LENGTHS)
_KEYS = ("total", "min", "max", "avg")
_EDGE = 1e-6
"""Two bucket edges count as equal if their relative difference does not exceed this value."""

_RATE = 1e-3
"""A rate counts as consistent with the two numbers that determine it if the relative difference does not exceed this
value.
"""


class _Bucket(NamedTuple):
    low: float
    high: float
    held: int

    def holds(self, value: float) -> bool:
        return self.low * (1 - _EDGE) - _EDGE <= value <= self.high * (1 + _EDGE) + _EDGE


def distributions(point: Point) -> Iterator[Finding]:
    """Yields a finding for each pair of numbers that cannot come from the same samples."""
    if not point.summary:
        return
    completed = whole(point.summary.get("n_samples_completed"))
    for name in (LATENCY, LENGTHS):
        block = mapping(point.summary.get(name))
        missing = [key for key in _KEYS if number(block.get(key)) is None]
        if missing:
            yield _of(point, "result-key", f"{name}.{missing[0]} is missing", "a number")
    for name in (*SERIES, "input_sequence_lengths"):
        block = mapping(point.summary.get(name))
        if problem := _sum_problem(name, block, completed) or _histogram_problem(name, block):
            yield _of(point, "numbers-disagree", problem, "numbers of the same samples")
    yield from _rates(point)
    yield from _reasons(point, completed)


def _of(point: Point, rule: str, actual: str, expected: str) -> Finding:
    return Finding(rule, point.file(SUMMARY), actual, expected)


def _count(block: dict[str, Any]) -> float | None:
    """Returns the number of samples, computed from the total and the mean."""
    total, mean = number(block.get("total")), number(block.get("avg"))
    return total / mean if total is not None and mean else None


def _sum_problem(name: str, block: dict[str, Any], completed: int | None) -> str:
    count = _count(block)
    if count is None or completed is None:
        return ""
    is_of_all = name == LATENCY
    if count > completed + 0.5 or (is_of_all and count < completed - 0.5):
        return f"{name}: total / avg gives {count:,.1f} samples, but {completed:,} requests were completed"
    if abs(count - round(count)) > max(0.01, 1e-9 * count):
        return f"{name}: total / avg gives {count:,.3f}, which is not a whole number of samples"
    return ""


def _histogram_problem(name: str, block: dict[str, Any]) -> str:
    """Compares the histogram with the block's count, mean and percentiles. The client counts values below 1 as if they
    were 1.
    """
    buckets, least = _buckets(block), number(block.get("min"))
    if not buckets or least is None:
        return ""
    held, count = sum(one.held for one in buckets), _count(block)
    if not held or (count is not None and abs(held - count) > 0.5):
        return (
            f"the histogram of {name} has {held:,} samples, but total / avg gives {count or 0:,.0f}"
        )
    low, high = (
        sum(one.held * edge for one, edge in zip(buckets, edges, strict=True)) / held
        for edges in ([one.low for one in buckets], [one.high for one in buckets])
    )
    mean = number(block.get("avg"))
    is_clipped = least < buckets[0].low * (1 - _EDGE)
    if mean is not None and not is_clipped and not low * (1 - _EDGE) <= mean <= high * (1 + _EDGE):
        return f"avg of {name} is {mean:.6g}, but its histogram allows {low:.6g} to {high:.6g}"
    return _percentile_problem(name, block, buckets, held)


def _percentile_problem(
    name: str, block: dict[str, Any], buckets: Sequence[_Bucket], held: int
) -> str:
    below = list(accumulate((b.held for b in buckets), initial=0))
    for key, value in mapping(block.get("percentiles")).items():
        found, share = number(value), _share(key)
        if found is None or share is None:
            continue
        rank = int(share * (held - 1))  # because the client rounds the rank down
        inside = [
            bucket
            for bucket, before in zip(buckets, below, strict=False)
            if before - 1 <= rank <= before + bucket.held and bucket.held
        ]
        if not any(bucket.holds(max(found, buckets[0].low)) for bucket in inside):
            low, high = inside[0].low, inside[-1].high
            return (
                f"p{key} of {name} is {found:.6g}, but its histogram allows {low:.6g} to {high:.6g}"
            )
    return ""


def _share(key: str) -> float | None:
    try:
        share = float(key) / 100
    except ValueError:
        return None
    return share if 0 <= share <= 1 else None


def _buckets(block: dict[str, Any]) -> list[_Bucket]:
    """Returns the buckets in order; [] if the histogram is missing or in an unknown format."""
    found = mapping(block.get("histogram"))
    edges, counts = found.get("buckets"), found.get("counts")
    if not isinstance(edges, list) or not isinstance(counts, list) or len(edges) != len(counts):
        return []
    made = []
    for pair, count in zip(edges, counts, strict=True):
        low, high = (number(one) for one in pair) if _is_pair(pair) else (None, None)
        held = whole(count)
        if low is None or high is None or held is None or held < 0:
            return []
        made.append(_Bucket(low, high, held))
    return sorted(made)


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2


def _rates(point: Point) -> Iterator[Finding]:
    """Compares the rates that the client computed with the counts and the duration."""
    duration_ns = number(point.summary.get("duration_ns"))
    if not duration_ns or point.pattern != "concurrency":
        return
    total = number(mapping(point.summary.get(LENGTHS)).get("total"))
    for key, amount in (("qps", number(point.summary.get("n_samples_completed"))), ("tps", total)):
        stated = number(point.summary.get(key))
        if stated is None or amount is None:
            continue
        own = amount / (duration_ns / 1e9)
        if abs(stated - own) > _RATE * own:
            actual = f"{key}: {stated:g}, but the duration gives {own:g}"
            yield _of(point, "numbers-disagree", actual, "the same rate")


def _reasons(point: Point, completed: int | None) -> Iterator[Finding]:
    counts = mapping(point.summary.get("finish_reason_counts")).values()
    ended = sum(found for one in counts if (found := whole(one)) is not None)
    if completed is not None and ended > completed:
        actual = f"{ended:,} answers ended, but {completed:,} requests were completed"
        yield _of(point, "numbers-disagree", actual, "at most the completed requests")
