"""The machine's peaks: the highest rate of any product or convolution, and of a large copy. Pure."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from harness.machine.characterise.measured import Measured, of

ARITHMETIC = ("gemm", "convolution")
COPY, COPY_BYTES = "memory-copy", 2**26
"""Benchmark and size of the copy that no cache holds."""


class Peak(NamedTuple):
    per_s: float
    """FLOP/s, or B/s that are read or written."""
    point: str
    """Name of the point that reached it."""


def arithmetic(points: Sequence[Measured]) -> Mapping[tuple[str, int], Peak]:
    """(precision, threads) -> the highest rate of any call: noise only slows."""
    best: dict[tuple[str, int], Peak] = {}
    for point in points:
        if point.benchmark in ARITHMETIC and (per_s := point.peak_per_s):
            key = str(point.settings["precision"]), point.threads
            if key not in best or per_s > best[key].per_s:
                best[key] = Peak(per_s, point.name)
    return best


def memory(points: Sequence[Measured]) -> Mapping[int, Peak]:
    """Threads -> the rate of a copy of COPY_BYTES: a byte that is copied is read and written."""
    return {
        point.threads: Peak(2 * per_s, point.name)
        for point in of(points, COPY)
        if point.settings.get("bytes") == COPY_BYTES
        and point.settings.get("state") == "warm"
        and (per_s := point.peak_per_s)
    }
