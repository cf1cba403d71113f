"""Extracts a point from each run of a sweep, and finds the knee of the curve through them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness.run.study import other_reason


class Point(NamedTuple):
    """One run. A number that neither LoadGen nor the journal had is None."""

    rate_per_s: float
    """The offered rate, queries/s."""
    share: float | None
    """The offered rate as a share of the peak, None where no peak is known."""
    scheduled_per_s: float | None
    """queries/s in the schedule that the seed produced."""
    completed_per_s: float | None
    """queries/s."""
    p50_ns: float | None
    p90_ns: float | None
    p99_ns: float | None
    mean_ns: float | None
    mean_batch: float | None
    """Samples."""
    queries: int
    late: int | None
    """Queries above the SLO's bound."""
    verdict: str
    reasons: tuple[str, ...]
    doubts: tuple[str, ...]
    folder: str
    """Relative to the sweep's folder."""


def point_of(
    result: Mapping[str, Any], folder: Path, below: Path, peak: float | None
) -> Point | None:
    """None where the run failed for a reason that is not its rate."""
    if other_reason(result) is not None or not result["queries"]:
        return None
    rates, latency = result["throughput_per_s"], result["latency_ns"] or {}
    return Point(
        rate_per_s=rates["asked"],
        share=rates["asked"] / peak if peak else None,
        scheduled_per_s=rates["scheduled"],
        completed_per_s=rates["completed"],
        p50_ns=latency.get("p50"),
        p90_ns=latency.get("p90"),
        p99_ns=latency.get("p99"),
        mean_ns=latency.get("mean"),
        mean_batch=result["queries"]["mean_batch"],
        queries=result["queries"]["planned"],
        late=result["queries"]["late"],
        verdict=result["verdict"],
        reasons=tuple(r["code"] for r in result["reasons"]),
        doubts=tuple(d["code"] for d in result["doubts"]),
        folder=str(folder.relative_to(below)),
    )


LEAST_FOR_KNEE = 3


def knee(points: Sequence[Point]) -> float | None:
    """The offered rate beyond which latency grows faster than throughput: the VALID point at which
    completed queries/s divided by mean latency is largest; None with fewer than LEAST_FOR_KNEE.

    Source: Kleinrock, Power and deterministic rules of thumb (1979): this ratio, the power, is
    largest where a line from the origin touches the curve of latency over throughput.
    """
    known = [p for p in points if p.verdict == "VALID" and p.completed_per_s and p.mean_ns]
    if len(known) < LEAST_FOR_KNEE:
        return None
    best = max(known, key=lambda p: (p.completed_per_s or 0.0) / (p.mean_ns or 1.0))
    return best.rate_per_s
