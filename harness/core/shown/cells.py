"""Writes CSV files so that spreadsheets do not interpret texts as formulas."""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import TextIO

from harness.core.shown.escapes import visible
from harness.core.shown.private import hide

_FORMULA = tuple("=+-@\t\r")
"""A cell that begins with one of these characters is a formula. Source: OWASP, CSV Injection."""


def cell(value: object) -> object:
    """Returns the value, with an apostrophe before a text that a spreadsheet would read as a formula. Numbers stay
    unchanged.
    """
    if not isinstance(value, str):
        return value
    quote = "'" if value.startswith(_FORMULA) else ""
    return quote + visible(hide(value))


def write_rows(file: TextIO, heads: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
    """Writes a heading and then the rows. None becomes an empty field. file: a file opened with newline=""."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([cell(head) for head in heads])
    writer.writerows([cell(value) for value in row] for row in rows)


def to_text(heads: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    text = io.StringIO()
    write_rows(text, heads, rows)
    return text.getvalue()
