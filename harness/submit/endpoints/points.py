"""Chooses the points of a curve, and decides which points need an accuracy run."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from harness.errors import ConfigError
from harness.submit.endpoints.regions import HIGH, LOW, MEDIUM, REQUIRED, ULTRA_LOW, WORDS, Regions
from harness.submit.endpoints.request import DEDICATED, ELECTED, Request, regions_of
from harness.submit.endpoints.tables import limits


class Point(NamedTuple):
    concurrency: int
    region: str
    """Region that contains the point; '' for a dedicated Offline point."""
    is_accuracy: bool
    offline: str = ""
    least_s: float = 0.0
    """Minimum length of the steady window."""

    @property
    def name(self) -> str:
        return f"r{self.concurrency}"


class Curve(NamedTuple):
    c_max: int
    regions: Regions
    points: Sequence[Point]


def curve(request: Request, c_max: int, samples: int) -> Curve:
    """Returns the points that a submission needs. Raises a ConfigError if the rules do not allow any point.

    samples: size of the performance data set, which a dedicated Offline point sends all at once.
    """
    chosen = request.points or default_points(request, c_max)
    found = regions_of(request, c_max, chosen)
    missing = [r for r in REQUIRED if not any(r in found.covered(c) for c in chosen)]
    if missing:
        wanted = ", ".join(
            f"{WORDS[r]} {found.ultra_low if r == ULTRA_LOW else found.bands[r]}" for r in missing
        )
        raise ConfigError(f"--points has no point in these regions: {wanted}")
    outside = [c for c in chosen if found.of(c) is None]
    if outside:
        raise ConfigError(
            f"--points {outside[0]} is above the margin of C_max {c_max}, which ends at "
            f"{found.bands['margin'].last}: remove this point"
        )
    if request.offline_kind == ELECTED and c_max not in chosen:
        raise ConfigError(
            f"Offline is elected at C_max {c_max}, which is not in --points: add it, or pass --offline {DEDICATED}"
        )
    if request.offline_kind == DEDICATED and samples in chosen:
        raise ConfigError(
            f"--offline {DEDICATED} sends the {samples} samples of the data set at once, but {samples} is also in --points: "
            f"remove {samples} from --points, or pass --offline {ELECTED}"
        )
    points = list(_points(request, found, chosen, c_max, samples))
    _check_count(request, points)
    return Curve(c_max, found, points)


def _check_count(request: Request, points: Sequence[Point]) -> None:
    table = limits()["points"]
    least = table[request.offline_kind or "agentic"]
    if not least <= len(points) <= table["most"]:
        raise ConfigError(
            f"--points gives {len(points)} points, but the rules require {least} to {table['most']}"
        )


def default_points(request: Request, c_max: int) -> tuple[int, ...]:
    """Returns seven points: C_min, and two points in each other region, evenly spaced on a logarithmic scale."""
    c_min = request.c_min or 1
    bands = regions_of(request, c_max, (c_min,)).bands
    chosen = {c_min, c_max}
    for name in (LOW, MEDIUM, HIGH):
        band = bands[name]
        middle = round(math.sqrt(band.first * band.last))
        chosen |= {min(max(middle, band.first), band.last), band.last}
    spare = [c for c in (*range(c_min + 1, c_max), *range(c_min - 1, 0, -1)) if c not in chosen]
    # In a narrow region, two points may coincide, so spare points fill the gap.
    chosen |= {*spare[: max(limits()["points"][ELECTED] - len(chosen), 0)]}
    return tuple(sorted(chosen))


def _points(
    request: Request, found: Regions, chosen: Sequence[int], c_max: int, samples: int
) -> Iterator[Point]:
    scored = accuracy_points(request, found, chosen, c_max)
    for concurrency in sorted(chosen):
        offline = ELECTED if request.offline_kind == ELECTED and concurrency == c_max else ""
        region = scored.get(concurrency) or found.of(concurrency) or ""
        least_s = request.duration_s or found.least_s(concurrency, agentic=request.is_agentic)
        yield Point(concurrency, region, concurrency in scored, offline, least_s)
    if request.offline_kind == DEDICATED:
        yield Point(samples, "", True, DEDICATED)


def accuracy_points(
    request: Request, found: Regions, chosen: Sequence[int], c_max: int
) -> Mapping[int, str]:
    """Maps a concurrency to the region that its accuracy run covers. Each region uses its fastest point, so that the
    accuracy runs stay short.

    The ultra-low region uses the lowest possible point, because the higher regions may need all other points up to 32.
    """
    owners: dict[str, int] = {}
    if request.offline_kind == ELECTED:
        owners[HIGH] = c_max
    for region in (HIGH, MEDIUM, LOW):
        inside = [c for c in chosen if c in found.bands[region]]
        owners.setdefault(region, max(inside))
    free = [c for c in chosen if c in found.ultra_low and c not in owners.values()]
    if not free:
        raise ConfigError(
            f"--points has no point left for an accuracy run in the region ultra-low: add a point from 1 to "
            f"{found.ultra_low.last}"
        )
    below = [c for c in free if c <= found.bands[ULTRA_LOW].last] or free
    owners[ULTRA_LOW] = max(below)
    return {concurrency: region for region, concurrency in owners.items()}
