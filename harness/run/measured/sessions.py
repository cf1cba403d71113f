"""Issues each turn of a session after the answers on which the turn depends have arrived and the turn's delay has
passed.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from ctypes import string_at
from itertools import repeat
from math import log1p
from pathlib import Path
from queue import Empty, SimpleQueue

import numpy as np

from harness.core.clock import wall_ns
from harness.core.units import NS_PER_S
from harness.errors import ConfigError
from harness.loadgen import schedule
from harness.loadgen.binding import Callbacks
from harness.loadgen.plan import LoadPlan
from harness.run.journal import Journal
from harness.run.measured.own_scheduler import Response, Scheduler
from harness.run.setup import SESSION_ROWS
from harness.types import Array, Dataset, HasLiveHistory, HasSessions, SessionTurns


class _Session:
    """A session in progress."""

    __slots__ = ("answers", "broken", "left", "number", "pending", "ready_ns", "unsent", "waits")

    def __init__(self, number: int, turns: dict[int, int]) -> None:
        """number: number of sessions begun before this one. turns: maps each sample to the number of answers for which
        the sample waits.
        """
        self.number = number
        self.waits = turns
        # Maps a sample to the time of the latest answer that the sample waited for.
        self.ready_ns: dict[int, int] = {}
        self.pending = 0  # number of turns that have a due time but no answer
        self.left = len(turns)  # number of turns without an answer
        self.unsent = len(turns)
        self.broken = False
        # Maps a sample to its answer if later prompts contain it.
        self.answers: dict[int, bytes] = {}

    @property
    def is_over(self) -> bool:
        return not self.pending and (self.broken or not self.left)


class Sessions(Scheduler):
    """Keeps `concurrency` sessions active, or begins sessions at a rate or at the times in a file.

    The order of sessions is drawn from the seed sample_index; no session repeats before all others have begun. If a
    turn fails, no further turn of its session is sent, but turns that are already issued are still answered. All runs
    with the same seed have the same turns, unless a session fails. The last session may remain incomplete, because the
    number of queries is fixed. With a file of arrivals, every session is complete.
    """

    def __init__(
        self,
        plan: LoadPlan,
        journal: Journal,
        turns: SessionTurns,
        history: HasLiveHistory | None = None,
    ) -> None:
        """turns: turns of all sessions. A session is never begun if a performance run does not load all of its turns.

        history: inserts the answers of this run into later prompts; None if prompts are sent as recorded.
        """
        count = plan.journal_samples
        super().__init__(plan, journal, np.zeros(count, np.int64))
        self._delay_ns: list[int] = turns.delay_ns.tolist()
        self._after = turns.after
        self._next: list[list[int]] = [[] for _ in turns.after]
        for sample, answers in enumerate(turns.after):
            for answer in answers:
                self._next[answer].append(sample)
        self._members = _whole(turns.session.tolist(), plan.performance_count)
        self._random = np.random.RandomState(plan.seeds.sample_index & 0xFFFFFFFF)
        self._order: list[int] = []
        self._concurrent = plan.concurrency is not None
        # The sessions that the file of arrivals names; None if it names none.
        self._given: list[int] | None = None
        self._begins = self._begins_ns(plan, turns.session)
        self._arrives_ns: int | None = None  # start of the next session; None if unknown
        self._history = history
        self._working: set[int] = set()  # the first sample of each active session
        self._begun = 0
        self._end = 0  # number of queries issued so far
        self._room = count  # number of queries that are not yet assigned to a session
        self._going = 0  # number of active sessions
        self._due: list[
            tuple[int, int, _Session, int]
        ] = []  # a heap of (due ns, tie, session, sample)
        self._tie = 0
        self._of_query: dict[int, _Session] = {}
        self._answered: SimpleQueue[tuple[int, list[tuple[int, bytes | None]]]] = SimpleQueue()
        self._due_ns = np.zeros(count, np.int64)  # one due time per query
        # Number of each query's session, in order of start.
        self._session = np.zeros(count, np.int32)
        self._turns = np.zeros(count, np.int32)  # number of turns in each query's session

    def _begins_ns(self, plan: LoadPlan, session: Array) -> Iterator[int]:
        """Yields the start times of sessions in ns after the start of the run.

        With --concurrency, yields 0 once per session that begins with the run. Each further session begins when an
        earlier session is over.
        """
        if plan.concurrency is not None:
            return repeat(0, plan.concurrency)
        if plan.schedule is not None:
            after_ns, samples = schedule.stored(plan.schedule)
            if samples is not None:
                self._given = self._sessions_of(samples, session)
            return iter(after_ns.tolist())
        assert plan.target_qps is not None
        mean = sum(map(len, self._members)) / len(self._members)
        return _poisson_ns(plan.target_qps / mean, plan.seeds.schedule)

    def _sessions_of(self, samples: Array, session: Array) -> list[int]:
        """Returns the sessions to which the samples in the file of arrivals belong."""
        places = {int(session[members[0]]): n for n, members in enumerate(self._members)}
        found = [places.get(number) for number in session[samples].tolist()]
        if None in found:
            raise ConfigError(
                f"--arrivals names sample {samples[found.index(None)]}, whose session is not held in memory: raise "
                "--performance-count"
            )
        return [place for place in found if place is not None]

    def in_order(self) -> list[int]:
        """Returns the sample of each issued query, sorted by the start order of sessions and then by turn.

        The order does not depend on when answers arrive.
        """
        samples, session = self._samples[: self._end], self._session[: self._end]
        found: list[int] = samples[np.lexsort((samples, session))].tolist()
        return found

    def complete(self, responses: Sequence[Response]) -> None:
        super().complete(responses)
        keeps = self._history is not None
        answers = [
            (r.id, (string_at(r.data, r.size) if keeps else b"") if r.size > 0 else None)
            for r in responses
        ]
        self._answered.put((wall_ns(), answers))

    def run(self, calls: Callbacks, outdir: Path) -> None:
        super().run(calls, outdir)
        end = self._end
        np.savez(
            outdir / SESSION_ROWS,
            due_ns=self._due_ns[:end],
            session=self._session[:end],
            turns=self._turns[:end],
        )

    def _issue_all(self, issue: Callable[[list[int], list[int]], None]) -> None:
        self._arrive()
        while (self._going or self._arrives_ns is not None) and not self._journal.ends:
            queries, samples = self._take_due()
            if queries:
                issue(queries, samples)
                continue
            if self._going or self._arrives_ns is not None:
                self._wait()
        self._samples = self._samples[: self._end]

    def _arrive(self) -> None:
        """Begins every session that is due, and stores the start time of the next session."""
        while self._room and (after_ns := next(self._begins, None)) is not None:
            at_ns = self._journal.start_ns + after_ns
            if at_ns > wall_ns():
                self._arrives_ns = at_ns
                return
            self._begin(at_ns)
        self._arrives_ns = None

    def _take_due(self) -> tuple[list[int], list[int]]:
        """Returns the IDs and samples of all turns that are due now, as two new lists.

        With a live history, the lists contain one turn, because each prompt is made just before it is issued.
        """
        first, now_ns = self._end, wall_ns()
        if self._arrives_ns is not None and self._arrives_ns <= now_ns:
            self._begin(self._arrives_ns)
            self._arrive()
        while self._due and self._due[0][0] <= now_ns:
            due_ns, _, session, sample = heapq.heappop(self._due)
            if session.broken:
                self._drop(session, due_ns)
                continue
            query = self._end
            self._samples[query], self._due_ns[query] = sample, due_ns
            self._session[query], self._turns[query] = session.number, len(session.waits)
            self._of_query[query] = session
            session.unsent -= 1
            self._end += 1
            if self._history is not None:
                self._history.continue_with(sample, session.answers)
                break
        return self._ids_and_indices(first, self._end)

    def _wait(self) -> None:
        """Waits for the next answer, or for the next turn or session that is due, and takes all answers."""
        next_ns = self._arrives_ns
        if self._due and (next_ns is None or self._due[0][0] < next_ns):
            next_ns = self._due[0][0]
        left_s = (next_ns - wall_ns()) / NS_PER_S if next_ns is not None else None
        if left_s is not None and left_s <= 0 and self._answered.empty():
            return
        try:
            answers = [self._answered.get(timeout=max(0.0, left_s) if left_s is not None else None)]
        except Empty:
            return
        while not self._answered.empty():
            answers.append(self._answered.get())
        for stamp_ns, found in answers:
            for query, answer in found:
                self._take(query, stamp_ns, answer)

    def _take(self, query: int, stamp_ns: int, answer: bytes | None) -> None:
        """Takes an answer, and schedules the turns that waited for this answer. answer: None if the turn failed."""
        session, sample = self._of_query.pop(query), int(self._samples[query])
        session.pending -= 1
        session.left -= 1
        session.broken |= answer is None
        if answer is not None and self._history is not None:
            session.answers[sample] = answer
        if not session.broken:
            for turn in self._next[sample]:
                # The session was cut off before this turn, because the run has no more queries.
                if turn not in session.waits:
                    continue
                session.waits[turn] -= 1
                session.ready_ns[turn] = max(stamp_ns, session.ready_ns.get(turn, 0))
                if not session.waits[turn]:
                    self._make_due(session, turn, session.ready_ns[turn])
        if session.is_over:
            self._follow(session, stamp_ns)

    def _drop(self, session: _Session, now_ns: int) -> None:
        """Drops a due turn, because the turn's session has failed."""
        session.pending -= 1
        if session.is_over:
            self._follow(session, now_ns)

    def _follow(self, session: _Session, now_ns: int) -> None:
        """Ends a session, and begins the next session if it was waiting for a session to end."""
        self._going -= 1
        self._room += session.unsent
        self._working.discard(next(iter(session.waits)))
        if self._arrives_ns is None and self._room:
            if self._concurrent:
                self._begin(now_ns)
            else:
                self._arrive()  # unsent turns leave queries for another session

    def _begin(self, at_ns: int) -> None:
        members = self._drawn()[: self._room]
        self._room -= len(members)
        session = _Session(self._begun, {sample: len(self._after[sample]) for sample in members})
        self._begun += 1
        self._going += 1
        self._working.add(members[0])
        for sample in members:
            if not self._after[sample]:
                self._make_due(session, sample, at_ns)

    def _drawn(self) -> Sequence[int]:
        """Returns the samples of the next session.

        With a live history, prefers a session that is not active, so that no session runs twice at the same time.
        """
        if self._given is not None:
            return self._members[self._given[self._begun]]
        if not self._order:
            self._order = self._random.permutation(len(self._members)).tolist()
        if self._history is not None:
            for place in range(len(self._order) - 1, -1, -1):
                if self._members[self._order[place]][0] not in self._working:
                    return self._members[self._order.pop(place)]
        return self._members[self._order.pop()]

    def _make_due(self, session: _Session, sample: int, at_ns: int) -> None:
        session.pending += 1
        self._tie += 1
        heapq.heappush(self._due, (at_ns + self._delay_ns[sample], self._tie, session, sample))


def sessions_of(
    plan: LoadPlan, journal: Journal, dataset: Dataset, answer_dtype: str
) -> Sessions | None:
    """Returns the scheduler of a plan with sessions; None for any other plan or dataset."""
    if not (plan.sessions and isinstance(dataset, HasSessions)):
        return None
    if not (isinstance(dataset, HasLiveHistory) and dataset.live_history):
        return Sessions(plan, journal, dataset.sessions())
    if answer_dtype != "uint8":
        raise ConfigError(
            "--dataset-option history=live needs the answers as text: add --backend-option answer=text"
        )
    return Sessions(plan, journal, dataset.sessions(), dataset)


def _poisson_ns(per_s: float, seed: int) -> Iterator[int]:
    """Yields an endless series of arrival times in ns after the start. The first time is 0."""
    random, at_s = np.random.RandomState(seed & 0xFFFFFFFF), 0.0
    while True:
        yield int(at_s * NS_PER_S)
        at_s -= log1p(-random.random_sample()) / per_s


def _whole(session: Sequence[int], held: int) -> list[list[int]]:
    """Returns the samples of each session whose samples are all held in memory."""
    members: dict[int, list[int]] = {}
    for sample, number in enumerate(session):
        members.setdefault(number, []).append(sample)
    return [samples for samples in members.values() if samples[-1] < held]
