"""Arrivals that LoadGen does not make, in the place of its StartTest: never an MLPerf result.

The same callbacks, dispatchers, responders and journal as under LoadGen; only who calls is another.
"""

import json
import time
import traceback
from collections.abc import Callable, Sequence
from ctypes import string_at
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol

import numpy as np

from harness.core.clock import wall_ns
from harness.core.units import NS_PER_S
from harness.loadgen import logs, schedule
from harness.loadgen.binding import Callbacks
from harness.loadgen.plan import LoadPlan
from harness.run.journal import Journal
from harness.types import Array

_LOOK_S = 1e-3
"""How often the end looks whether the last answers are there; nothing is issued any more."""

_Issue = Callable[[list[int], list[int]], None]


class Response(Protocol):
    """LoadGen's QuerySampleResponse. data: address of `size` bytes, valid in the call only."""

    @property
    def id(self) -> int: ...
    @property
    def data(self) -> int: ...
    @property
    def size(self) -> int: ...


class AnswerLog:
    """Every so-manyth answer, copied as LoadGen copies those it logs: harness/results/verdict/answers_check.py reads them.

    Any thread may take: a list's append is one step under the GIL.
    """

    def __init__(self, queries: int, wanted: int) -> None:
        self._every = max(1, queries // wanted)
        self._rows: list[tuple[int, bytes]] = []

    def take(self, responses: Sequence[Response]) -> None:
        """Of one batch, whose ids follow each other."""
        at = -responses[0].id % self._every
        while at < len(responses):
            answer = responses[at]
            self._rows.append((answer.id, string_at(answer.data, answer.size)))
            at += self._every

    def write(self, path: Path, samples: Array) -> None:
        """As LoadGen's accuracy log has them. samples: (queries,) dataset indices, by id."""
        rows = [
            {"seq_id": query, "qsl_idx": int(samples[query]), "data": payload.hex().upper()}
            for query, payload in sorted(self._rows)
        ]
        try:
            path.write_text(json.dumps(rows), encoding="utf-8")
        except OSError:  # what is missing makes the run INVALID; what was measured is kept
            traceback.print_exc()


class Scheduler:
    """One run. `complete` takes the place of LoadGen's QuerySamplesComplete, on any thread."""

    def __init__(self, plan: LoadPlan, journal: Journal, samples: Array) -> None:
        """samples: (queries,) the dataset index each query asks for."""
        self._journal = journal
        self._held = list(range(plan.performance_count))
        self._samples = samples
        wanted = plan.logged_answers
        self._log = AnswerLog(len(samples), wanted) if wanted else None

    def complete(self, responses: Sequence[Response]) -> None:
        """What is measured is in the journal; some answers are kept."""
        if self._log is not None:
            self._log.take(responses)

    def run(self, calls: Callbacks, outdir: Path) -> None:
        """Blocks until every query is answered, as LoadGen's StartTest does."""
        calls.load(self._held)
        self._journal.start_ns = wall_ns()
        self._issue_all(calls.issue)
        while self._journal.completed < len(self._samples):
            time.sleep(_LOOK_S)
        calls.unload(self._held)
        if self._log is not None:
            self._log.write(outdir / logs.ANSWERS, self._samples)

    def _issue_all(self, issue: _Issue) -> None:
        raise NotImplementedError

    def _ids_and_indices(self, first: int, end: int) -> tuple[list[int], list[int]]:
        """Two new lists: a dispatcher may keep and extend them. A query's id is its issue order."""
        return list(range(first, end)), self._samples[first:end].tolist()


class Replay(Scheduler):
    """Each query at its time; those overdue come in one call, as LoadGen coalesces them.

    Sleeps as LoadGen does (its thread's sleep_until) and does not spin for the last microseconds:
    whoever spins in Python takes the GIL from those who answer.
    """

    def __init__(self, plan: LoadPlan, journal: Journal, samples: Array, after_ns: Array) -> None:
        super().__init__(plan, journal, samples)
        self._after_ns = after_ns

    def _issue_all(self, issue: _Issue) -> None:
        due = self._after_ns + self._journal.start_ns
        due_ns = memoryview(due.data)  # single items: faster than numpy's
        first, count = 0, len(due_ns)
        while first < count:
            now_ns = wall_ns()
            if now_ns < due_ns[first]:
                time.sleep((due_ns[first] - now_ns) / NS_PER_S)
                continue
            end = first + 1
            while end < count and due_ns[end] <= now_ns:
                end += 1
            issue(*self._ids_and_indices(first, end))
            first = end


class FixedConcurrency(Scheduler):
    """So many queries in flight: what was answered is replaced at once, in one call."""

    def __init__(self, plan: LoadPlan, journal: Journal, samples: Array, concurrency: int) -> None:
        super().__init__(plan, journal, samples)
        self._concurrency = concurrency
        self._freed: SimpleQueue[int] = SimpleQueue()

    def complete(self, responses: Sequence[Response]) -> None:
        """Not issued from here: a dispatcher is called by one thread, and never within an answer."""
        super().complete(responses)
        self._freed.put(len(responses))

    def _issue_all(self, issue: _Issue) -> None:
        freed, total = self._freed, len(self._samples)
        end = min(self._concurrency, total)
        issue(*self._ids_and_indices(0, end))
        while end < total:
            count = freed.get()
            while not freed.empty():
                count += freed.get()
            first, end = end, min(end + count, total)
            issue(*self._ids_and_indices(first, end))


def scheduler_for(plan: LoadPlan, journal: Journal) -> Scheduler | None:
    """None where LoadGen schedules."""
    if plan.schedule is not None:
        after_ns, samples = schedule.stored(plan.schedule)
        return Replay(plan, journal, samples if samples is not None else _drawn(plan), after_ns)
    if plan.concurrency is not None:
        return FixedConcurrency(plan, journal, _drawn(plan), plan.concurrency)
    return None


def _drawn(plan: LoadPlan) -> Array:
    """(queries,) from the samples held, with replacement, as LoadGen draws; by the sample_index seed.

    RandomState: numpy promises the same numbers of it in every version.
    """
    random = np.random.RandomState(plan.seeds.sample_index & 0xFFFFFFFF)
    return random.randint(0, plan.performance_count, plan.query_count, dtype=np.int64)
