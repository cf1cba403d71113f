"""Reads several load hosts' journals as one journal during the run, and as columns at the run's end.

A host's k-th query is query part[k] in the run. A host's batch is contiguous only in the host's order, so each sample
in the batch becomes a separate row in the merged journal. All time stamps refer to the coordinator's clock.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from harness.loadgen.plan import LoadPlan
from harness.results.evidence.stages import Completions
from harness.results.load_hosts.section import HOST
from harness.run.journal import Journal
from harness.run.supervisor.completions import read_completions
from harness.types import Array

_NEVER = np.iinfo(np.int64).max
_OF_TOKENS = ("first_token_ns", "answer_token_ns", "tokens", "late_tokens")


class Share(NamedTuple):
    """One host's share of a run."""

    plan: LoadPlan
    part: Array
    """(n,) the queries that the host issues, as ascending positions in the run."""
    journal: Journal


class MergedJournal:
    """Has the same interface as `JournalReader`. Several threads may read the journal, each with its own cursor."""

    def __init__(self, shares: Sequence[Share]) -> None:
        self._shares = shares
        self._workers = [
            (share, worker) for share in shares for worker in range(share.journal.workers)
        ]
        queries = sum(len(share.part) for share in shares)
        self.entry_ns: Array = np.full(queries, _NEVER, np.int64)
        self._entered = [0] * len(shares)
        self.start_ns = 0
        """Wall-clock time of the start; 0 until it is set."""

    @property
    def workers(self) -> int:
        return len(self._workers)

    @property
    def stamps(self) -> Sequence[str]:
        return self._shares[0].journal.stamps

    @property
    def issued(self) -> int:
        return sum(share.journal.issued for share in self._shares)

    @property
    def completed(self) -> int:
        return sum(share.journal.completed for share in self._shares)

    @property
    def loading(self) -> bool:
        return any(share.journal.loading for share in self._shares)

    def row_counts(self) -> list[int]:
        """Returns the number of batches per worker. `rows` also counts its arguments `start` and `end` in batches."""
        return [count for share in self._shares for count in share.journal.row_counts()]

    def rows(self, worker: int, start: int = 0, end: int | None = None) -> Array:
        """Returns the samples in a worker's batches `start` to `end`, one row per sample."""
        share, of_host = self._workers[worker]
        batches = share.journal.rows(of_host, start, end)
        sizes = batches["size"].astype(np.int64)
        ends = np.cumsum(sizes)
        rows: Array = np.repeat(batches, sizes)
        within = np.arange(len(rows)) - np.repeat(ends - sizes, sizes)
        rows["first"] = share.part[rows["first"] + within]
        rows["size"] = 1
        self._take_entries()
        return rows

    def _take_entries(self) -> None:
        """Copies the entries of the samples that were issued after the previous call. If several threads call this
        method at once, they copy the same entries.
        """
        for at, share in enumerate(self._shares):
            begin, end = self._entered[at], share.journal.issued
            self.entry_ns[share.part[begin:end]] = share.journal.entry_ns[begin:end]
            self._entered[at] = end


def merged_completions(shares: Sequence[Share]) -> Completions:
    """Returns all hosts' samples in the order of the schedule, with the column `host`. Does not average any values."""
    found = [read_completions(share.journal, share.plan) for share in shares]
    parts = []
    workers = batches = 0
    for host, (share, done) in enumerate(zip(shares, found, strict=True)):
        columns = dict(done.columns)
        columns["order"] = share.part[columns["order"]]
        columns["worker"] = columns["worker"] + np.int16(workers)
        columns["batch"] = columns["batch"] + np.int32(batches)
        columns[HOST] = np.full(len(done), host, np.int16)
        workers += share.journal.workers
        if len(done):
            batches = int(columns["batch"].max()) + 1
        parts.append(columns)
    columns = _joined(parts)
    in_order = np.argsort(columns["order"], kind="stable")
    columns = {name: column[in_order] for name, column in columns.items()}
    issued = sum(done.issued for done in found)
    once = issued == len(in_order) and all(done.answered_once for done in found)
    return Completions(columns, issued, once)


def _joined(parts: Sequence[dict[str, Array]]) -> dict[str, Array]:
    """Returns the hosts' columns, concatenated. The hosts that have answers determine which columns exist.

    The kernel's time stamps are kept only if every host recorded them. A host without token columns counts as having
    0 tokens.
    """
    telling = [part for part in parts if len(part["order"])] or parts[:1]
    names = dict.fromkeys(name for part in telling for name in part)
    shared = [name for name in names if name in _OF_TOKENS or all(name in part for part in telling)]
    return {name: np.concatenate([_column(part, name) for part in telling]) for name in shared}


def _column(part: dict[str, Array], name: str) -> Array:
    return part[name] if name in part else np.zeros(len(part["order"]), np.int64)
