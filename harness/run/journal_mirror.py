"""Copies a journal to another machine during the run, and converts its time stamps to that machine's clock."""

import time
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from harness.core.units import show_ns
from harness.run.journal import SETTLE_S, Journal
from harness.types import Array

MOST_ROWS = 8192
"""A message contains at most this many batches or samples."""


class News:
    """Reads the rows that were added to a journal since the last call. Only one thread may call the methods."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._entered = 0
        self._rows = [0] * journal.workers

    def read(self) -> Iterator[dict[str, Any]]:
        """Yields messages for `Mirror.add`, in order."""
        journal = self._journal
        counts, issued = journal.row_counts(), journal.issued
        time.sleep(SETTLE_S)
        yield {"start_ns": journal.start_ns, "loading": journal.loading}
        while self._entered < issued:
            end = min(issued, self._entered + MOST_ROWS)
            yield {"entered": _text(journal.entry_ns[self._entered : end])}
            self._entered = end
        for worker, count in enumerate(counts):
            while self._rows[worker] < count:
                end = min(count, self._rows[worker] + MOST_ROWS)
                rows = journal.rows(worker, self._rows[worker], end)
                indices = journal.index[_samples(rows)]
                yield {"worker": worker, "rows": _text(rows), "indices": _text(indices)}
                self._rows[worker] = end


class Mirror:
    """Writes the messages of `News` to a journal on this machine. Only one thread may call the methods."""

    def __init__(self, journal: Journal, ahead_ns: int) -> None:
        """journal: an empty journal of the same size. ahead_ns: how far the other machine's clock is ahead of this
        machine's clock.
        """
        self._journal = journal
        self._ahead_ns = ahead_ns

    def add(self, news: Mapping[str, Any]) -> None:
        """Writes the rows and counters of one message to the journal. Raises ValueError or KeyError if `News` did not
        create the message.
        """
        journal = self._journal
        if "entered" in news:
            entered = _array(news["entered"], "<i8") - self._ahead_ns
            end = journal.issued + len(entered)
            _refuse_beyond(end, journal)
            journal.entry_ns[journal.issued : end] = entered
            journal.issued = end
        elif "rows" in news:
            self._add_rows(int(news["worker"]), news["rows"], news["indices"])
        else:
            self._note_start(int(news["start_ns"]))
            journal.loading = bool(news["loading"])

    def _note_start(self, start_ns: int) -> None:
        """Stores the start time, from which latencies are counted. Raises ValueError if the start time differs from the
        agreed start time.

        start_ns: start on the other machine's clock; 0 before the start.
        """
        if not start_ns:
            return
        journal, started_ns = self._journal, start_ns - self._ahead_ns
        if journal.start_ns and started_ns != journal.start_ns:
            away_ns = abs(started_ns - journal.start_ns)
            raise ValueError(f"its schedule started {show_ns(away_ns)} away from the ordered start")
        journal.start_ns = started_ns

    def _add_rows(self, worker: int, text: str, indices: str) -> None:
        journal = self._journal
        if not 0 <= worker < journal.workers:
            raise ValueError(f"there is no worker {worker}")
        rows = _array(text, journal.row_dtype).copy()
        orders = _samples(rows)
        if len(orders):
            _refuse_beyond(int(orders.max()) + 1, journal)
        _refuse_beyond(journal.row_counts()[worker] + len(rows), journal)
        if (rows["first"] < 0).any():
            raise ValueError("a batch begins before the first sample")
        for name in journal.stamps:
            if name.endswith("_ns"):  # 0 is not converted, because 0 marks a missing time stamp
                rows[name] -= np.where(rows[name] != 0, self._ahead_ns, 0)
        journal.index[orders] = _array(indices, "<i4")
        journal.add_rows(worker, rows)


def _samples(rows: Array) -> Array:
    """Returns each sample's position in issue order."""
    sizes = rows["size"].astype(np.int64)
    begins = np.repeat(rows["first"].astype(np.int64) - np.cumsum(sizes) + sizes, sizes)
    orders: Array = begins + np.arange(len(begins))
    return orders


def _refuse_beyond(end: int, journal: Journal) -> None:
    if end > journal.capacity:
        raise ValueError(f"the journal has {journal.capacity:,} samples, but {end:,} were sent")


def _text(values: Array) -> str:
    return b64encode(np.ascontiguousarray(values).tobytes()).decode()


def _array(text: str, dtype: Any) -> Array:
    found: Array = np.frombuffer(b64decode(text, validate=True), dtype)
    return found
