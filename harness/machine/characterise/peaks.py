"""Finds the machine's peaks: the highest rate of any product or convolution, and the rate of a large copy. Has no side
effects.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from harness.machine.characterise.measured import Measured, of

ARITHMETIC = ("gemm", "convolution")
COPY, COPY_BYTES = "memory-copy", 2**26
"""Benchmark and size of the copy whose rate is the memory peak; a copy of this size does not fit into a cache."""


class Peak(NamedTuple):
    per_s: float
    """The peak in FLOP/s, or in bytes read and written per second."""
    point: str
    """Name of the point that reached the peak."""


def arithmetic(points: Sequence[Measured]) -> Mapping[tuple[str, int], Peak]:
    """Returns the highest rate of any call, per precision and number of threads. Noise can only slow calls down."""
    best: dict[tuple[str, int], Peak] = {}
    for point in points:
        if point.benchmark in ARITHMETIC and (per_s := point.peak_per_s):
            key = str(point.settings["precision"]), point.threads
            if key not in best or per_s > best[key].per_s:
                best[key] = Peak(per_s, point.name)
    return best


def memory(points: Sequence[Measured]) -> Mapping[int, Peak]:
    """Returns the rate of a COPY_BYTES copy for each number of threads.

    Counts each byte twice, because a copy reads it and writes it.
    """
    return {
        point.threads: Peak(2 * per_s, point.name)
        for point in of(points, COPY)
        if point.settings.get("bytes") == COPY_BYTES
        and point.settings.get("state") == "warm"
        and (per_s := point.peak_per_s)
    }
