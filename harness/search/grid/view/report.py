"""Prints a grid's tables. Their numbers are also written to grid.csv and heatmaps.json."""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from harness.core.console import program
from harness.core.units import NS_PER_MS, counted, show_ns, show_percent, show_rate, show_si
from harness.models.network.network import Structure
from harness.models.precision.ways import BASELINE
from harness.results.numbers import Number
from harness.results.optimal_batch import GAIN
from harness.results.pages.tables import Cell as TableCell
from harness.results.pages.tables import Column, Table, aligned, columns, without_empty
from harness.run.study import machine_text, other_doubts
from harness.search.grid.cells.cells import Cell, Row
from harness.search.grid.view import tables
from harness.search.grid.view.tables import Context, Line
from harness.search.grid.view.view import View

_NUMBERS = columns(
    "samples/s [samples/s] | +- [share] | jitter [share] | batch p50 [ns] | batch p99 [ns]"
    "| score [of the metric] | same [share] | energy [J] | memory [bytes]"
)
_LEAST_SHARE = 0.8
"""If a single thread's CPU time is a smaller share of its wall time, other programs must have used the core."""


FASTEST = "fastest.yaml"
"""Options that use the fastest cell's backend, model and data."""

_NAMED = 2
"""The headline names at most this many cells besides the fastest cell."""


def lines(view: View, folder: Path) -> Iterator[str]:
    config = view.content["config"]
    yield f"GRID  {config['scenario']}  {config['duration']} per cell"
    yield from (f"  {line}" for line in made(view))
    yield ""
    cells, *others = tables_of(view)
    yield from aligned(cells.columns, cells.rows)
    yield from (["", *(f"  {note}" for note in cells.notes)] if cells.notes else [])
    for table in others:
        yield ""
        yield f"{table.title}: {table.about}" if table.about else table.title
        yield from aligned(table.columns, table.rows)
    yield ""
    if best := headline(view):
        yield f"{'fastest':<12}{best}"
    if (folder / FASTEST).is_file():
        command = f"{program()} --config {shlex.quote(str(folder / FASTEST))}"
        yield f"{'use it':<12}{command}  # backend, model and data, any scenario"
    yield f"{'results':<12}{folder}"


def fastest_row(view: View) -> Row | None:
    """Returns the ranked cell with the highest rate; None without such a cell, or for several models."""
    rated = _rated(view)
    return _best(rated)[1] if len({row.model for _, row in rated}) == 1 else None


def _rated(view: View) -> list[tuple[float, Row]]:
    return [(row.throughput_per_s, row) for row in view.ranked if row.throughput_per_s]


def _best(rated: Sequence[tuple[float, Row]]) -> tuple[float, Row]:
    return max(rated, key=itemgetter(0))


def headline(view: View) -> str:
    """Names the cell with the highest rate, and cells whose rate is within two standard errors of the highest rate.

    Names a cell for each model, because rates of different models cannot be compared. Returns '' if no cell is ranked.
    """
    rated = _rated(view)
    if len(models := dict.fromkeys(row.model for _, row in rated)) > 1:
        return "; ".join(
            f"{view.labels[model]}: {_fastest_of(view, [one for one in rated if one[1].model == model])}"
            for model in models
        )
    return _fastest_of(view, rated)


def _fastest_of(view: View, rated: Sequence[tuple[float, Row]]) -> str:
    if not rated:
        return ""
    most, best = _best(rated)
    varying = [axis for axis in _varying(view.rows) if axis != "model" or len(view.labels) < 2]
    where = f" with {_where(view, varying, best)}" if varying else ""
    least = most * (1 - best.noise)
    near = [
        _where(view, varying, row)
        for rate, row in sorted(rated, key=lambda one: -one[0])
        if row is not best and rate * (1 + row.noise) >= least
    ]
    more = [counted(len(near) - _NAMED, "other cell")] if len(near) > _NAMED else []
    also = f"; perhaps as fast: {', '.join([*near[:_NAMED], *more])}" if near else ""
    return f"{show_rate(most)} samples/s{where}{also}"


def _where(view: View, axes: Sequence[str], row: Row) -> str:
    """Returns the cell's position on the axes, for example `int8 batch 16`."""
    return " ".join(_word(view, axis, getattr(row, axis)) for axis in axes)


def tables_of(view: View) -> Iterator[Table]:
    """Yields the table of all cells, and then each comparison between cells that has rows."""
    yield _cells(view)
    others = [
        *(_ratios(view, *gain) for gain in enumerate(tables.gains(view.ranked), 1)),
        *(_optimal(view), _divergences(view), *_fastest(view), *_front(view)),
    ]
    yield from (table for table in others if table.rows)


def made(view: View) -> Iterator[str]:
    """Yields lines that state how each operator and each file in another precision was made."""
    for name, about in view.content["precisions"].items():
        model, _, precision = name.rpartition(" ")
        yield f"{precision:<6}{view.labels.get(model, Path(model).stem)}: {about['about']}"
    for about in view.content["ops"].values():
        yield f"op    {about['about']}"


def judged(view: View) -> tuple[str, bool]:
    """Returns VALID if a cell is ranked, otherwise INVALID, and whether there is a doubt."""
    return "VALID" if view.ranked else "INVALID", any(
        one.startswith(("doubt", "machine")) for one in facts(view)
    )


def facts(view: View) -> Iterator[str]:
    """Yields labelled lines about the precisions, the operators and the doubts."""
    for line in made(view):
        precision, about = line.split(maxsplit=1)
        is_operator = precision == "op"
        label, text = (
            ("operator", about) if is_operator else ("precision", f"{precision} of {about}")
        )
        yield f"{label:<12}{text}"
    for note in _notes(view):
        label, _, text = note.partition(": ")
        if label in ("machine", "doubt"):
            yield f"{label:<12}{text}"


def _name(view: View, one: Cell | Row) -> str:
    return f"{view.labels[one.model]} {one.backend} {one.precision}"


def _varying(rows: Sequence[Row]) -> list[str]:
    """Returns the axes on which these cells differ; only these axes get a column."""
    return [axis for axis in tables.AXES if len({getattr(row, axis) for row in rows}) > 1]


def _value(view: View, axis: str, value: Any) -> str:
    if axis == "model":
        return view.labels[value]
    return " ".join(value) if isinstance(value, tuple) else str(value)


def _word(view: View, axis: str, value: Any) -> str:
    """Formats a value that is not in a column. Adds the axis name if the value alone would be unclear."""
    plain = _value(view, axis, value)
    return f"{axis} {plain}" if axis in ("threads", "batch") else plain


def _cells(view: View) -> Table:
    axes = _varying(view.rows) or ["precision", "batch"]
    has_ops = bool(view.content["ops"])
    speed = [Column("GFLOP/s", "samples/s")] if has_ops else []
    heads = [*map(Column, axes), *_NUMBERS, *speed, Column("verdict")]
    rows = []
    for row in view.rows:
        values: list[TableCell] = [_value(view, axis, getattr(row, axis)) for axis in axes]
        gflop_per_s = [view.gflop_per_s(row)] if has_ops else []
        rows.append([*values, *_numbers(view, row), *gflop_per_s, _verdict(view, row)])
    return without_empty(Table("cells", "Cells", "", heads, rows, list(_notes(view))))


def _numbers(view: View, row: Row) -> list[TableCell]:
    return [
        row.throughput_per_s,
        None if row.uncertainty is None else row.noise,
        row.jitter,
        row.batch_p50_ns,
        row.batch_p99_ns,
        None if row.accuracy is None else f"{row.accuracy:.2f}",
        view.same_answers.get(row.cell),
        None if row.joules_per_sample is None else show_si(row.joules_per_sample, "J"),
        row.rss_bytes,
    ]


def _verdict(view: View, row: Row) -> str:
    if row.absent:
        return "absent"
    marks = [row.verdict, *row.reasons]
    if row.cell in view.why_not and row.verdict == "VALID":
        marks.append("(not ranked)")
    return " ".join(marks)


def _notes(view: View) -> Iterator[str]:
    notes = [f"network: {text}" for text in _each(_networks(view))]
    notes += [f"doubt: {text}" for text in view.namesakes]
    notes += _left_out(view)
    notes += [f"no score: {why}" for why in _each(r.no_accuracy for r in view.rows)]
    notes += [f"energy: by {source}" for source in _each(r.energy_source for r in view.rows)]
    notes += [f"no energy: {why}" for why in _each(r.no_energy for r in view.rows)]
    cells = [{"verdict": r.verdict, "doubts": r.doubts} for r in view.rows if not r.absent]
    if text := machine_text(cells, unit="cell"):
        notes.append(f"machine: {text}: stop other programs and measure again")
    doubts = other_doubts(cells).items()
    notes += [f"doubt: {code} in {count} of {len(cells)} cells" for code, count in doubts]
    crowded = sum(
        row.threads == 1 and (row.cpu_over_wall or 1.0) < _LEAST_SHARE for row in view.rows
    )
    if crowded:
        notes.append(
            f"doubt: {crowded} single-thread cells had a core for less than "
            f"{show_percent(_LEAST_SHARE)} of the time: the machine was shared"
        )
    wide = [row for row in view.rows if row.cores is not None and row.threads > row.cores]
    if wide:
        notes.append(f"doubt: {len(wide)} cells have more threads than the {wide[0].cores} cores")
    yield from notes


def _networks(view: View) -> Iterator[str]:
    """Yields the network in every ranked file, once per input size."""
    for variant, network in view.structures.items():
        is_first = variant.precision == BASELINE and variant not in view.strangers
        if is_first and isinstance(network, Structure):
            words = [view.labels[variant.model], *variant.shape]
            yield f"{' '.join(words)}: {network}"


def _left_out(view: View) -> Iterator[str]:
    """Yields each reason for leaving out cells, with the cells or ways to run the model that the reason affects."""
    cells: dict[tuple[str, str], list[str]] = {}
    for row in view.rows:
        if row.absent:
            cells.setdefault(("absent", row.absent), []).append(_name(view, row))
        elif row.cell in view.why_not:
            words = [_word(view, axis, getattr(row, axis)) for axis in _varying(view.rows)]
            reason = ("not ranked", view.why_not[row.cell])
            cells.setdefault(reason, []).append(" ".join(words))
    for (kind, why), names in cells.items():
        yield f"{kind}: {', '.join(dict.fromkeys(names))}: {why}"


def _each(texts: Iterable[str]) -> Iterator[str]:
    return (text for text in dict.fromkeys(texts) if text)


def _about(view: View, context: Context) -> list[str]:
    """Returns the parts of a context that differ between cells."""
    varying = _varying(view.rows)
    return [_word(view, axis, value) for axis, value in context if axis in varying]


def _ratios(view: View, number: int, gain: tuple[str, Sequence[Line]]) -> Table:
    title, lines = gain
    batches = sorted({batch for line in lines for batch in line.values})
    rows = [
        [" ".join([*_about(view, line.context), line.of]), *(_times(line, b) for b in batches)]
        for line in lines
    ]
    heads = [Column(""), *(Column(f"batch {batch}", "ratio") for batch in batches)]
    return Table(f"gain-{number}", title, "", heads, rows)


def _times(line: Line, batch: int) -> str:
    if batch not in line.values:
        return "-"
    return f"{'~' if batch in line.unsure else ''}{line.values[batch]:.2f}"


def _optimal(view: View) -> Table:
    optimal = tables.optimal_batches(view.ranked)
    marked = " (~ within the noise)" if any(best.unsure for best in optimal) else ""
    rows: list[list[TableCell]] = [
        [" ".join(_about(view, best.context)) or "all", _optimum(best), best.throughput_per_s]
        for best in optimal
    ]
    heads = columns(" | batch [count] | samples/s [samples/s]")
    about = f"doubling it gives {show_percent(GAIN)} or less{marked}"
    return Table("optimal", "optimal batch", about, heads, rows)


def _optimum(best: tables.Best) -> str:
    if best.optimal is None:
        return f"more than {best.largest}"
    return f"{'~' if best.unsure else ''}{best.optimal}"


def _divergences(view: View) -> Table:
    rows: list[list[TableCell]] = [
        [
            " ".join([_name(view, variant), variant.data, *variant.shape]),
            one.samples,
            f"{one.relative_l2:.3g}",
            f"{one.largest:.3g}",
            None if one.js_bits is None else f"{one.js_bits:.3g}",
            one.top1,
        ]
        for variant, one in view.divergences.items()
    ]
    about = "compared with fp32 on the same framework; fp32 itself is compared with fp32 on the first framework"
    heads = columns(
        " | samples [count] | relative L2 [ratio] | largest [ratio] | JS, bits [bits]"
        "| same label [share]"
    )
    return Table("outputs", "raw outputs", about, heads, rows)


def _fastest(view: View) -> Iterator[Table]:
    """Tabulates the fastest cells that reach the accuracy floor, with their cost.

    Source: DAWNBench, latency of one sample subject to an accuracy floor.
    """
    floor, price = view.options.accuracy_floor, view.options.price
    fastest = tables.fast_enough(view.ranked, floor)
    if not fastest:
        return
    first = fastest[0]
    rows: list[list[TableCell]] = []
    for row in fastest:
        cost = ""
        if price is not None and row.throughput_per_s:
            cost = f"{price / 3600 / row.throughput_per_s * 1e6:.3g}"
        words = (view.labels[row.model], row.backend, row.precision, row.data, str(row.threads))
        rows.append([row.batch_p50_ns, row.batch_p99_ns, f"{row.accuracy:.2f}", *words, cost])
    target = first.target if floor is None else floor
    sign = "<=" if first.lower_is_better else ">="
    title = f"fastest with {first.metric} {sign} {target:g}, batches of {first.batch}"
    heads = [
        *columns("p50 [ns] | p99 [ns]"),
        Column(first.metric or "", "score"),
        *columns("model | backend | precision | data | threads"),
        Column("" if price is None else "for a million samples"),
    ]
    yield Table("fastest", title, "", heads, rows)


def _in_words(number: Number) -> str:
    if number.unit == "ms":
        return show_ns(number.value * NS_PER_MS)
    digits = ",.0f" if number.value >= 1000 else ".4g"
    return f"{number.value:{digits}} {number.unit}"


def _front(view: View) -> Iterator[Table]:
    beaten = tables.front(view.ranked)
    best = [row for row in view.ranked if beaten[row.cell] is None]
    if len(best) == len(beaten):
        return
    kinds = list(dict.fromkeys(name for row in best for name in tables.numbers(row)))
    about = "no other cell beats these in every number"
    rows: list[list[TableCell]] = []
    for row in best:
        found = tables.numbers(row)
        cell = " ".join(_word(view, axis, getattr(row, axis)) for axis in _varying(view.rows))
        shown = (_in_words(found[kind]) if kind in found else None for kind in kinds)
        rows.append([cell, *shown])
    heads = [Column("cell"), *(Column(kind, "count") for kind in kinds)]
    yield Table("front", f"on the front of {', '.join(kinds)}", about, heads, rows)
