"""Computes a grid's tables from its rows.

Compares only VALID cells of the same network that differ only in the axis of the table.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import hypot
from typing import Any, NamedTuple

from harness.models.precision.ways import BASELINE
from harness.results.numbers import Number
from harness.results.optimal_batch import optimum
from harness.results.pages.runs.configurations import beats
from harness.search.grid.cells.cells import Row

Context = tuple[tuple[str, Any], ...]
"""Pairs of axis and value that are the same for all cells in a line."""

AXES = ("model", "backend", "precision", "threads", "shape", "data", "batch")


class Line(NamedTuple):
    """One line in a table, with a ratio per batch size. unsure: sizes whose ratio may be 1 within the noise."""

    context: Context
    of: str
    values: Mapping[int, float]
    unsure: frozenset[int] = frozenset()


class Best(NamedTuple):
    """The optimal batch size, beyond which doubling the size gains too little."""

    context: Context
    optimal: int | None
    """The smallest batch size for which doubling gains at most 5 %; None if every doubling gained more."""
    largest: int
    throughput_per_s: float
    unsure: bool = False
    """Whether, because of noise, doubling this size might gain more than 5 % and no larger size settles the question.
    """


def reasons(rows: Sequence[Row], strangers: Mapping[Any, str], *, scored: bool) -> dict[Any, str]:
    """Maps each unranked cell to the reason.

    strangers: maps a variant to the reason why its network is different. scored: whether the real data contain labels;
    if so, a precision without an accuracy score is not ranked.
    """
    reasons_by_cell = {}
    for row in rows:
        if row.absent:
            why = row.absent
        elif row.verdict != "VALID":
            why = f"INVALID: {' '.join(row.reasons)}"
        elif row.fixed_batch is not None:
            why = f"the model's file fixes the batch at {row.fixed_batch}"
        elif row.throughput_per_s is None:
            why = "no throughput was measured"
        elif row.cell.variant in strangers:
            why = strangers[row.cell.variant]
        elif scored and row.precision != BASELINE and row.data == "real" and row.accuracy is None:
            why = (
                f"{row.precision} changes answers, but its accuracy is not known: {row.no_accuracy}"
            )
        else:
            continue
        reasons_by_cell[row.cell] = why
    return reasons_by_cell


def _grouped(rows: Sequence[Row], *axes: str) -> dict[Context, list[Row]]:
    """Groups the rows by all axes except `axes`."""
    groups: dict[Context, list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple((a, getattr(row, a)) for a in AXES if a not in axes)].append(row)
    return groups


def _ratios(
    rows: Sequence[Row],
    axis: str,
    base: Callable[[Sequence[Row]], Any],
    speed: Callable[[Row], float | None] = lambda row: row.throughput_per_s,
) -> Iterator[Line]:
    """Yields, per batch size, the ratio of the speed at each value of `axis` to the speed at the base value."""
    for context, members in _grouped(rows, axis, "batch").items():
        values: dict[Any, dict[int, Row]] = defaultdict(dict)
        for row in members:
            values[getattr(row, axis)][row.batch] = row
        first = base(members)
        under = values.get(first, {})
        for value, own in values.items():
            pairs = {b: (speed(row), speed(under[b])) for b, row in own.items() if b in under}
            times = {
                b: ours / theirs for b, (ours, theirs) in sorted(pairs.items()) if ours and theirs
            }
            unsure = {b for b, ratio in times.items() if _is_noise(ratio, own[b], under[b])}
            if value != first and times:
                yield Line(context, f"{value} / {first}", times, frozenset(unsure))


def _is_noise(ratio: float, ours: Row, theirs: Row) -> bool:
    return abs(ratio - 1) <= hypot(ours.noise, theirs.noise) * max(ratio, 1.0)


def gains(rows: Sequence[Row]) -> Iterator[tuple[str, list[Line]]]:
    """Yields the title and the lines for each table of ratios."""
    yield f"throughput by precision, relative to {BASELINE}", precision_gain(rows)
    yield f"speed of the median batch by precision, relative to {BASELINE}", median_gain(rows)
    fewest = _ratios(rows, "threads", lambda members: min(row.threads for row in members))
    yield "throughput by threads, relative to the fewest threads", list(fewest)
    first = _ratios(rows, "backend", lambda members: members[0].backend)
    yield "throughput by framework, at the same precision", list(first)
    real = _ratios(rows, "data", lambda _members: "real")
    yield "throughput on synthetic data, relative to real data", list(real)


def precision_gain(rows: Sequence[Row]) -> list[Line]:
    """Computes each precision's gain per batch size, because the effect depends on the size."""
    return list(_ratios(rows, "precision", lambda _members: BASELINE))


def median_gain(rows: Sequence[Row]) -> list[Line]:
    """Computes the gain in speed of the median batch. Other programs disturb the median batch time less than the mean
    time.
    """
    lines = _ratios(
        rows,
        "precision",
        lambda _members: BASELINE,
        lambda row: 1 / row.batch_p50_ns if row.batch_p50_ns else None,
    )
    return [line._replace(unsure=frozenset()) for line in lines]


def optimal_batches(rows: Sequence[Row]) -> list[Best]:
    """Returns the optimal batch size for each setting that was measured with several sizes."""
    return [
        _best(context, {row.batch: row for row in members})
        for context, members in _grouped(rows, "batch").items()
        if len(members) > 1
    ]


def _best(context: Context, rows: Mapping[int, Row]) -> Best:
    speeds = {batch: row.throughput_per_s or 0.0 for batch, row in rows.items()}
    best = optimum(speeds, {batch: row.uncertainty or 0.0 for batch, row in rows.items()})
    largest = max(speeds)
    speed = speeds[best.batch or largest]
    return Best(context, best.batch, largest, speed, best.is_unsure)


def numbers(row: Row) -> dict[str, Number]:
    """Returns the numbers that decide whether one cell beats another."""
    values = {
        "throughput": (row.throughput_per_s, 1.0, "samples/s", True),
        "batch latency": (row.batch_p50_ns, 1e-6, "ms", False),
        "accuracy": (row.accuracy, 1.0, row.metric or "", not row.lower_is_better),
        "energy": (row.joules_per_sample, 1.0, "J/sample", False),
        "memory": (row.rss_bytes, 1e-6, "MB", False),
    }
    return {
        name: Number(value * factor, unit, higher_is_better=more_is_better)
        for name, (value, factor, unit, more_is_better) in values.items()
        if value is not None
    }


def front(rows: Sequence[Row]) -> dict[Any, Row | None]:
    """Maps each cell to the first cell with the same model, shape and data that beats it in every number; None if no
    such cell exists.
    """
    beaten: dict[Any, Row | None] = {}
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[(row.model, row.shape, row.data)].append(row)
    for members in groups.values():
        values = {row.cell: numbers(row) for row in members}
        for row in members:
            beaten[row.cell] = next(
                (o for o in members if o is not row and beats(values[o.cell], values[row.cell])),
                None,
            )
    return beaten


def fast_enough(rows: Sequence[Row], floor: float | None) -> list[Row]:
    """Takes the cells that reach the accuracy `floor`, and returns the cells with the smallest batch size among them,
    fastest first; if `floor` is None, a cell must reach its model's target. Omits cells without a score.
    """
    good = [row for row in rows if row.accuracy is not None and _passes(row, floor)]
    least = min((row.batch for row in good), default=0)
    return sorted(
        (row for row in good if row.batch == least and row.batch_p50_ns is not None),
        key=lambda row: row.batch_p50_ns or 0.0,
    )


def _passes(row: Row, floor: float | None) -> bool:
    target = row.target if floor is None else floor
    if target is None or row.accuracy is None:
        return False
    return row.accuracy <= target if row.lower_is_better else row.accuracy >= target


def heat_maps(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Returns maps of precision against batch size, one for each setting and number. A cell that is not ranked is null."""
    measured: dict[str, Callable[[Row], float | None]] = {
        "throughput, samples/s": lambda row: row.throughput_per_s,
        "latency of a batch (p50), ms": lambda row: row.batch_p50_ns and row.batch_p50_ns / 1e6,
        "accuracy": lambda row: row.accuracy,
    }
    maps = []
    for context, members in _grouped(rows, "precision", "batch").items():
        batches = sorted({row.batch for row in members})
        precisions = list(dict.fromkeys(row.precision for row in members))
        at = {(row.precision, row.batch): row for row in members}
        for name, number in measured.items():
            z = [[number(at[p, b]) if (p, b) in at else None for b in batches] for p in precisions]
            if any(value is not None for line in z for value in line):
                about = {"number": name, "batch": batches, "precision": precisions, "z": z}
                maps.append({**dict(context), **about})
    return maps
