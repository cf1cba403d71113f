"""Represents tables of numbers with units, for readers, programs and spreadsheets."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import compress
from typing import Any, NamedTuple

from harness.core.shown import cells
from harness.core.units import show_bytes, show_ns, show_percent, show_rate, show_si

Cell = str | int | float | None


class Column(NamedTuple):
    """A table column. unit: "" for words; otherwise ns, bytes, share (of 1), count, or an SI unit such as FLOP/s."""

    name: str
    unit: str = ""

    @property
    def title(self) -> str:
        """Name and unit, as written in a CSV or JSON file."""
        plain = self.unit.replace("/", "_per_")
        # for example the column "bytes", whose unit is bytes
        known = not plain or self.name == plain
        return (self.name if known else f"{self.name}_{plain}").replace(" ", "_")


def columns(heads: str) -> list[Column]:
    """Parses 'kernel | latency [ns]' into [Column("kernel"), Column("latency", "ns")]."""
    parts = (head.strip().removesuffix("]").partition(" [") for head in heads.split("|"))
    return [Column(name, unit) for name, _, unit in parts]


class Table(NamedTuple):
    """Table with a title and notes. A cell that was not measured is None."""

    key: str
    """Name of the table's files, and value of --table that selects the table."""
    title: str
    about: str
    """One sentence about the table's content."""
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()
    """Facts that a reader should know before trusting the numbers."""

    def to_json(self) -> dict[str, Any]:
        names = [column.title for column in self.columns]
        return {
            "title": self.title,
            "about": self.about,
            "rows": [dict(zip(names, row, strict=True)) for row in self.rows],
            "notes": list(self.notes),
        }


def without_empty(table: Table) -> Table:
    """Returns the table without columns that contain no measurement."""
    kept = [any(row[i] is not None for row in table.rows) for i in range(len(table.columns))]
    if not table.rows:
        return table
    rows = [tuple(compress(row, kept)) for row in table.rows]
    return table._replace(columns=list(compress(table.columns, kept)), rows=rows)


PLUS_MINUS = ("+-", "±")
"""Beginnings of the name of a column with half of the interval of the column before."""


def with_intervals(shown: Table) -> Table:
    """Puts each interval into the cell of its number, because many narrow columns are hard to read."""
    heads: list[Column] = []
    rows: list[list[Cell]] = [[] for _ in shown.rows]
    for place, head in enumerate(shown.columns):
        cells = [row[place] for row in shown.rows]
        if not head.name.startswith(PLUS_MINUS):
            heads.append(head)
            for row, cell in zip(rows, cells, strict=True):
                row.append(cell)
            continue
        unit = heads[-1].unit
        for row, cell in zip(rows, cells, strict=True):
            if cell is not None:
                row[-1] = f"{show_cell(row[-1], unit)} ±\u00a0{show_cell(cell, head.unit)}"
    return shown._replace(columns=heads, rows=rows)


_SHOWN: Mapping[str, Callable[[float], str]] = {
    "ns": show_ns,
    "bytes": show_bytes,
    "share": lambda share: show_percent(share, 1),
    "count": "{:,.0f}".format,
    "samples/s": show_rate,
    "samples": "{:,.1f}".format,
    "FLOP/byte": "{:.2f}".format,
    "ratio": "{:.2f}".format,
}


def show_cell(cell: Cell, unit: str) -> str:
    """Returns the cell with its unit; `-` for None."""
    if cell is None:
        return "-"
    if isinstance(cell, str) or not unit:
        return str(cell)
    if unit in _SHOWN:
        return _SHOWN[unit](cell)
    return _large(cell, unit)


def _large(value: float, unit: str) -> str:
    for prefix, size in (("T", 1e12), ("G", 1e9)):
        if abs(value) >= 0.9995 * size:
            return f"{value / size:.3g} {prefix}{unit}"
    return show_si(value, unit) if value else f"0 {unit}"


def lines(table: Table, most_rows: int | None = None) -> Iterator[str]:
    """Yields the table as lines for readers. most_rows: largest number of rows; the last line then counts the remaining
    rows.
    """
    rows = table.rows if most_rows is None else table.rows[:most_rows]
    yield f"{table.title}: {table.about}"
    yield from (f"  {line}" for line in aligned(table.columns, rows))
    if len(rows) < len(table.rows):
        yield f"  ... {len(table.rows) - len(rows):,} more rows: {table.key}.csv has all"
    yield from (f"  {note}" for note in table.notes)


def aligned(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> Iterator[str]:
    """Yields the column names, then the rows; words are aligned left, numbers right."""
    cells = [[column.name for column in columns], *shown_rows(columns, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        padded = (
            cell.rjust(width) if column.unit else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        )
        yield "  ".join(padded).rstrip()


def shown_rows(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> list[list[str]]:
    return [
        [show_cell(cell, column.unit) for cell, column in zip(row, columns, strict=True)]
        for row in rows
    ]


def to_csv(table: Table) -> str:
    """Returns CSV. Only the column names contain units, and None becomes an empty field."""
    return cells.to_text([column.title for column in table.columns], table.rows)
