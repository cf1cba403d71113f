"""The state of the list of runs: filters, order, page and picked runs, as a query string holds them."""

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
"""Name of an order -> the value that a run is ordered by; None comes last."""

_LARGEST_FIRST = ("started", "throughput", "accuracy")
"""Orders that begin with the largest value, where the direction is not chosen."""

CHOICES: Mapping[str, str] = {
    "scenario": "scenario",
    "backend": "backend",
    "model": "model",
    "verdict": "verdict",
    "machine": "host",
}
"""Filter that is a choice from a list -> the column of a row."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Each field is a parameter of the query string; empty: no such filter."""

    text: str = ""
    """Words that the folder's name, model, backend, dataset or reasons must contain, in any case."""
    scenario: str = ""
    backend: str = ""
    model: str = ""
    verdict: str = ""
    machine: str = ""
    since: str = ""
    """First day, ISO 8601, UTC."""
    until: str = ""
    """Last day, ISO 8601, UTC."""
    inside: str = ""
    """Not empty: also the runs that a study made."""
    sort: str = "started"
    turned: str = ""
    """Not empty: the other direction of the order."""
    page: int = 1
    run: tuple[str, ...] = ()
    """Paths of the picked runs."""

    @classmethod
    def of(cls, parameters: Iterable[tuple[str, str]]) -> "Selection":
        """From a query string; unknown parameters and values that cannot be used are left out."""
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
        """The query string of this selection with some of it changed; without what is empty or usual."""
        usual, pairs = Selection(), []
        new = replace(self, **changed)
        for one in fields(new):
            value = getattr(new, one.name)
            if value != getattr(usual, one.name):
                values = value if one.name == "run" else [value]
                pairs += [(one.name, str(text)) for text in values]
        return f"?{urlencode(pairs, errors='surrogateescape')}" if pairs else "?"

    def sorted_by(self, name: str) -> str:
        """The query string that sorts by `name`, and turns the order where it is the present one."""
        turned = "" if name != self.sort or self.turned else "1"
        return self.query(sort=name, turned=turned, page=1)

    def led_by(self, path: str) -> str:
        """The query string with this picked run before the others."""
        return self.query(run=(path, *(other for other in self.run if other != path)))

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
        words = self.text.casefold().split()
        names = ("folder", "model", "backend", "dataset", "reasons")
        where = " ".join(row[name] or "" for name in names).casefold() if words else ""
        return all(word in where for word in words)

    def rows(self, entries: Iterable[Entry]) -> list[Row]:
        """The runs that the filters keep, in order. entries: newest first."""
        rows = [
            entry.row
            for entry in entries
            if entry.row is not None
            and not entry.notes_endpoint
            and (self.inside or entry.inside is None)
            and self.keeps(entry.row)
        ]
        if self.sort == "started":  # they are
            return rows if self.is_descending else rows[::-1]
        value = SORTS[self.sort]
        known = [row for row in rows if value(row) is not None]
        known.sort(key=value, reverse=self.is_descending)
        return known + [row for row in rows if value(row) is None]


_TEXTS = frozenset(one.name for one in fields(Selection)) - {"run", "page", "sort"}


def choices(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Filter -> the values that the runs have."""
    return {name: sorted({row[column] or "-" for row in rows}) for name, column in CHOICES.items()}
