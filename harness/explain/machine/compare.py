"""Compares machines by the points that their machine.json files share, with ratios. This module has no side effects."""

import math
from collections.abc import Iterator, Mapping, Sequence

from harness.explain.machine import record
from harness.explain.machine.record import Content
from harness.machine.characterise import peaks
from harness.machine.characterise.measured import Measured
from harness.results.pages.tables import Cell, Column, Table
from harness.results.pages.words import letter_of

NOISE = 2.0
"""A ratio is significant if the medians differ by more than this number of standard deviations."""


def tables(sides: Sequence[Content]) -> list[Table]:
    """Returns the tables.

    sides: A, B, ... in order. For each side after A, each number is also shown as a ratio to A's number.
    """
    points = [{p.name: p for p in record.points(one) if not p.missing} for one in sides]
    names = [letter_of(side) for side in range(len(sides))]
    return [_about(names, sides), *_peaks(names, points), *_points(names, points)]


def _about(names: Sequence[str], sides: Sequence[Content]) -> Table:
    rows: list[list[Cell]] = [
        [
            name,
            one["machine"]["cpu"],
            one["machine"]["cores_usable"],
            one["fingerprint"],
            one["started"],
            ", ".join(one["instruction_sets"] or ["unknown"]),
        ]
        for name, one in zip(names, sides, strict=True)
    ]
    heads = [
        *(Column("side"), Column("processor"), Column("cores", "count"), Column("fingerprint")),
        *(Column("measured"), Column("instruction sets")),
    ]
    keys = {one["fingerprint"] for one in sides}
    notes = (
        ["one machine: differences are noise, or come from different versions"]
        if len(keys) == 1
        else []
    )
    return Table("sides", "Machines", "what is compared", heads, rows, notes)


def _peaks(names: Sequence[str], points: Sequence[Mapping[str, Measured]]) -> Iterator[Table]:
    """Yields the highest rate of each kind that any point reached."""
    of_sides = [_promises(list(side.values())) for side in points]
    rows: list[list[Cell]] = []
    for key in dict.fromkeys(key for side in of_sides for key in side):
        rates = [side.get(key) for side in of_sides]
        rows.append([*key, *rates, *_ratios(rates)])
    if rows:
        units = [Column(name, "/s") for name in names]
        heads = [Column("peak"), Column("threads", "count"), *units, *_ratio_heads(names)]
        about = "the highest rate of each side, in FLOP/s or bytes/s, and the ratio to A's"
        yield Table("peaks", "Peaks", about, heads, rows)


def _promises(points: Sequence[Measured]) -> dict[tuple[str, int], float]:
    found = {key: peak.per_s for key, peak in sorted(peaks.arithmetic(points).items())}
    return found | {("memory", n): peak.per_s for n, peak in peaks.memory(points).items()}


def _points(names: Sequence[str], points: Sequence[Mapping[str, Measured]]) -> Iterator[Table]:
    shared = [name for name in points[0] if all(name in side for side in points)]
    rows: list[list[Cell]] = []
    for name in shared:
        same = [side[name] for side in points]
        speeds = [1 / one.median_ns if one.median_ns else None for one in same]
        words = ["yes" if _is_noise(same[0], other) else "no" for other in same[1:]]
        rows.append([name, *(one.median_ns for one in same), *_ratios(speeds), *words])
    if rows:
        heads = [
            Column("point"),
            *(Column(name, "ns") for name in names),
            *(Column(f"speed {name} / A", "ratio") for name in names[1:]),
            *(Column(f"{name} within noise") for name in names[1:]),
        ]
        about = (
            f"median time of a call; noise: {NOISE:g} standard deviations of both sides combined"
        )
        yield Table("points", "Points of all sides", about, heads, rows)


def _is_noise(a: Measured, b: Measured) -> bool:
    """Whether the difference between the medians lies within the spread of the repetitions."""
    if a.median_ns is None or b.median_ns is None:
        return True
    spread = math.hypot(a.std_ns or 0.0, b.std_ns or 0.0)
    return abs(a.median_ns - b.median_ns) <= NOISE * spread


def _ratios(values: Sequence[float | None]) -> list[Cell]:
    first, *others = values
    return [other / first if other and first else None for other in others]


def _ratio_heads(names: Sequence[str]) -> list[Column]:
    return [Column(f"{name} / A", "ratio") for name in names[1:]]
