"""Finds the smallest batch size that is not worth doubling, from noisy throughputs."""

from collections.abc import Mapping
from math import hypot
from types import MappingProxyType
from typing import NamedTuple

GAIN = 0.05
"""A batch size is worth doubling if the doubling increases the throughput by at least this share.

Source: XSP (Li et al., IPDPS 2020), section III-D.
"""

UNCERTAINTIES = 2
"""Two throughputs count as different only if they are at least this many standard errors apart."""


class Optimum(NamedTuple):
    batch: int | None
    """Batch size; None if every doubling gained more than GAIN."""
    is_unsure: bool = False
    """Whether noise may hide the gain from doubling this batch, and no larger batch settles the question."""


def optimum(
    throughput: Mapping[int, float], uncertainty: Mapping[int, float] = MappingProxyType({})
) -> Optimum:
    """Returns the smallest batch size for which doubling gains at most GAIN. A step smaller than doubling is ignored.

    throughput: samples/s by batch size. uncertainty: standard error of the throughput by batch size, as a share. One
    slow run does not end the search. If noise leaves the gain from one doubling undecided, the search continues when a
    larger batch gains significantly more.
    """

    def bounds(batch: int, larger: int) -> tuple[float, float]:
        noise = UNCERTAINTIES * hypot(uncertainty.get(batch, 0.0), uncertainty.get(larger, 0.0))
        return throughput[larger] * (1 - noise), throughput[larger] * (1 + noise)

    for batch in sorted(throughput):
        larger = sorted(b for b in throughput if b >= 2 * batch)
        worth_it = throughput[batch] * (1 + GAIN)
        if not larger or bounds(batch, larger[0])[0] > worth_it:
            continue
        is_unsure = bounds(batch, larger[0])[1] > worth_it
        if is_unsure and any(bounds(batch, b)[0] > worth_it for b in larger[1:]):
            continue
        return Optimum(batch, is_unsure)
    return Optimum(None)
