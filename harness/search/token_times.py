"""Adds columns with token times to a search's table."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from harness.core.config.parse import parse_slos
from harness.results.evidence.stages import reported_percentile
from harness.results.pages.tables import Cell, Column

_NAMES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL"}
_PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
"""Percentiles of token times that a result contains."""


FIELDS = tuple(f"{time}_{percentile}_ns" for time in _NAMES for percentile in _PERCENTILES)
"""Keys of `token_times` in peak.json and sweep.json."""


def times_of(result: Mapping[str, Any]) -> dict[str, int] | None:
    """Returns a run's known token times by field; None if the run has no streams. result: the content of result.json."""
    tokens = result.get("tokens") or {}
    found = {
        f"{time}_{percentile}_ns": value_ns
        for time in _NAMES
        for percentile, value_ns in (tokens.get(f"{time}_ns") or {}).items()
    }
    return {field: found[field] for field in FIELDS if field in found} or None


def time_ns(point: Mapping[str, Any], field: str) -> int | None:
    """Returns one time from a point in peak.json or sweep.json; None if unknown."""
    return (point.get("token_times") or {}).get(field)


def has_times(points: Sequence[Mapping[str, Any]]) -> bool:
    """Returns whether any point contains token times. points: as in peak.json or sweep.json."""
    return any(point.get("token_times") for point in points)


def fields(slo: str | None = None) -> Iterator[tuple[str, str]]:
    """Yields each time's displayed name and field: p50, and the percentile that the SLO judges (p99 if no SLO judges
    this time).

    slo: as in peak.json or sweep.json.
    """
    slos = parse_slos(slo or "")
    for time, name in _NAMES.items():
        judged = max((one.percentile for one in slos if one.of == time), default=None)
        if judged is None and time == "itl":
            continue
        for percentile in dict.fromkeys(("p50", reported_percentile(judged or 1.0, _PERCENTILES))):
            yield f"{name} {percentile}", f"{time}_{percentile}_ns"


def columns_of(
    points: Sequence[Mapping[str, Any]], slo: str | None
) -> tuple[list[Column], Callable[[Mapping[str, Any]], list[Cell]]]:
    """Returns the columns for the times, and a function that returns a point's cells.

    If no point has token times, the only column is the batch size. If a point has token times, this column is left out,
    because a token server forms batches itself.
    """
    if has_times(points):
        heads = [Column(name, "ns") for name, _ in fields(slo)]
        return heads, lambda point: [time_ns(point, field) for _, field in fields(slo)]
    return [Column("batch", "samples")], lambda point: [point["mean_batch"]]
