"""The scheduler of sessions: a turn waits for its answers and its delay, and a failed turn ends its session."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np
import pytest

from harness.core.clock import wall_ns
from harness.loadgen.binding import Callbacks
from harness.run.journal import Journal
from harness.run.measured.sessions import Sessions
from harness.run.setup import SESSION_ROWS
from harness.run.supervisor.completions import read_completions, with_sessions
from harness.types import Array, SessionTurns
from tests.builders.support import journal, plan

MS = 1_000_000


class Response(NamedTuple):
    id: int
    size: int
    data: int = 0


def turns(*after: Sequence[int], session: Sequence[int], delay_ms: Sequence[int]) -> SessionTurns:
    delay_ns = np.array(delay_ms, np.int64) * MS
    return SessionTurns(np.array(session), [tuple(one) for one in after], delay_ns)


TWO = turns((), (0,), (), (2,), session=[0, 0, 1, 1], delay_ms=[0, 5, 0, 0])
"""Two sessions of two turns; the second turn of the first session has a delay."""
AGENTS = turns((), (0,), (0,), (1, 2), session=[0] * 4, delay_ms=[0, 10, 0, 3])
"""A turn, two subagents, and a turn that waits for both."""


class Issued(NamedTuple):
    query: int
    sample: int
    at_ns: int


class Server:
    """Answers on a thread, in the order of the queries. fails: samples whose answer is empty."""

    def __init__(self, view: Journal, scheduler: Sessions, fails: Sequence[int] = ()) -> None:
        self._issuer, self._writer = view.issuer(), view.writer(0)
        self._scheduler, self._fails = scheduler, fails
        self._jobs: SimpleQueue[tuple[int, list[int], list[int]] | None] = SimpleQueue()
        self.issued: list[Issued] = []
        self.answered_ns: dict[int, int] = {}

    def issue(self, ids: list[int], indices: list[int]) -> None:
        now_ns = wall_ns()
        first = self._issuer.issued(len(ids), now_ns)
        self.issued += [Issued(*pair, now_ns) for pair in zip(ids, indices, strict=True)]
        self._jobs.put((first, ids, indices))

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            first, ids, indices = job
            for place, (query, sample) in enumerate(zip(ids, indices, strict=True)):
                failed = sample in self._fails
                self.answered_ns[query] = now_ns = wall_ns()
                self._scheduler.complete([Response(query, 0 if failed else 8)])
                self._writer.batch(first + place, [sample], int(failed), *([now_ns] * 5))

    def run(self, folder: Path) -> None:
        thread = threading.Thread(target=self._work)
        thread.start()
        nothing: Callable[[list[int]], None] = lambda _: None  # noqa: E731
        self._scheduler.run(Callbacks(self.issue, nothing, nothing), folder)
        self._jobs.put(None)
        thread.join()


def ran(
    found: SessionTurns, folder: Path, queries: int, concurrency: int, fails: Sequence[int] = ()
) -> tuple[Server, dict[str, Array]]:
    """Returns the server and the columns of the run."""
    count = len(found.after)
    mine = plan(
        "server",
        query_count=queries,
        journal_samples=queries,
        total_count=count,
        performance_count=count,
        concurrency=concurrency,
        sessions=True,
    )
    view = journal(queries, 1)
    server = Server(view, Sessions(mine, view, found), fails)
    server.run(folder)
    done = with_sessions(read_completions(view, mine), folder / SESSION_ROWS)
    return server, dict(done.columns)


def test_a_turn_is_due_after_its_answers_and_its_delay(tmp_path: Path) -> None:
    server, columns = ran(AGENTS, tmp_path, queries=8, concurrency=1)
    by_query = {one.query: one for one in server.issued}
    assert sorted(by_query) == list(range(8))
    for begin in (0, 4):
        mine = sorted(list(by_query.values())[begin : begin + 4], key=lambda one: one.sample)
        first, tool, other, last = mine
        assert [one.sample for one in mine] == [0, 1, 2, 3]
        assert other.at_ns >= server.answered_ns[first.query]
        assert tool.at_ns >= server.answered_ns[first.query] + 10 * MS
        joined_ns = max(server.answered_ns[tool.query], server.answered_ns[other.query])
        assert last.at_ns >= joined_ns + 3 * MS
    assert (columns["scheduled_ns"] <= columns["entry_ns"]).all()
    assert columns["session"].tolist() == [0] * 4 + [1] * 4
    assert (columns["session_turns"] == 4).all()


def test_latency_counts_from_the_due_time(tmp_path: Path) -> None:
    server, columns = ran(TWO, tmp_path, queries=4, concurrency=1)
    (late,) = np.flatnonzero(columns["index"] == 1)
    (first,) = np.flatnonzero(columns["index"] == 0)
    due_ns = columns["scheduled_ns"][late]
    answered_ns = server.answered_ns[int(columns["order"][first])]
    assert 5 * MS <= due_ns - answered_ns < 6 * MS + 10 * MS  # the stamp is taken just after


def test_no_session_repeats_before_all_have_begun(tmp_path: Path) -> None:
    many = turns(*[()] * 50, session=range(50), delay_ms=[0] * 50)
    server, _ = ran(many, tmp_path, queries=120, concurrency=3)
    samples = [one.sample for one in server.issued]
    assert len(samples) == 120
    assert sorted(samples[:50]) == sorted(samples[50:100]) == list(range(50))
    again, _ = ran(many, tmp_path, queries=120, concurrency=3)
    assert [one.sample for one in again.issued] == samples


def test_a_failed_turn_ends_its_session(tmp_path: Path) -> None:
    server, columns = ran(AGENTS, tmp_path, queries=9, concurrency=1, fails=[2])
    samples = [one.sample for one in server.issued]
    assert 3 not in samples  # it waits for the failed turn
    assert len(samples) == 9
    assert len({*columns["session"].tolist()}) >= 3


@pytest.mark.parametrize("queries", [1, 2, 3, 5])
def test_the_count_of_queries_cuts_the_last_sessions(queries: int, tmp_path: Path) -> None:
    server, columns = ran(TWO, tmp_path, queries=queries, concurrency=2)
    assert len(server.issued) == len(columns["order"]) == queries


def test_without_the_file_of_due_times_a_turn_is_due_when_issued(tmp_path: Path) -> None:
    _, columns = ran(TWO, tmp_path, queries=4, concurrency=1)
    mine = plan("server", query_count=4, journal_samples=4, concurrency=1, sessions=True)
    view = journal(4, 1)
    issuer, writer = view.issuer(), view.writer(0)
    issuer.issued(1, 100)
    writer.batch(0, [0], 0, 110, 120, 130, 140, 150)
    done = with_sessions(read_completions(view, mine), tmp_path / "missing.npz")
    assert done.columns["scheduled_ns"].tolist() == [100]
    assert "session" not in done.columns
    assert "session" in columns
