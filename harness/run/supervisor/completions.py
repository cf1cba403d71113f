"""Reads new rows of the journal during a run, and all samples of the journal after the run."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from harness.loadgen.plan import LoadPlan
from harness.loadgen.scenario import scenario_named
from harness.loadgen.schedule import freed_ns, planned_ns
from harness.results.evidence.stages import Completions
from harness.run.journal import SETTLE_S, Journal, JournalReader
from harness.types import Array

LONGEST_SCHEDULE = 20_000_000
"""During a run, the schedule of at most this many queries is kept in memory."""

MOST_UNSTAMPED = 0.001
"""If a larger share of replies lacks the kernel's time stamp, the stamps are not used. The kernel may not stamp the
first replies.
"""

SAMPLES_AT_ONCE = 100_000
"""A reader handles at most this many samples in one step. A step takes at most about 10 ms, so that other threads can
run.
"""


class Samples(NamedTuple):
    """The samples of some batches, in the order of the batches."""

    size: Array
    """(batches,) number of samples in each batch."""
    order: Array
    """(samples,) position of each sample in the order of issue."""
    entry_ns: Array
    """(samples,) wall-clock time of the callback that issued the sample."""
    scheduled_ns: Array
    """(samples,) wall-clock time at which the sample was due; `entry_ns` if the run has no schedule."""
    completed_ns: Array
    """(samples,) wall-clock time of the answer."""

    def query_latency_ns(self, samples_per_query: int) -> Array:
        """Returns the (queries,) latencies, each measured until the query's last sample is answered. Skips queries
        without their last sample.
        """
        latency: Array = self.completed_ns - self.scheduled_ns
        return (
            latency[(self.order + 1) % samples_per_query == 0] if samples_per_query > 1 else latency
        )


class NewRows:
    """Reads the rows that are added to a journal during the run. This class is not thread-safe.

    The watchdog, the live counts and the checks for an early end read at different times, so each has a separate
    cursor. The cursors share one schedule.
    """

    worker = 0
    """Number of the worker whose rows `read` yielded last."""
    cancelled = 0
    """Number of requests that the client has cancelled so far; `read` skips the rows of these requests."""
    start_ns: int | None = None
    """Wall-clock time at which the run started; None if unknown.

    For LoadGen's scheduler, this is an estimate that improves with each row. For the harness's scheduler, the start is
    exact and known before the first row.
    """

    def __init__(
        self, journal: JournalReader, plan: LoadPlan, other: "NewRows | None" = None
    ) -> None:
        """other: a cursor over the same journal; the new cursor reuses the schedule of `other`."""
        self.journal = journal
        self.plan = plan
        queries = min(plan.journal_samples, LONGEST_SCHEDULE)
        self.due_ns: Array | None = planned_ns(plan, queries) if other is None else other.due_ns
        """(queries,) due times in ns after the start; None if the run has no schedule."""
        self._seen = [0] * journal.workers

    def copy(self) -> "NewRows":
        """Returns a new cursor at the journal's beginning, for a different reader."""
        return NewRows(self.journal, self.plan, self)

    def read(self) -> Iterator[Array]:
        """Yields each worker's rows since the last read, in steps of about SAMPLES_AT_ONCE samples."""
        self.start_ns = self.start_ns or self.journal.start_ns or None
        counts = self.journal.row_counts()
        if counts != self._seen:
            time.sleep(SETTLE_S)
        for worker, count in enumerate(counts):
            rows = self._answered(self.journal.rows(worker, self._seen[worker], count))
            self._seen[worker], self.worker = count, worker
            while len(rows):
                step = _step(rows)
                yield rows[:step]
                rows = rows[step:]

    def _answered(self, rows: Array) -> Array:
        """Returns the rows without cancelled requests, and counts the cancelled requests."""
        if not self.plan.cancel_share or "cancelled" not in (rows.dtype.names or ()):
            return rows
        answered: Array = rows[rows["cancelled"] == 0]
        self.cancelled += len(rows) - len(answered)
        return answered

    def samples(self, rows: Array) -> Samples:
        size = rows["size"].astype(np.int64)
        order = _orders(rows, size)
        entry_ns: Array = self.journal.entry_ns[order]
        completed_ns = np.repeat(rows["completed_ns"], size)
        return Samples(size, order, entry_ns, self.scheduled_ns(order, entry_ns), completed_ns)

    def scheduled_ns(self, order: Array, entry_ns: Array) -> Array:
        """Returns (n,) due times of samples, computed from the earliest start that the rows read so far allow. n is at
        least 1.

        order, entry_ns: (n,) the samples' positions in the order of issue, and the times of their callbacks.
        """
        due_ns = self.due_ns
        if due_ns is None or int(order.max()) >= len(due_ns):
            self._started(int(entry_ns.min()))
            return entry_ns
        scheduled_ns: Array = due_ns[order]
        scheduled_ns += self._started(int((entry_ns - scheduled_ns).min()))
        return scheduled_ns

    def _started(self, ns: int) -> int:
        ns = self.journal.start_ns or ns
        self.start_ns = ns if self.start_ns is None else min(ns, self.start_ns)
        return self.start_ns


def _step(rows: Array) -> int:
    """Returns how many of `rows` the next step handles, which is at least one."""
    count = min(len(rows), SAMPLES_AT_ONCE)
    most = int(rows["size"][:count].max())
    return max(1, min(count, SAMPLES_AT_ONCE // max(1, most)))


def _orders(rows: Array, size: Array) -> Array:
    """Returns (samples,) positions in the order of issue, which are consecutive within a batch.

    size: (batches,) int64.
    """
    ends = np.cumsum(size)
    orders: Array = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(
        rows["first"].astype(np.int64) - (ends - size), size
    )
    return orders


def completions_so_far(journal: Journal, plan: LoadPlan) -> Completions:
    """Returns the samples answered so far, during a run under the harness's scheduler."""
    counts = journal.row_counts()
    time.sleep(SETTLE_S)
    return read_completions(journal, plan, counts=counts)


def read_completions(
    journal: Journal,
    plan: LoadPlan,
    shortest_ns: int | None = None,
    counts: Sequence[int] | None = None,
) -> Completions:
    """Returns all samples in the journal. The samples are complete once the measured process has ended.

    counts: number of rows to read per worker; None: all rows.

    shortest_ns: LoadGen's shortest latency, if LoadGen logged one. The journal does not show when the schedule started,
    because LoadGen makes the first callback some time later. LoadGen's shortest latency shows how much later, because
    the fastest sample is the least disturbed. The time from the start to the first callback counts as issue delay.
    """
    issued = journal.issued
    ends = [None] * journal.workers if counts is None else counts
    parts = [journal.rows(worker, 0, end) for worker, end in enumerate(ends)]
    workers = np.repeat(np.arange(len(parts)), [len(p) for p in parts]).astype(np.int16)
    batches = np.concatenate(parts)
    sizes = batches["size"].astype(np.int64)
    batch = np.repeat(np.arange(len(batches)), sizes)
    order = _orders(batches, sizes)
    in_order = np.argsort(order, kind="stable")
    order, batch = order[in_order], batch[in_order]
    columns: dict[str, Array] = {
        "order": order,
        "index": journal.index[order],
        "entry_ns": journal.entry_ns[order],
        "worker": workers[batch],
        "batch": batch.astype(np.int32),
        "batch_size": batches["size"][batch],
        "failed": batches["failed"][batch],
    }
    columns |= {name: batches[name][batch] for name in journal.stamps}
    if "arrived_ns" in columns:
        _complete_arrivals(columns)
        if not columns["first_token_ns"].any():
            for name in ("first_token_ns", "answer_token_ns", "tokens", "late_tokens"):
                del columns[name]
        elif not has_reasoning(columns):
            del columns["answer_token_ns"]
        if not columns["server"].any():
            del columns["server"]
    if plan.harness_scheduled:
        columns["scheduled_ns"] = _own_schedule_ns(columns, journal.start_ns, plan)
    else:
        columns["scheduled_ns"] = _loadgen_schedule_ns(columns, issued, plan, shortest_ns)
    once = len(order) == issued and bool((order == np.arange(len(order))).all())
    if "cancelled" not in columns:
        return Completions(columns, issued, once)
    ended = columns.pop("cancelled") > 0
    if not plan.cancel_share and not ended.any():
        return Completions(columns, issued, once)
    answered, cancelled = (
        {name: column[mine] for name, column in columns.items()} for mine in (~ended, ended)
    )
    return Completions(answered, issued, once, cancelled)


def with_sessions(done: Completions, path: Path) -> Completions:
    """Returns the completions with the turns' due times, and with the columns `session` and `session_turns`.

    path: the file SESSION_ROWS. If the file is missing, each turn counts as due when the turn was issued.
    """
    columns = dict(done.columns)
    if path.is_file():
        with np.load(path, allow_pickle=False) as stored:
            order = columns["order"]
            columns["scheduled_ns"] = np.minimum(stored["due_ns"][order], columns["entry_ns"])
            columns["session"] = stored["session"][order]
            columns["session_turns"] = stored["turns"][order]
    else:
        columns["scheduled_ns"] = columns["entry_ns"].copy()
    return replace(done, columns=columns)


def has_reasoning(columns: Mapping[str, Array]) -> bool:
    """Returns whether any stream began with tokens that are not part of the answer, such as reasoning."""
    return bool((columns["answer_token_ns"] > columns["first_token_ns"]).any())


def _complete_arrivals(columns: dict[str, Array]) -> None:
    """Completes the column of the kernel's time stamps, or drops the column if too many stamps are missing.

    A missing stamp is replaced by the time at which the reply was read.
    """
    arrived_ns, read_ns = columns["arrived_ns"], columns["read_ns"]
    missing = arrived_ns == 0
    # A failed request whose arrival and read times are equal got no reply, so its missing stamp does not count.
    replied = (columns["failed"] == 0) | (arrived_ns != read_ns)
    if not replied.any() or missing[replied].mean() > MOST_UNSTAMPED:
        del columns["arrived_ns"]
    elif missing.any():
        columns["arrived_ns"] = np.where(missing, read_ns, arrived_ns)


def _loadgen_schedule_ns(
    columns: Mapping[str, Array], issued: int, plan: LoadPlan, shortest_ns: int | None
) -> Array:
    """Returns (samples,) due times under LoadGen's scheduler.

    Server's due times follow from its seed. In Offline, all samples are due at the start. In other scenarios,
    a sample is due when it is issued.
    """
    entry_ns: Array = columns["entry_ns"]
    order: Array = columns["order"]
    if plan.accuracy or scenario_named(plan.scenario).streams or not len(order):
        return entry_ns
    planned = planned_ns(plan, max(issued, int(order[-1]) + 1))
    after_ns: Array = planned[order] if planned is not None else np.zeros(len(order), np.int64)
    start_ns = int((entry_ns - after_ns).min())
    if shortest_ns is not None:
        start_ns = min(start_ns, int((columns["completed_ns"] - after_ns).min()) - shortest_ns)
    return after_ns + start_ns


def _own_schedule_ns(columns: Mapping[str, Array], start_ns: int, plan: LoadPlan) -> Array:
    """Returns (samples,) due times under the harness's scheduler, which writes its start time into the journal."""
    order: Array = columns["order"]
    if plan.sessions:
        due_ns: Array = columns["entry_ns"]
        return due_ns  # `with_sessions` replaces these times with the turns' due times
    if plan.ramp is not None:
        entry_ns: Array = columns["entry_ns"]
        return entry_ns  # a placeholder: the due times come from the ramp's file
    if plan.concurrency is not None:
        freed = freed_ns(columns["completed_ns"], order, plan.concurrency, start_ns)
        # A run that was cut off may lack answers. A later answer would then seem to free the place of the missing
        # answer's query.
        return np.minimum(freed, columns["entry_ns"])
    planned = planned_ns(plan, plan.query_count)
    assert planned is not None
    return planned[order] + start_ns
