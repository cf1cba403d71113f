"""Token times of the runs of a search, as columns of its table."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypedDict

from harness.results.pages.tables import Cell, Column

_TIMES = (("ttft", "TTFT"), ("tpot", "TPOT"))
_PERCENTILES = ("p50", "p99")


class PointTimes(TypedDict):
    """Token times of one run; None without streams."""

    ttft_p50_ns: int | None
    ttft_p99_ns: int | None
    tpot_p50_ns: int | None
    tpot_p99_ns: int | None


def times_of(result: Mapping[str, Any]) -> PointTimes:
    """Returns the times of a run. result: the content of result.json."""
    tokens = result.get("tokens") or {}
    ttft, tpot = (tokens.get(f"{time}_ns") or {} for time, _ in _TIMES)
    return {
        "ttft_p50_ns": ttft.get("p50"),
        "ttft_p99_ns": ttft.get("p99"),
        "tpot_p50_ns": tpot.get("p50"),
        "tpot_p99_ns": tpot.get("p99"),
    }


def has_times(points: Sequence[Mapping[str, Any]]) -> bool:
    """Returns whether a point has token times. points: as in peak.json or sweep.json."""
    return any(point.get(field) is not None for point in points for _, field in fields())


def fields() -> Iterator[tuple[str, str]]:
    """Yields the name that readers see and the field of each time."""
    for time, name in _TIMES:
        for percentile in _PERCENTILES:
            yield f"{name} {percentile}", f"{time}_{percentile}_ns"


def columns_of(
    points: Sequence[Mapping[str, Any]],
) -> tuple[list[Column], Callable[[Mapping[str, Any]], list[Cell]]]:
    """Returns the columns of the times, and a function that returns the cells of a point.

    Without token times, the only column is the batch, which a server of tokens forms itself.
    """
    if has_times(points):
        heads = [Column(name, "ns") for name, _ in fields()]
        return heads, lambda point: [point.get(field) for _, field in fields()]
    return [Column("batch", "samples")], lambda point: [point["mean_batch"]]
