"""Reads CSV tables with the standard library."""

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.core.units import counted
from harness.datasets.parts import numbers
from harness.datasets.parts.sources import refuse
from harness.datasets.parts.tables import Choice, Columns, TableDataset
from harness.errors import ConfigError
from harness.types import Dataset

LARGEST_EXACT = 2.0**53
"""Whole numbers of at least this size are parsed again from their text, because different numbers may round to the same
float.
"""


class CsvDataset(TableDataset):
    """A CSV table in UTF-8 with a header line (RFC 4180)."""

    name = "csv"
    suffix = ".csv"

    def header(self, path: Path) -> Sequence[str]:
        with path.open(encoding="utf-8-sig", newline="") as file:
            names = [name.strip() for name in next(_records(file, path), (0, []))[1]]
        if not names:
            raise ConfigError(f"{path} is empty: the first line must name the columns")
        if all(_number(name) is not None for name in names):
            raise ConfigError(f"{path} has no header: the first line must name the columns")
        return names

    def read(self, path: Path, choice: Choice) -> Columns:
        header = list(self.header(path))
        places = [(name, header.index(name)) for name in choice.numeric]
        text_places = [(name, header.index(name)) for name in choice.texts]
        label = header.index(choice.label) if choice.label is not None else None
        numeric: dict[str, list[float | int]] = {name: [] for name, _ in places}
        texts: dict[str, list[str]] = {name: [] for name, _ in text_places}
        labels: list[str] = []
        problems: list[str] = []
        self._lines: list[int] = []
        with path.open(encoding="utf-8-sig", newline="") as file:
            records = _records(file, path)
            next(records)
            for line, fields in records:
                if len(fields) != len(header):
                    sizes = counted(len(fields), "field"), counted(len(header), "column")
                    problems.append(f"{path}:{line}: {', '.join(sizes)}")
                    continue
                self._lines.append(line)
                for name, place in places:
                    value: float | int | None = _number(fields[place])
                    if value is None:
                        problems.append(f"{path}:{line}: column {name!r} {_fault(fields[place])}")
                    elif abs(value) >= LARGEST_EXACT:
                        value = _whole(fields[place], value)
                    numeric[name].append(math.nan if value is None else value)
                for name, place in text_places:
                    if not fields[place].strip():
                        problems.append(f"{path}:{line}: column {name!r} is missing")
                    texts[name].append(fields[place])
                if label is not None:
                    if not fields[label].strip():
                        problems.append(f"{path}:{line}: column {choice.label!r} is missing")
                    labels.append(fields[label].strip())
        refuse(problems)
        arrays = {name: numbers.array_of(values) for name, values in numeric.items()}
        return Columns(arrays, texts, _labels(labels), len(self._lines))

    def where(self, row: int) -> str:
        return f"line {self._lines[row]}"


def _records(file: Iterator[str], path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields (line, fields) for every line that is not empty."""
    reader = csv.reader(file, strict=True)
    try:
        for fields in reader:
            if fields:
                yield reader.line_num, fields
    except csv.Error as e:
        raise ConfigError(f"{path}:{reader.line_num}: {e}") from None


def _number(text: str) -> float | None:
    """Parses a finite number. Returns None for any other string, including 1_000, which Python would accept."""
    try:
        value = float(text) if "_" not in text else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _fault(text: str) -> str:
    return f"is {text[:40]!r}, not a number" if text.strip() else "is missing"


def _labels(texts: Sequence[str]) -> Sequence[object]:
    """Returns the labels as numbers if all labels are numbers, or else as strings. Labels that are whole numbers become
    int.
    """
    values = [_number(text) for text in texts]
    if any(value is None for value in values):
        return texts
    return [
        _whole(text, value) if value.is_integer() else value
        for text, value in zip(texts, values, strict=True)
        if value is not None
    ]


def _whole(text: str, value: float) -> int:
    """Returns the exact number if the text contains all digits, because a float holds only 15 digits."""
    try:
        return int(text)
    # The text is not an int (for example 1e3 or 7.0), or has more digits than Python accepts.
    except ValueError:
        return int(value)


_: type[Dataset] = CsvDataset
