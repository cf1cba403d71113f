"""Defines the concurrency regions between C_min and C_max, and decides which accuracy result covers which region."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from harness.submit.endpoints.tables import limits

ULTRA_LOW = "low_latency"
LOW = "low_concurrency"
MEDIUM = "med_concurrency"
HIGH = "high_concurrency"
MARGIN = "margin"
REQUIRED = (ULTRA_LOW, LOW, MEDIUM, HIGH)
WORDS: Mapping[str, str] = {
    ULTRA_LOW: "ultra-low",
    LOW: "low",
    MEDIUM: "medium",
    HIGH: "high",
    MARGIN: "margin",
}


class Band(NamedTuple):
    first: int
    last: int

    def __contains__(self, concurrency: object) -> bool:
        return isinstance(concurrency, int) and self.first <= concurrency <= self.last

    def __str__(self) -> str:
        return f"{self.first}-{self.last}" if self.first <= self.last else "empty"

    @property
    def is_empty(self) -> bool:
        return self.first > self.last


class Regions(NamedTuple):
    bands: Mapping[str, Band]
    """The bands that the rules' algorithm computes. Every number of queries in flight, up to and including the margin,
    lies in exactly one band.
    """
    ultra_low: Band
    """The band that a point in the ultra-low region covers. This band ends at 32 or at an overridden C_min."""

    def of(self, concurrency: int) -> str | None:
        """Returns the region of a point; None if the point is above the margin."""
        return next((name for name, band in self.bands.items() if concurrency in band), None)

    def covered(self, concurrency: int) -> Sequence[str]:
        """Returns the required regions that a point may cover; a point in the margin covers none."""
        found = [ULTRA_LOW] if concurrency in self.ultra_low else []
        return [*found, *(name for name in REQUIRED[1:] if concurrency in self.bands[name])]

    def empty(self) -> Sequence[str]:
        return [name for name in REQUIRED if self.bands[name].is_empty]

    def least_s(self, concurrency: int, *, agentic: bool = False) -> float:
        """Returns the minimum length of the steady window, in seconds of issue time."""
        least_s: Mapping[str, float] = limits()["least_s"]
        if concurrency <= limits()["ultra_low_most"]:
            return least_s["ultra_low"]
        return least_s["agentic_above" if agentic else "above"]


def regions(c_max: int, c_min: int, *, overridden: bool = False) -> Regions:
    """Computes the regions with the algorithm in the rules. Raises a ValueError if a limit is outside its range.

    The algorithm uses Python's `round`, which rounds halves to even numbers. overridden: whether the submitter declared
    a c_min that differs from the lowest point.
    """
    most = limits()["ultra_low_most"]
    if c_max <= most:
        raise ValueError(f"C_max is {c_max}, but must be above {most}")
    if not 1 <= c_min <= most:
        raise ValueError(f"C_min is {c_min}, but must be from 1 to {most}")
    interval = math.log2(c_max - c_min) / 3
    low, medium = (round(c_min + 2 ** (interval * n)) for n in (1, 2))
    bands = {
        ULTRA_LOW: Band(1, c_min),
        LOW: Band(c_min + 1, low),
        MEDIUM: Band(low + 1, medium),
        HIGH: Band(medium + 1, c_max),
        MARGIN: Band(c_max + 1, math.ceil(limits()["margin"] * c_max)),
    }
    return Regions(bands, Band(1, c_min if overridden else most))


def matched(options: Mapping[int, Sequence[str]], last: Iterable[int] = ()) -> Mapping[str, int]:
    """Maps each region to the concurrency whose result covers it. Covers as many regions as possible, although each
    result covers only one.

    options: for each concurrency, the regions that its result may cover. last: elected points, which cover a region
    only if no other result can.
    """
    owners: dict[str, int] = {}

    def place(concurrency: int, seen: set[str]) -> bool:
        for region in options[concurrency]:
            if region not in seen:
                seen.add(region)
                if region not in owners or place(owners[region], seen):
                    owners[region] = concurrency
                    return True
        return False

    elected = set(last)
    for concurrency in sorted(options, key=lambda one: (one in elected, one)):
        place(concurrency, set())
    return owners
