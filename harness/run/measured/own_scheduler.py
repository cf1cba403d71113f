"""Issues queries in place of LoadGen's StartTest: at recorded times, or with a fixed number of queries in flight.

The callbacks, dispatchers, responders and journal are the same as under LoadGen. Such a run is never an MLPerf result.
"""

import json
import time
import traceback
from bisect import bisect_left
from collections.abc import Callable, Sequence
from ctypes import string_at
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Lock
from typing import Any, NamedTuple, Protocol

import numpy as np

from harness.core.clock import wall_ns
from harness.core.units import NS_PER_S
from harness.loadgen import logs, schedule
from harness.loadgen.binding import Callbacks
from harness.loadgen.plan import LoadPlan
from harness.run.journal import Journal
from harness.types import Array

_LOOK_S = 1e-3
"""Time between two checks for the last answers at the end of the run."""

_Issue = Callable[[list[int], list[int]], None]


class Response(Protocol):
    """LoadGen's QuerySampleResponse. data: address of `size` bytes, which are valid only during the call."""

    @property
    def id(self) -> int: ...
    @property
    def data(self) -> int: ...
    @property
    def size(self) -> int: ...


class AnswerLog:
    """Copies the answers of randomly drawn queries, as LoadGen does for accuracy_log_sampling_target.

    The answer check reads these answers (harness/results/verdict/answers_check.py). Any thread may call `take`, because
    appending to a list is atomic under the GIL.
    """

    def __init__(self, queries: int, target: int, seed: int, *, takes_empty: bool = True) -> None:
        """target: number of queries whose answers are copied.

        takes_empty: whether empty answers are copied, too. Requests that the client cancelled have empty answers.
        """
        self._takes_empty = takes_empty
        drawn = np.random.default_rng(seed).choice(queries, min(target, queries), replace=False)
        self._logged: list[int] = np.sort(drawn).tolist()
        self._rows: list[tuple[int, bytes]] = []

    def take(self, responses: Sequence[Response]) -> None:
        """Copies the drawn answers of one batch. responses: responses with consecutive IDs."""
        first = responses[0].id
        begin = bisect_left(self._logged, first)
        end = bisect_left(self._logged, first + len(responses), begin)
        for query in self._logged[begin:end]:
            answer = responses[query - first]
            if not (answer.size or self._takes_empty):
                continue
            self._rows.append((answer.id, string_at(answer.data, answer.size)))

    def write(self, path: Path, samples: Array) -> None:
        """Writes the answers in the format of LoadGen's accuracy log. samples: (queries,) dataset indices by ID."""
        rows = [(query, int(samples[query]), payload) for query, payload in sorted(self._rows)]
        _write_answers(path, rows)


def _write_answers(path: Path, answers: Sequence[tuple[int, int, bytes]]) -> None:
    """Writes the log. answers: (query, dataset index, answer) tuples."""
    rows = [
        {"seq_id": query, "qsl_idx": sample, "data": payload.hex().upper()}
        for query, sample, payload in answers
    ]
    try:
        path.write_text(json.dumps(rows), encoding="utf-8")
    except OSError:  # a run without this log is INVALID, but keeps its measurements
        traceback.print_exc()


class Play(NamedTuple):
    """Answers to a complete sequence that a stream has played."""

    id: int
    """ID of the first frame's query."""
    sample: int
    """Dataset index of the sequence."""
    answer: bytes
    """Answers to all frames, in order."""


class PlayLog:
    """Keeps the answers to randomly drawn complete sequences. Any thread may call `take`."""

    def __init__(self, target: int, seed: int) -> None:
        """target: number of sequences to keep."""
        self._target = target
        self._random = np.random.default_rng(seed)
        self._seen = 0
        self._plays: list[Play] = []
        self._lock = Lock()

    def take(self, plays: Sequence[Any]) -> None:
        """Takes finished plays. Reservoir sampling keeps every play with the same probability. plays: list of Play."""
        with self._lock:
            for play in plays:
                self._seen += 1
                if len(self._plays) < self._target:
                    self._plays.append(play)
                elif (place := int(self._random.integers(self._seen))) < self._target:
                    self._plays[place] = play

    def write(self, path: Path, _samples: Array) -> None:
        """Writes the answers in the format of LoadGen's accuracy log."""
        _write_answers(path, [(play.id, play.sample, play.answer) for play in sorted(self._plays)])


class Scheduler:
    """Schedules one run. `complete` replaces LoadGen's QuerySamplesComplete; any thread may call it."""

    def __init__(
        self,
        plan: LoadPlan,
        journal: Journal,
        samples: Array,
        begin: Callable[[], int] = wall_ns,
    ) -> None:
        """samples: (queries,) dataset index of each query. begin: see `scheduler_for`."""
        self._journal = journal
        self._start_ns = begin
        self._held = list(range(plan.performance_count))
        self._samples = samples
        self._log = self._answer_log(plan) if plan.logged_answers else None

    def _answer_log(self, plan: LoadPlan) -> "AnswerLog | PlayLog":
        queries = plan.least_queries or len(self._samples)
        return AnswerLog(
            queries,
            plan.logged_answers,
            plan.answers_seed,
            takes_empty=not plan.cancel_share,
        )

    def complete(self, responses: Sequence[Response]) -> None:
        """Takes answers, and copies the drawn answers. The times of the answers are already in the journal."""
        if self._log is not None:
            self._log.take(responses)

    def run(self, calls: Callbacks, outdir: Path) -> None:
        """Issues all queries, and returns when every query is answered, as LoadGen's StartTest does."""
        calls.load(self._held)
        self._journal.start_ns = self._start_ns()
        self._issue_all(calls.issue)
        while self._journal.completed < self._wanted:
            time.sleep(_LOOK_S)
        calls.unload(self._held)
        if self._log is not None:
            self._log.write(outdir / logs.ANSWERS, self._samples)

    @property
    def _wanted(self) -> int:
        """Returns the number of answers for which the run waits after it has issued the last query."""
        return self._journal.issued if self._journal.ends else len(self._samples)

    def _issue_all(self, issue: _Issue) -> None:
        raise NotImplementedError

    def _ids_and_indices(self, first: int, end: int) -> tuple[list[int], list[int]]:
        """Returns the IDs and samples of some queries as two new lists, which a dispatcher may keep and extend.

        The ID of a query is its position in the order of issue.
        """
        return list(range(first, end)), self._samples[first:end].tolist()


class Replay(Scheduler):
    """Issues each query at its due time, and all overdue queries in one call, as LoadGen does.

    Sleeps until the next query is due, as LoadGen does (sleep_until). Does not spin for the last microseconds, because
    a spinning Python thread would take the GIL from the threads that run the model.
    """

    def __init__(
        self,
        plan: LoadPlan,
        journal: Journal,
        samples: Array,
        after_ns: Array,
        begin: Callable[[], int] = wall_ns,
    ) -> None:
        super().__init__(plan, journal, samples, begin)
        self._after_ns = after_ns

    def _issue_all(self, issue: _Issue) -> None:
        due = self._after_ns + self._journal.start_ns
        due_ns = memoryview(due.data)  # a memoryview is faster than NumPy for single items
        first, count = 0, len(due_ns)
        while first < count and not self._journal.ends:
            now_ns = wall_ns()
            if now_ns < due_ns[first]:
                time.sleep((due_ns[first] - now_ns) / NS_PER_S)
                continue
            end = first + 1
            while end < count and due_ns[end] <= now_ns:
                end += 1
            issue(*self._ids_and_indices(first, end))
            first = end


class FramesInRealTime(Replay):
    """Issues each frame of every stream when the frame is due. The dispatcher chooses the sequences to play."""

    def __init__(self, plan: LoadPlan, journal: Journal, after_ns: Array) -> None:
        super().__init__(plan, journal, np.zeros(plan.query_count, np.int64), after_ns)

    def _answer_log(self, plan: LoadPlan) -> PlayLog:
        return PlayLog(plan.logged_answers, plan.answers_seed)


class Receiver(Protocol):
    """A dispatcher with one receiving thread, which calls `follow` after each turn. wake: wakes the receiving thread."""

    follow: Callable[[], None] | None

    def wake(self) -> None: ...


class ClosedLoop(Scheduler):
    """Keeps `concurrency` queries in flight. Replaces all answered queries immediately, in one call.

    New queries are issued on LoadGen's thread, or on a dispatcher's receiving thread (`issue_on`), which saves a thread
    switch per query. New queries are never issued within `complete`, because only one thread may call a dispatcher, and
    that thread must not be delivering an answer at the same time.
    """

    def __init__(self, plan: LoadPlan, journal: Journal, samples: Array, concurrency: int) -> None:
        super().__init__(plan, journal, samples)
        self._concurrency = min(concurrency, len(samples))
        self._answered: SimpleQueue[list[int]] = SimpleQueue()
        self._end = 0  # number of queries issued so far
        self._issue: _Issue | None = None  # set when the first queries are issued
        self._receiver: Receiver | None = None
        self._all_issued = Event()

    def complete(self, responses: Sequence[Response]) -> None:
        super().complete(responses)
        self._answered.put([response.id for response in responses])

    def issue_on(self, receiver: Receiver) -> None:
        """Makes `receiver` issue the queries. Call this before the run."""
        self._receiver = receiver
        receiver.follow = self._follow_answers

    def _issue_all(self, issue: _Issue) -> None:
        self._begin()
        self._end = self._concurrency
        issue(*self._ids_and_indices(0, self._end))
        self._issue = issue
        if self._receiver is not None:
            self._receiver.wake()  # queries may have been answered before the receiver began to listen
            self._all_issued.wait()
            return
        while not self._is_over:
            self._follow(issue, self._answered.get())

    def _follow_answers(self) -> None:
        if self._issue is None:
            return
        if not self._answered.empty():
            self._follow(self._issue, [])
        if self._is_over:
            self._all_issued.set()

    def _follow(self, issue: _Issue, answered: list[int]) -> None:
        """Issues one new query for each query in `answered`, and for each query that is answered while this method
        runs.
        """
        if self._is_over:
            return
        while not self._answered.empty():
            answered += self._answered.get()
        first, end = self._end, min(self._end + len(answered), len(self._samples))
        self._draw(answered, first, end)
        self._end = end
        if end > first:
            issue(*self._ids_and_indices(first, end))

    @property
    def _is_over(self) -> bool:
        return self._end == len(self._samples) or self._journal.ends

    def _begin(self) -> None:
        """Draws the samples of the first queries, unless these samples were drawn before the run."""

    def _draw(self, answered: Sequence[int], first: int, end: int) -> None:
        """Draws the samples of queries `first` to `end`, which replace the answered queries."""


class ConversationsInTurn(ClosedLoop):
    """Keeps `concurrency` conversations active. Each conversation sends its next turn when the previous turn is
    answered.

    When a conversation ends, a new one begins. Conversations are drawn with replacement, with sample_index as the seed.
    The last conversations may remain incomplete because the number of queries is fixed.
    """

    def __init__(self, plan: LoadPlan, journal: Journal, turns: Array) -> None:
        """turns: the turns, in the form of HasTurns. Turns beyond the samples that a performance run loads are never
        sent.
        """
        assert plan.concurrency is not None
        super().__init__(plan, journal, np.zeros(plan.query_count, np.int64), plan.concurrency)
        held = np.append(turns[: plan.performance_count], 0)
        self._ends: list[bool] = (
            held[1:] == 0
        ).tolist()  # each value: whether the sample ends its conversation
        self._begins = np.flatnonzero(held[:-1] == 0)
        self._random = np.random.RandomState(plan.seeds.sample_index & 0xFFFFFFFF)

    def _begin(self) -> None:
        count = self._concurrency
        self._samples[:count] = [self._new_conversation() for _ in range(count)]

    def _draw(self, answered: Sequence[int], first: int, end: int) -> None:
        following = [self._after(int(self._samples[query])) for query in answered]
        self._samples[first:end] = following[: end - first]

    def _new_conversation(self) -> int:
        return int(self._begins[self._random.randint(0, len(self._begins))])

    def _after(self, sample: int) -> int:
        return self._new_conversation() if self._ends[sample] else sample + 1


def scheduler_for(
    plan: LoadPlan,
    journal: Journal,
    turns: Array | None = None,
    begin: Callable[[], int] = wall_ns,
) -> Scheduler | None:
    """Returns the scheduler of a plan; None if LoadGen schedules.

    turns: turns of a dataset of conversations; None for other datasets. begin: called after the samples are loaded;
    returns the wall-clock time at which the schedule starts, which may be in the future.
    """
    if plan.schedule is not None:
        after_ns, samples = schedule.stored(plan.schedule)
        if samples is None:
            samples = schedule.drawn_samples(plan)
        return Replay(plan, journal, samples, after_ns, begin)
    if plan.streams is not None:
        due_ns = schedule.planned_ns(plan, plan.query_count)
        assert due_ns is not None
        return FramesInRealTime(plan, journal, due_ns)
    if plan.concurrency is not None and turns is not None:
        return ConversationsInTurn(plan, journal, turns)
    if plan.concurrency is not None:
        return ClosedLoop(plan, journal, schedule.drawn_samples(plan), plan.concurrency)
    return None
