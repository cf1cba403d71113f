"""Issues queries in place of LoadGen's StartTest: replayed arrivals, or a fixed number in flight.

Callbacks, dispatchers, responders and journal are the same as under LoadGen. A run of this kind is
never an MLPerf result.
"""

import json
import time
import traceback
from bisect import bisect_left
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
"""At the end of the run: how often to check whether the last answers are in."""

_Issue = Callable[[list[int], list[int]], None]


class Response(Protocol):
    """LoadGen's QuerySampleResponse. data: the address of `size` bytes, valid during the call only."""

    @property
    def id(self) -> int: ...
    @property
    def data(self) -> int: ...
    @property
    def size(self) -> int: ...


class AnswerLog:
    """Copies some answers, drawn at random, as LoadGen's accuracy_log_sampling_target does.

    The answer check reads them (harness/results/verdict/answers_check.py). Any thread may call
    `take`: appending to a list is one step under the GIL.
    """

    def __init__(self, queries: int, target: int, seed: int) -> None:
        """target: number of the queries whose answers to copy."""
        drawn = np.random.default_rng(seed).choice(queries, min(target, queries), replace=False)
        self._logged: list[int] = np.sort(drawn).tolist()
        self._rows: list[tuple[int, bytes]] = []

    def take(self, responses: Sequence[Response]) -> None:
        """responses: one batch, whose ids are consecutive."""
        first = responses[0].id
        begin = bisect_left(self._logged, first)
        end = bisect_left(self._logged, first + len(responses), begin)
        for query in self._logged[begin:end]:
            answer = responses[query - first]
            self._rows.append((answer.id, string_at(answer.data, answer.size)))

    def write(self, path: Path, samples: Array) -> None:
        """Writes the answers as LoadGen's accuracy log. samples: (queries,) dataset indices, by id."""
        rows = [
            {"seq_id": query, "qsl_idx": int(samples[query]), "data": payload.hex().upper()}
            for query, payload in sorted(self._rows)
        ]
        try:
            path.write_text(json.dumps(rows), encoding="utf-8")
        except OSError:  # a missing log makes the run INVALID, and nothing measured is lost
            traceback.print_exc()


class Scheduler:
    """One run. `complete` replaces LoadGen's QuerySamplesComplete; any thread may call it."""

    def __init__(self, plan: LoadPlan, journal: Journal, samples: Array) -> None:
        """samples: (queries,) the dataset index that each query asks for."""
        self._journal = journal
        self._held = list(range(plan.performance_count))
        self._samples = samples
        target = plan.logged_answers
        self._log = AnswerLog(len(samples), target, plan.answers_seed) if target else None

    def complete(self, responses: Sequence[Response]) -> None:
        """Copies some answers; the times are in the journal."""
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
        """Two new lists, which a dispatcher may keep and extend. A query's id is its issue order."""
        return list(range(first, end)), self._samples[first:end].tolist()


class Replay(Scheduler):
    """Issues each query at its time, and all overdue queries in one call, as LoadGen coalesces them.

    It sleeps until the next query, as LoadGen does (sleep_until), and does not spin for the last
    microseconds: a thread that spins in Python takes the GIL from the threads that answer.
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
    """Keeps `concurrency` queries in flight: answered queries are replaced at once, in one call."""

    def __init__(self, plan: LoadPlan, journal: Journal, samples: Array, concurrency: int) -> None:
        super().__init__(plan, journal, samples)
        self._concurrency = concurrency
        self._freed: SimpleQueue[int] = SimpleQueue()

    def complete(self, responses: Sequence[Response]) -> None:
        """Issues nothing: a dispatcher is called by one thread, and never within an answer."""
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
    """The scheduler of a plan; None where LoadGen schedules."""
    if plan.schedule is not None:
        after_ns, samples = schedule.stored(plan.schedule)
        return Replay(plan, journal, samples if samples is not None else _drawn(plan), after_ns)
    if plan.concurrency is not None:
        return FixedConcurrency(plan, journal, _drawn(plan), plan.concurrency)
    return None


def _drawn(plan: LoadPlan) -> Array:
    """(queries,) samples drawn with replacement by the sample_index seed, as LoadGen draws them.

    RandomState, because numpy promises that its numbers are the same in every version.
    """
    random = np.random.RandomState(plan.seeds.sample_index & 0xFFFFFFFF)
    return random.randint(0, plan.performance_count, plan.query_count, dtype=np.int64)
