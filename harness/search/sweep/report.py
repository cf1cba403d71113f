"""Prints the table of a sweep from the content of sweep.json."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.core.units import show_percent, show_rate
from harness.results.pages.tables import Cell, Column, aligned, columns
from harness.search.sweep.points import LEAST_FOR_KNEE


def lines(content: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """The table from the content of sweep.json."""
    config = content["config"]
    words = [config["scenario"], config["backend"], content["model"], content["slo"] or ""]
    yield f"SWEEP  {'  '.join(map(str, words))}"
    yield ""
    rows = [[*numbers(point), _verdict(point, content)] for point in content["points"]]
    yield from aligned([*heads(content), Column("verdict")], rows)
    yield ""
    yield from _marks(content)
    yield f"{'results':<12}{folder}"


def scale(content: Mapping[str, Any]) -> tuple[str, str]:
    """The name of the rate that is 100 %, and its source. A rate from --peak is not called the peak,
    because no run showed that it is VALID.
    """
    if content["peak_is_measured"]:
        return "peak", "the highest rate that the search found VALID, 100 % here"
    return "100 %", "the rate given with --peak"


def heads(content: Mapping[str, Any]) -> list[Column]:
    share = "of peak" if content["peak_is_measured"] else "share"
    return columns(
        f"offered/s [samples/s] | {share} [share] | achieved/s [samples/s] | p50 [ns] | p90 [ns]"
        "| p99 [ns] | batch [samples] | late [count]"
    )


def numbers(point: Mapping[str, Any]) -> list[Cell]:
    """The cells of one point in `heads`."""
    share = point["share"]
    names = ("completed_per_s", "p50_ns", "p90_ns", "p99_ns", "mean_batch", "late")
    shown_share = None if share is None else show_percent(share)
    return [point["rate_per_s"], shown_share, *(point[name] for name in names)]


def _verdict(point: Mapping[str, Any], content: Mapping[str, Any]) -> str:
    knee = "  <- knee" if point["rate_per_s"] == content["knee"] else ""
    doubts = f"  doubts: {' '.join(point['doubts'])}" if point["doubts"] else ""
    return f"{point['verdict']}{knee}{doubts}"


def _marks(content: Mapping[str, Any]) -> Iterator[str]:
    peak, highest, knee = (content[name] for name in ("peak", "highest_valid", "knee"))
    if knee is not None:
        yield f"{'knee':<12}{show_rate(knee)} queries/s: most throughput for its mean latency"
    elif content["points"]:
        valid = sum(point["verdict"] == "VALID" for point in content["points"])
        yield f"{'knee':<12}none: it takes {LEAST_FOR_KNEE} VALID points, there are {valid}"
    if peak is not None:
        name, about = scale(content)
        yield f"{name:<12}{show_rate(peak)} queries/s: {about}"
    if highest is not None:
        yield f"{'valid':<12}{show_rate(highest)} queries/s: the highest offered that was VALID"
