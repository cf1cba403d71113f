"""The table of a sweep. Everything in it is in sweep.json and sweep.csv."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.core.units import show_ns, show_percent, show_rate
from harness.search.sweep.points import LEAST_FOR_KNEE


def lines(content: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """content: of sweep.json."""
    config = content["config"]
    words = [config["scenario"], config["backend"], content["model"], content["slo"] or ""]
    yield f"SWEEP  {'  '.join(map(str, words))}"
    yield ""
    of = "of peak" if content["peak_is_measured"] else "share"
    yield (
        f"{'offered/s':>12}{of:>9}{'achieved/s':>12}{'p50':>11}{'p90':>11}{'p99':>11}"
        f"{'batch':>8}{'late':>9}  verdict"
    )
    yield from (_row(point, content) for point in content["points"])
    yield ""
    yield from _marks(content)
    yield f"{'results':<12}{folder}"


def scale(content: Mapping[str, Any]) -> tuple[str, str]:
    """The name of the rate that shares are of, and where it is from. A mere scale is no peak: nothing
    says that a run at that rate would be VALID.
    """
    if content["peak_is_measured"]:
        return "peak", "the highest rate that the search found VALID, 100 % here"
    return "100 %", "the rate given with --peak"


def _row(point: Mapping[str, Any], content: Mapping[str, Any]) -> str:
    share = show_percent(point["share"]) if point["share"] is not None else "-"
    achieved = point["completed_per_s"]
    rate = show_rate(achieved) if achieved is not None else "-"
    times = "".join(f"{_time(point[name]):>11}" for name in ("p50_ns", "p90_ns", "p99_ns"))
    batch = f"{point['mean_batch']:.1f}" if point["mean_batch"] is not None else "-"
    late = f"{point['late']:,}" if point["late"] is not None else "-"
    mark = "  <- knee" if point["rate_per_s"] == content["knee"] else ""
    doubts = f"  doubts: {' '.join(point['doubts'])}" if point["doubts"] else ""
    return (
        f"{show_rate(point['rate_per_s']):>12}{share:>9}{rate:>12}{times}{batch:>8}{late:>9}"
        f"  {point['verdict']}{mark}{doubts}"
    )


def _time(ns: float | None) -> str:
    return show_ns(ns) if ns is not None else "-"


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
