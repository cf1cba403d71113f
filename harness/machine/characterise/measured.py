"""Defines a measured point of a benchmark, and computes numbers from the point's times. Has no side effects."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev
from typing import Any

from pydantic import TypeAdapter

WAITED_SHARE = 0.1
"""A point counts as disturbed if its threads waited for a processor for more than this share of its time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One point in the form in which it is stored. Sizes are in bytes, with 1 GB = 10^9 bytes."""

    benchmark: str
    settings: Mapping[str, str | int]
    work: float = 0.0
    unit: str = ""
    threads: int = 1
    repetitions_ns: tuple[float, ...] = ()
    """Median time per call in each repetition, or () if the point could not be measured.
    """
    fastest_ns: float = 0.0
    calls: int = 0
    cpu_share: float = 0.0
    waited_share: float | None = None
    facts: Mapping[str, Any]
    missing: str = ""
    """The reason why the times are missing."""
    joules: float | None = None
    """Energy per call, or None if no meter worked."""

    @property
    def name(self) -> str:
        return point_name(self.benchmark, self.settings)

    @property
    def median_ns(self) -> float | None:
        return median(self.repetitions_ns) if self.repetitions_ns else None

    @property
    def std_ns(self) -> float | None:
        """Standard deviation of the repetitions' times."""
        return stdev(self.repetitions_ns) if len(self.repetitions_ns) > 1 else None

    @property
    def variation(self) -> float | None:
        """Coefficient of variation, which is the standard deviation divided by the mean."""
        return None if self.std_ns is None else self.std_ns / fmean(self.repetitions_ns)

    @property
    def per_s(self) -> float | None:
        """Work per second at the median time."""
        return self.work / self.median_ns * 1e9 if self.work and self.median_ns else None

    @property
    def std_per_s(self) -> float | None:
        """Standard deviation of the repetitions' rates."""
        rates = [self.work / ns * 1e9 for ns in self.repetitions_ns]
        return stdev(rates) if self.work and len(rates) > 1 else None

    @property
    def peak_per_s(self) -> float | None:
        """Work per second of the fastest call; this rate is the peak, because noise can only slow calls down."""
        return self.work / self.fastest_ns * 1e9 if self.work and self.fastest_ns else None

    @property
    def is_disturbed(self) -> bool:
        return (self.waited_share or 0.0) > WAITED_SHARE


def point_name(benchmark: str, settings: Mapping[str, str | int]) -> str:
    return "/".join([benchmark, *map(str, settings.values())])


_MEASURED = TypeAdapter(Measured)


def from_json(points: Mapping[str, Any]) -> list[Measured]:
    """Reads points from a mapping of names to points, as in machine.json. Raises ValueError if an entry is not a point."""
    return [_MEASURED.validate_python(point) for point in points.values()]


def of(points: Sequence[Measured], benchmark: str) -> Iterator[Measured]:
    return (point for point in points if point.benchmark == benchmark)
