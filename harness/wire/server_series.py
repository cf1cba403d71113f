"""Parses a page of Prometheus metrics into the columns of server.csv. server_series.yaml lists the known series."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

TABLE = Path(__file__).with_name("server_series.yaml")

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? +([^ ]+)(?: +-?\d+)?")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


class Series(NamedTuple):
    """One series on a page, or only the samples of the series that have all the given labels."""

    name: str
    labels: frozenset[tuple[str, str]] = frozenset()

    @classmethod
    def parse(cls, text: str) -> "Series":
        """Parses 'NAME' and 'NAME{label="value"}', as `parse_series` of core/config/parse.py accepts them."""
        name, _, labels = text.partition("{")
        return cls(name, frozenset(_LABEL.findall(labels)))

    def __str__(self) -> str:
        labels = ",".join(f'{name}="{value}"' for name, value in sorted(self.labels))
        return f"{self.name}{{{labels}}}" if labels else self.name


class Column(NamedTuple):
    """One entry in the table of known series."""

    series: tuple[Series, ...]
    """The names of the series on the supported servers. The first name that occurs on a page is used."""
    is_counter: bool
    takes_largest: bool
    """Whether the result is the largest value instead of the sum."""
    label: str
    """Name of the label that gets a separate column per value, or '' for a single column."""

    def join(self, values: Sequence[float]) -> float:
        return max(values) if self.takes_largest else sum(values)


@cache
def columns() -> Mapping[str, Column]:
    """Returns the table, which maps each name to its column."""
    table: Mapping[str, Mapping[str, Any]] = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    return {
        name: Column(
            tuple(map(Series.parse, row["series"])),
            row["kind"] == "counter",
            row.get("largest", False),
            row.get("label", ""),
        )
        for name, row in table.items()
    }


def column_of(name: str) -> Column | None:
    """Returns the table's column for a name in server.csv, with or without a label value, or None if the table lacks
    the name.
    """
    known = columns()
    if name in known:
        return known[name]
    stem, _, value = name.rpartition("_")
    return known[stem] if value and stem in known and known[stem].label else None


class Sample(NamedTuple):
    labels: Mapping[str, str]
    value: float


class Page:
    """The samples on a page."""

    def __init__(self, text: str) -> None:
        self._lines: dict[str, list[tuple[str, str]]] = {}
        for line in text.splitlines():
            if sample := _SAMPLE.fullmatch(line.strip()):
                self._lines.setdefault(sample[1], []).append((sample[2] or "", sample[3]))

    def samples(self, series: Series) -> list[Sample]:
        """Returns the series' samples, without NaN values. Raises a ValueError if a value is not a number."""
        found = []
        for text, number in self._lines.get(series.name, ()):
            labels = _LABEL.findall(text)
            if series.labels <= {*labels} and math.isfinite(value := float(number)):
                found.append(Sample(dict(labels), value))
        return found


def parse(text: str, wanted: Sequence[Series] = ()) -> dict[str, float]:
    """Returns values by column. wanted: further series, whose columns are named after the series.

    Raises a ValueError if the value of a known or wanted series is not a number.
    """
    page = Page(text)
    row: dict[str, float] = {}
    for name, column in columns().items():
        samples = next(filter(None, map(page.samples, column.series)), [])
        for suffix, values in _by_label(samples, column.label):
            row[f"{name}{suffix}"] = column.join(values)
    for series in wanted:
        if samples := page.samples(series):
            row[str(series)] = sum(sample.value for sample in samples)
    return row


def _by_label(samples: Sequence[Sample], label: str) -> Iterator[tuple[str, list[float]]]:
    """Yields the suffix of a column ('' without a label), and the column's values."""
    grouped: dict[str, list[float]] = {}
    for sample in samples:
        suffix = f"_{sample.labels.get(label, '')}" if label else ""
        grouped.setdefault(suffix, []).append(sample.value)
    yield from grouped.items()


def added(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Combines the rows of several servers into one row."""
    values: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            values.setdefault(name, []).append(value)
    return {name: _joined(name, each) for name, each in values.items()}


def _joined(name: str, values: Sequence[float]) -> float:
    column = column_of(name)
    return column.join(values) if column is not None else sum(values)
