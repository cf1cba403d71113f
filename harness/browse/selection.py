"""Represents the list of runs as a query string: filters, order, page and selected runs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any
from urllib.parse import urlencode

from harness.browse.index import Entry, Row

PAGE_SIZE = 100
MOST_PICKED = 20
_LONGEST = 300

SORTS: Mapping[str, Callable[[Row], Any]] = {
    "started": lambda row: row["started"],
    "run": lambda row: row["folder"],
    "scenario": lambda row: row["scenario"],
    "backend": lambda row: row["backend"],
    "model": lambda row: row["model"],
    "verdict": lambda row: row["verdict"],
    "throughput": lambda row: row["completed_per_s"],
    "p99": lambda row: row["p99_ns"] if row["has_latency"] else None,
    "accuracy": lambda row: row["accuracy"],
    "machine": lambda row: row["host"],
}
"""Maps the name of an order to the sort key of a run. None sorts last."""

_LARGEST_FIRST = ("started", "throughput", "accuracy")
"""Orders that are descending by default."""

CHOICES: Mapping[str, str] = {
    "scenario": "scenario",
    "backend": "backend",
    "model": "model",
    "verdict": "verdict",
    "machine": "host",
}
"""Maps a filter that offers choices to the filter's column in a row."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The state of the list. Each field is a parameter in the query string; an empty field filters nothing."""

    text: str = ""
    """Words that must appear in the folder's name, model, backend, dataset or reasons, in upper or lower case.
    """
    scenario: str = ""
    backend: str = ""
    model: str = ""
    verdict: str = ""
    machine: str = ""
    kind: str = ""
    """Verb of the studies to list. Filters only studies, not runs."""
    since: str = ""
    """First day to list, in ISO 8601, UTC."""
    until: str = ""
    """Last day to list, in ISO 8601, UTC."""
    inside: str = ""
    """Not empty if the list also shows runs inside studies."""
    sort: str = "started"
    turned: str = ""
    """Not empty if the order is reversed."""
    page: int = 1
    run: tuple[str, ...] = ()
    """Paths of the selected runs."""
    oldest: str = ""
    """Not empty if a comparison begins with the oldest selected run. Empty if it begins with the first path in `run`.
    """

    @classmethod
    def of(cls, parameters: Iterable[tuple[str, str]]) -> "Selection":
        """Reads a query string. Skips unknown parameters and unusable values."""
        values: dict[str, Any] = {}
        picked: dict[str, None] = {}
        for name, text in parameters:
            if name == "run" and text and len(picked) < MOST_PICKED:
                picked[text] = None
            elif name == "page" and text.isascii() and text.isdigit():
                values[name] = max(1, int(text[:6]))
            elif name == "sort" and text in SORTS:
                values[name] = text
            elif name in _TEXTS:
                values[name] = text.strip()[:_LONGEST]
        return cls(**values, run=tuple(picked))

    def query(self, **changed: Any) -> str:
        """Returns the query string for this selection with the given changes. Omits default values."""
        usual, pairs = Selection(), []
        new = replace(self, **changed)
        for one in fields(new):
            value = getattr(new, one.name)
            if value != getattr(usual, one.name):
                values = value if one.name == "run" else [value]
                pairs += [(one.name, str(text)) for text in values]
        return f"?{urlencode(pairs, errors='surrogateescape')}" if pairs else "?"

    def sorted_by(self, name: str) -> str:
        """Returns the query string that sorts by `name`.
        If the list is already sorted by `name`, reverses the order.
        """
        turned = "" if name != self.sort or self.turned else "1"
        return self.query(sort=name, turned=turned, page=1)

    def led_by(self, path: str) -> str:
        """Returns the query string in which the selected run at `path` precedes all other selected runs."""
        return self.query(run=(path, *(other for other in self.run if other != path)), oldest="")

    @property
    def is_descending(self) -> bool:
        return (self.sort in _LARGEST_FIRST) != bool(self.turned)

    @property
    def is_filtered(self) -> bool:
        return self.query(sort="started", turned="", page=1, run=(), inside="") != "?"

    def keeps(self, row: Row) -> bool:
        if any(
            getattr(self, name) and getattr(self, name) != (row[column] or "-")
            for name, column in CHOICES.items()
        ):
            return False
        day = row["started"][:10]
        if (self.since and day < self.since[:10]) or (self.until and day > self.until[:10]):
            return False
        names = ("folder", "model", "backend", "dataset", "reasons")
        return self.finds(row[name] or "" for name in names)

    def finds(self, texts: Iterable[str]) -> bool:
        """Returns whether the texts contain all words of the filter `text`."""
        words = self.text.casefold().split()
        where = " ".join(texts).casefold() if words else ""
        return all(word in where for word in words)

    def rows(self, entries: Iterable[Entry]) -> list[Row]:
        """Returns the runs that pass the filters, in the selected order. entries: newest first."""
        rows = [
            entry.row
            for entry in entries
            if entry.row is not None
            and not entry.notes_endpoint
            and (self.inside or entry.inside is None)
            and self.keeps(entry.row)
        ]
        if self.sort == "started":  # the entries are already sorted by start
            return rows if self.is_descending else rows[::-1]
        value = SORTS[self.sort]
        known = [row for row in rows if value(row) is not None]
        known.sort(key=value, reverse=self.is_descending)
        return known + [row for row in rows if value(row) is None]


_TEXTS = frozenset(one.name for one in fields(Selection)) - {"run", "page", "sort"}


def choices(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Returns the values that occur in the runs, by filter."""
    return {name: sorted({row[column] or "-" for row in rows}) for name, column in CHOICES.items()}
