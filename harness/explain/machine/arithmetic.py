"""Tabulates peaks and products: the best rate for each library and precision, and the processor unit that computed it."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from harness.core.units import counted, show_percent
from harness.explain.machine import record
from harness.explain.machine.record import Content
from harness.machine.characterise import matrix_unit, peaks
from harness.machine.characterise.matrix_unit import Verdict
from harness.machine.characterise.measured import Measured, of
from harness.results.pages.tables import Cell, Table, columns, show_cell

UNEVEN = 0.2
"""A peak is marked as doubtful if the coefficient of variation of its repetitions exceeds this limit."""

Key = tuple[str, str, int]
"""A tuple of library, precision and number of threads."""


def best_points(points: Sequence[Measured], benchmark: str) -> Mapping[Key, Measured]:
    """Returns the point with the fastest call for each library, precision and number of threads."""
    best: dict[Key, Measured] = {}
    for point in of(points, benchmark):
        key = str(point.settings["library"]), str(point.settings["precision"]), point.threads
        rate = point.peak_per_s
        if rate and rate > (best[key].peak_per_s if key in best else 0.0):  # type: ignore[operator]
            best[key] = point
    return best


def times_fp32(point: Measured, points: Sequence[Measured]) -> float | None:
    """Returns the rate divided by the highest fp32 rate of all libraries with the same thread count; None if no fp32
    rate was measured.
    """
    plain = peaks.arithmetic(points).get(("fp32", point.threads))
    return point.peak_per_s / plain.per_s if plain is not None and point.peak_per_s else None


def unit_of(point: Measured, points: Sequence[Measured], content: Content) -> Verdict:
    """Judges whether the point used the matrix unit. points: all points of the machine, including the fp32 peak."""
    return matrix_unit.verdict(
        str(point.settings["precision"]),
        content["instruction_sets"],
        str(point.facts.get("kernels", "")),
        times_fp32(point, points),
        is_disturbed=point.is_disturbed,
    )


def peak_table(points: Sequence[Measured], content: Content) -> Iterator[Table]:
    """Yields a table of peaks by precision and number of threads, then a table of copies. Tables without rows are
    omitted.
    """
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
        about = "the highest rate of any call, because noise can only slow a call"
        notes = [
            "int8: operations on integers, counted like FLOP; memory: bytes read plus bytes written"
        ]
        uneven = [row for row in rows if isinstance(row[4], float) and row[4] > UNEVEN]
        if uneven:
            notes.append(
                f"doubt: the repetitions of {counted(len(uneven), 'row')} differ by a CV of more than "
                f"{show_percent(UNEVEN)}: measure again on an idle machine, with --thorough"
            )
        yield Table("peaks", "Peaks", about, heads, rows, notes)


NO_RATE = "no rate was measured"


class QuotedPeak(NamedTuple):
    name: str
    """Precision, or "memory"."""
    rate: str
    """Rate with its unit."""
    threads: int
    variation: float | None
    """Coefficient of variation of the repetitions; None if there was only one repetition."""

    @property
    def is_doubtful(self) -> bool:
        return self.variation is not None and self.variation > UNEVEN


def quoted_peaks(content: Content) -> list[QuotedPeak]:
    """Returns the highest rate of each precision, highest first, and then of the memory."""
    points = [point for point in record.points(content) if not point.missing]
    variations = {point.name: point.variation for point in points}
    best: dict[str, tuple[peaks.Peak, int]] = {}
    for (precision, threads), peak in peaks.arithmetic(points).items():
        if precision not in best or peak.per_s > best[precision][0].per_s:
            best[precision] = peak, threads
    copies = [(peak, threads) for threads, peak in peaks.memory(points).items()]
    found = sorted(best.items(), key=lambda one: -one[1][0].per_s)
    found += [("memory", max(copies))] if copies else []
    return [
        QuotedPeak(name, show_cell(peak.per_s, _unit(name)), threads, variations[peak.point])
        for name, (peak, threads) in found
    ]


def _unit(name: str) -> str:
    if name == "memory":
        return "B/s"
    return "OP/s" if name.startswith("int") else "FLOP/s"


def peaks_line(content: Content) -> str:
    """States the highest rate of each precision and of the memory in one sentence, with the variation of a doubtful
    one; '' if no rate was measured.
    """
    return ", ".join(map(_in_words, quoted_peaks(content)))


def _in_words(one: QuotedPeak) -> str:
    doubt = f" (CV {show_percent(one.variation)})" if one.variation and one.is_doubtful else ""
    return f"{one.name} {one.rate} on {counted(one.threads, 'thread')}{doubt}"


def products(points: Sequence[Measured], content: Content) -> Iterator[Table]:
    """Yields a table for each arithmetic benchmark: the best point for each library and precision."""
    titles = {"gemm": "Matrix products", "convolution": "Convolutions"}
    for benchmark, title in titles.items():
        best = best_points(points, benchmark)
        if not best:
            continue
        rows = [_row(key, best[key], points, content) for key in best]
        about = "the fastest size, by library, precision and threads"
        yield _without_empty(Table(benchmark, title, about, _HEADS, *_said_once(rows)))


_HEADS = columns(
    "library | precision | threads [count] | peak [FLOP/s] | at | median [FLOP/s] | CV [share]"
    "| of fp32 peak [ratio] | matrix unit | evidence | relative error | energy [J/FLOP]"
)
_EVIDENCE = [column.name for column in _HEADS].index("evidence")


def _said_once(rows: Sequence[Sequence[Cell]]) -> tuple[list[list[Cell]], list[str]]:
    """Moves evidence that several rows share into notes. Returns the rows and the notes."""
    counts = Counter(str(row[_EVIDENCE]) for row in rows)
    shared = [text for text, count in counts.items() if count > 1]
    left = [[*row] for row in rows]
    for row in left:
        row[_EVIDENCE] = None if row[_EVIDENCE] in shared else row[_EVIDENCE]
    return left, [f"matrix unit: {text}" for text in shared]


def _without_empty(table: Table) -> Table:
    """Omits the evidence and energy columns if they are empty. The columns are empty if all rows have the same evidence
    or if no meter worked.
    """
    kept = [
        n
        for n, column in enumerate(table.columns)
        if column.name not in ("evidence", "energy")
        or any(row[n] is not None for row in table.rows)
    ]
    rows = [[row[n] for n in kept] for row in table.rows]
    return table._replace(columns=[table.columns[n] for n in kept], rows=rows)


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
