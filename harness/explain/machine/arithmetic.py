"""Tabulates peaks and products: the best rate of each library and precision, and which unit computed it."""

from collections.abc import Iterator, Mapping, Sequence

from harness.explain.machine.record import Content
from harness.machine.characterise import matrix_unit, peaks
from harness.machine.characterise.matrix_unit import Verdict
from harness.machine.characterise.measured import Measured, of
from harness.results.pages.tables import Cell, Table, columns

Key = tuple[str, str, int]
"""(library, precision, threads)."""


def best_points(points: Sequence[Measured], benchmark: str) -> Mapping[Key, Measured]:
    """Returns the point with the fastest call of each library, precision and number of threads."""
    best: dict[Key, Measured] = {}
    for point in of(points, benchmark):
        key = str(point.settings["library"]), str(point.settings["precision"]), point.threads
        rate = point.peak_per_s
        if rate and rate > (best[key].peak_per_s if key in best else 0.0):  # type: ignore[operator]
            best[key] = point
    return best


def times_fp32(point: Measured, points: Sequence[Measured]) -> float | None:
    """Returns the rate over the fp32 peak of all libraries with the same number of threads; None without a peak."""
    plain = peaks.arithmetic(points).get(("fp32", point.threads))
    return point.peak_per_s / plain.per_s if plain is not None and point.peak_per_s else None


def unit_of(point: Measured, points: Sequence[Measured], content: Content) -> Verdict:
    """Judges whether the point used the matrix unit. points: all of the machine, including fp32's peak."""
    return matrix_unit.verdict(
        str(point.settings["precision"]),
        content["instruction_sets"],
        str(point.facts.get("kernels", "")),
        times_fp32(point, points),
        is_disturbed=point.is_disturbed,
    )


def peak_table(points: Sequence[Measured], content: Content) -> Iterator[Table]:
    """Yields a table of peaks by precision and number of threads, then of copies; nothing without either."""
    by_name = {point.name: point for point in points}
    rows: list[list[Cell]] = []
    for (precision, threads), peak in sorted(peaks.arithmetic(points).items()):
        point = by_name[peak.point]
        use = unit_of(point, points, content)
        rows.append([precision, threads, peak.per_s, None, point.variation, peak.point, use.use])
    for threads, peak in sorted(peaks.memory(points).items()):
        variation = by_name[peak.point].variation
        rows.append(["memory", threads, None, peak.per_s, variation, peak.point, None])
    if rows:
        heads = columns(
            "of | threads [count] | peak [FLOP/s] | bandwidth [B/s] | CV [share] | reached by | matrix unit"
        )
        about = "the highest rate of any call; noise only slows"
        notes = [
            "int8: operations on integers, counted like FLOP; memory: bytes read plus bytes written"
        ]
        yield Table("peaks", "Peaks", about, heads, rows, notes)


def products(points: Sequence[Measured], content: Content) -> Iterator[Table]:
    """Yields a table per benchmark of arithmetic: the best point of each library and precision."""
    titles = {"gemm": "Matrix products", "convolution": "Convolutions"}
    for benchmark, title in titles.items():
        best = best_points(points, benchmark)
        if not best:
            continue
        rows = [_row(key, best[key], points, content) for key in best]
        heads = columns(
            "library | precision | threads [count] | peak [FLOP/s] | at | median [FLOP/s] | CV [share]"
            "| of fp32 peak [ratio] | matrix unit | evidence | relative error | energy [J/FLOP]"
        )
        about = "the fastest size, by library, precision and threads"
        if all(row[-1] is None for row in rows):  # no meter read
            heads, rows = heads[:-1], [row[:-1] for row in rows]
        yield Table(benchmark, title, about, heads, rows)


def _row(key: Key, point: Measured, points: Sequence[Measured], content: Content) -> list[Cell]:
    error = point.facts.get("relative_error")
    return [
        *(*key, point.peak_per_s),
        str(point.settings.get("side") or point.settings.get("input")),
        *(point.per_s, point.variation, times_fp32(point, points)),
        *unit_of(point, points, content),
        None if error is None else f"{error:.1e}",
        None if point.joules is None else point.joules / point.work,
    ]
