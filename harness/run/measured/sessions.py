"""Issues the turns of sessions: each when the answers that it waits for have come and its delay is over."""

import heapq
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue

import numpy as np

from harness.core.clock import wall_ns
from harness.core.units import NS_PER_S
from harness.loadgen.binding import Callbacks
from harness.loadgen.plan import LoadPlan
from harness.run.journal import Journal
from harness.run.measured.own_scheduler import Response, Scheduler
from harness.run.setup import SESSION_ROWS
from harness.types import SessionTurns


class _Session:
    """A session that goes on."""

    __slots__ = ("broken", "left", "number", "pending", "ready_ns", "waits")

    def __init__(self, number: int, turns: dict[int, int]) -> None:
        """number: of the sessions begun so far. turns: sample -> how many answers it waits for."""
        self.number = number
        self.waits = turns
        self.ready_ns: dict[int, int] = {}  # sample -> time of the latest answer that it waits for
        self.pending = 0  # turns that are due at a time, or issued and not answered
        self.left = len(turns)  # turns not answered
        self.broken = False

    @property
    def is_over(self) -> bool:
        return not self.pending and (self.broken or not self.left)


class Sessions(Scheduler):
    """Keeps `concurrency` sessions going. When a session ends, the next one begins.

    Sessions come in an order drawn from the sample_index seed in which none repeats before all others have begun. A
    turn that fails ends its session: turns that are already issued are still answered, no further turn is sent. The
    last sessions are cut short by the count of queries.
    """

    def __init__(self, plan: LoadPlan, journal: Journal, turns: SessionTurns) -> None:
        """turns: sessions with a turn beyond the samples of a performance run are never begun."""
        assert plan.concurrency is not None
        count = plan.query_count
        super().__init__(plan, journal, np.zeros(count, np.int64))
        self._concurrency = plan.concurrency
        self._delay_ns: list[int] = turns.delay_ns.tolist()
        self._after = turns.after
        self._next: list[list[int]] = [[] for _ in turns.after]
        for sample, answers in enumerate(turns.after):
            for answer in answers:
                self._next[answer].append(sample)
        self._members = _whole(turns.session.tolist(), plan.performance_count)
        self._random = np.random.RandomState(plan.seeds.sample_index & 0xFFFFFFFF)
        self._order: list[int] = []
        self._begun = 0
        self._end = 0  # queries issued so far
        self._due: list[tuple[int, int, _Session, int]] = []  # heap of (ns, tie, session, sample)
        self._tie = 0
        self._of_query: dict[int, _Session] = {}
        self._answered: SimpleQueue[tuple[int, list[tuple[int, bool]]]] = SimpleQueue()
        self._due_ns = np.zeros(count, np.int64)  # by query
        self._session = np.zeros(count, np.int32)  # by query: number in the order of begins
        self._turns = np.zeros(count, np.int32)  # by query: turns of its session

    def complete(self, responses: Sequence[Response]) -> None:
        super().complete(responses)
        answers = [(response.id, response.size > 0) for response in responses]
        self._answered.put((wall_ns(), answers))

    def run(self, calls: Callbacks, outdir: Path) -> None:
        super().run(calls, outdir)
        np.savez(
            outdir / SESSION_ROWS, due_ns=self._due_ns, session=self._session, turns=self._turns
        )

    def _issue_all(self, issue: Callable[[list[int], list[int]], None]) -> None:
        for _ in range(self._concurrency):
            self._begin(self._journal.start_ns)
        while self._end < len(self._samples) and not self._journal.ends:
            queries, samples = self._take_due()
            if queries:
                issue(queries, samples)
                continue
            self._wait()

    def _take_due(self) -> tuple[list[int], list[int]]:
        """Returns the ids and samples of all turns that are due now, as two new lists."""
        first, now_ns = self._end, wall_ns()
        while self._due and self._due[0][0] <= now_ns and self._end < len(self._samples):
            due_ns, _, session, sample = heapq.heappop(self._due)
            if session.broken:
                self._drop(session, due_ns)
                continue
            query = self._end
            self._samples[query], self._due_ns[query] = sample, due_ns
            self._session[query], self._turns[query] = session.number, len(session.waits)
            self._of_query[query] = session
            self._end += 1
        return self._ids_and_indices(first, self._end)

    def _wait(self) -> None:
        """Waits for the next answer or the next turn that is due, and takes all answers."""
        left_s = (self._due[0][0] - wall_ns()) / NS_PER_S if self._due else None
        if left_s is not None and left_s <= 0:
            return
        try:
            answers = [self._answered.get(timeout=left_s)]
        except Empty:
            return
        while not self._answered.empty():
            answers.append(self._answered.get())
        for stamp_ns, found in answers:
            for query, is_right in found:
                self._take(query, stamp_ns, is_right)

    def _take(self, query: int, stamp_ns: int, is_right: bool) -> None:
        """Takes an answer, and makes the turns due that waited for it."""
        session, sample = self._of_query.pop(query), int(self._samples[query])
        session.pending -= 1
        session.left -= 1
        session.broken |= not is_right
        if not session.broken:
            for turn in self._next[sample]:
                session.waits[turn] -= 1
                session.ready_ns[turn] = max(stamp_ns, session.ready_ns.get(turn, 0))
                if not session.waits[turn]:
                    self._make_due(session, turn, session.ready_ns[turn])
        if session.is_over:
            self._begin(stamp_ns)

    def _drop(self, session: _Session, now_ns: int) -> None:
        """Drops a turn that was due in a session that is broken."""
        session.pending -= 1
        if session.is_over:
            self._begin(now_ns)

    def _begin(self, at_ns: int) -> None:
        members = self._members[self._drawn()]
        session = _Session(self._begun, {sample: len(self._after[sample]) for sample in members})
        self._begun += 1
        for sample in members:
            if not self._after[sample]:
                self._make_due(session, sample, at_ns)

    def _drawn(self) -> int:
        if not self._order:
            self._order = self._random.permutation(len(self._members)).tolist()
        return self._order.pop()

    def _make_due(self, session: _Session, sample: int, at_ns: int) -> None:
        session.pending += 1
        self._tie += 1
        heapq.heappush(self._due, (at_ns + self._delay_ns[sample], self._tie, session, sample))


def _whole(session: Sequence[int], held: int) -> list[list[int]]:
    """Returns the samples of each session that is held completely."""
    members: dict[int, list[int]] = {}
    for sample, number in enumerate(session):
        members.setdefault(number, []).append(sample)
    return [samples for samples in members.values() if samples[-1] < held]
