"""A load host that falsifies the rows it sends to the run: `forging_host.py KIND --listen HOST:PORT`."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from harness.cli.main import main
from harness.cluster.load_hosts import agent
from harness.run import journal_mirror
from harness.run.journal import Journal
from harness.types import Array

TAIL_NS = 30_000_000
CONSTANT_NS = 12_000_000
_AFTER_ENTRY = ("taken_ns", "sent_ns", "arrived_ns", "read_ns", "decoded_ns", "completed_ns")


def scaled(rows: Array, entry_ns: Array) -> Array:
    """Reduces every time to 40 % of its value."""
    for name in (*_AFTER_ENTRY, "first_token_ns"):
        there = rows[name] > 0
        after_ns = (rows[name] - entry_ns) * 2 // 5
        rows[name] = np.where(there, entry_ns + after_ns, 0)
    return rows


def subtracted(rows: Array, entry_ns: Array) -> Array:
    """Subtracts a constant from every time, but never goes below the entry time."""
    for name in (*_AFTER_ENTRY, "first_token_ns"):
        rows[name] = np.where(rows[name] > 0, np.maximum(rows[name] - CONSTANT_NS, entry_ns), 0)
    return rows


def tail_cut(rows: Array, entry_ns: Array) -> Array:
    """Limits the time of every query to TAIL_NS."""
    for name in _AFTER_ENTRY:
        rows[name] = np.minimum(rows[name], entry_ns + TAIL_NS)
    return rows


def first_token(rows: Array, entry_ns: Array) -> Array:
    """Reduces the time to the first token to 40 % of its value."""
    after_ns = (rows["first_token_ns"] - entry_ns) * 2 // 5
    rows["first_token_ns"] = np.where(rows["first_token_ns"] > 0, entry_ns + after_ns, 0)
    return rows


_latencies_ns: list[int] = []


def late_dropped(rows: Array, entry_ns: Array) -> Array:
    """Omits queries slower than the median of all previous queries, because a fixed limit would omit none in a fast
    run.
    """
    latency_ns = rows["completed_ns"] - entry_ns
    _latencies_ns.extend(latency_ns)
    return rows[latency_ns <= np.median(_latencies_ns)]


def before_its_time(rows: Array, entry_ns: Array) -> Array:
    """Shifts all time stamps to earlier times, even before the scheduled times."""
    for name in _AFTER_ENTRY:
        rows[name] -= np.where(rows[name] > 0, CONSTANT_NS, 0)
    return rows


KINDS: dict[str, Callable[[Array, Array], Array]] = {
    made.__name__: made
    for made in (scaled, subtracted, tail_cut, first_token, late_dropped, before_its_time)
}


class Forged:
    """A journal that changes its rows."""

    def __init__(self, journal: Journal, forge: Callable[[Array, Array], Array]) -> None:
        self._journal = journal
        self._forge = forge

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    def rows(self, worker: int, start: int, end: int) -> Array:
        rows = self._journal.rows(worker, start, end).copy()
        return self._forge(rows, self._journal.entry_ns[rows["first"]])


if __name__ == "__main__":
    kind, *words = sys.argv[1:]
    honest = journal_mirror.News
    setattr(agent, "News", lambda journal: honest(Forged(journal, KINDS[kind])))  # type: ignore[arg-type] # noqa: B010
    sys.exit(main(["load-host", *words]))
