"""The scheduler for sessions: a turn waits for its answers and its delay, and a failed turn ends its session."""

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np
import pytest

from harness.core.clock import wall_ns
from harness.errors import ConfigError
from harness.loadgen import schedule
from harness.loadgen.binding import Callbacks
from harness.run.journal import Journal
from harness.run.measured.sessions import Sessions
from harness.run.setup import SESSION_ROWS
from harness.run.supervisor.completions import read_completions, with_sessions
from harness.types import Array, SessionTurns
from tests.builders.support import journal, plan

MS = 1_000_000


def address_of(text: bytes) -> int:
    """Returns the address of the bytes, which must stay alive during the call."""
    return ctypes.cast(ctypes.c_char_p(text), ctypes.c_void_p).value or 0


class Response(NamedTuple):
    id: int
    size: int
    data: int = 0


def turns(*after: Sequence[int], session: Sequence[int], delay_ms: Sequence[int]) -> SessionTurns:
    delay_ns = np.array(delay_ms, np.int64) * MS
    return SessionTurns(np.array(session), [tuple(one) for one in after], delay_ns)


TWO = turns((), (0,), (), (2,), session=[0, 0, 1, 1], delay_ms=[0, 5, 0, 0])
"""Two sessions with two turns each; the second turn of the first session has a delay."""
AGENTS = turns((), (0,), (0,), (1, 2), session=[0] * 4, delay_ms=[0, 10, 0, 3])
"""The first turn, two subagents, and a last turn that waits for both subagents."""


class Issued(NamedTuple):
    query: int
    sample: int
    at_ns: int


class History:
    """Records which answers are inserted before which turn."""

    live_history = True

    def __init__(self) -> None:
        self.put: list[tuple[int, dict[int, bytes]]] = []

    def continue_with(self, index: int, answers: Mapping[int, bytes]) -> None:
        self.put.append((index, dict(answers)))


class Server:
    """Answers the queries in order, on a thread. fails: samples whose answer is empty."""

    def __init__(self, view: Journal, scheduler: Sessions, fails: Sequence[int] = ()) -> None:
        self._issuer, self._writer = view.issuer(), view.writer(0)
        self._scheduler, self._fails = scheduler, fails
        self._jobs: SimpleQueue[tuple[int, list[int], list[int]] | None] = SimpleQueue()
        self.scheduler = scheduler
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
                text = b"" if failed else b"answer-%d" % sample
                self._scheduler.complete([Response(query, len(text), address_of(text))])
                self._writer.batch(first + place, [sample], int(failed), *([now_ns] * 5))

    def run(self, folder: Path) -> None:
        thread = threading.Thread(target=self._work)
        thread.start()
        nothing: Callable[[list[int]], None] = lambda _: None  # noqa: E731
        self._scheduler.run(Callbacks(self.issue, nothing, nothing), folder)
        self._jobs.put(None)
        thread.join()


def ran(
    found: SessionTurns,
    folder: Path,
    queries: int,
    concurrency: int | None = None,
    fails: Sequence[int] = (),
    history: "History | None" = None,
    **more: Any,
) -> tuple[Server, dict[str, Array]]:
    """Returns the server and the columns of the run. more: settings for the plan."""
    count = len(found.after)
    settings = {"query_count": queries, "journal_samples": queries, **more}
    held = {"total_count": count, "performance_count": count, **settings}
    mine = plan("server", concurrency=concurrency, sessions=True, **held)
    view = journal(settings["journal_samples"], 1)
    server = Server(view, Sessions(mine, view, found, history), fails)
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
    # The server takes its time stamp just after it has answered.
    assert 5 * MS <= due_ns - answered_ns < 6 * MS + 10 * MS


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
    assert 3 not in samples  # turn 3 waits for turn 2, which failed
    assert len(samples) == 9
    assert len({*columns["session"].tolist()}) >= 3


@pytest.mark.parametrize("queries", [1, 2, 3, 5])
def test_the_count_of_queries_cuts_the_last_sessions(queries: int, tmp_path: Path) -> None:
    server, columns = ran(TWO, tmp_path, queries=queries, concurrency=2)
    assert len(server.issued) == len(columns["order"]) == queries


def test_the_turns_of_a_run_do_not_depend_on_time(tmp_path: Path) -> None:
    """Subagents that overtake each other change the order of issue, but neither the turns nor their order in the list
    of turns.
    """
    many = turns(
        *[one for n in range(20) for one in ((), (3 * n,), (3 * n,))],
        session=[n for n in range(20) for _ in range(3)],
        delay_ms=[0, 2, 1] * 20,
    )
    orders = []
    for concurrency in (1, 5, 20):
        server, _ = ran(many, tmp_path, queries=50, concurrency=concurrency)
        orders.append(server.scheduler.in_order())
        assert sorted(one.sample for one in server.issued) == sorted(orders[-1])
    assert orders[0] == orders[1] == orders[2]
    assert len(orders[0]) == 50


def test_sessions_begin_at_a_rate_that_does_not_wait_for_them(tmp_path: Path) -> None:
    slow = turns((), (0,), (), (2,), session=[0, 0, 1, 1], delay_ms=[0, 80, 0, 80])
    server, columns = ran(slow, tmp_path, queries=40, target_qps=400.0)
    assert len(server.issued) == 40
    first = np.sort(columns["scheduled_ns"][columns["index"] % 2 == 0])
    assert len(first) == 20
    # At 200 sessions/s, 20 sessions begin within about 0.1 s, although each session lasts 0.08 s.
    assert 20 * MS < first[-1] - first[0] < 400 * MS
    again, other = ran(slow, tmp_path, queries=40, target_qps=400.0)
    begins = np.sort(other["scheduled_ns"][other["index"] % 2 == 0])
    assert again.scheduler.in_order() == server.scheduler.in_order()
    assert np.abs((begins - begins[0]) - (first - first[0])).max() < 1000


def test_sessions_begin_at_the_times_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / schedule.SCHEDULE
    schedule.store(path, np.array([0, 5 * MS, 30 * MS]), None)
    more: Any = {"schedule": str(path), "journal_samples": 12}
    server, columns = ran(AGENTS, tmp_path, queries=3, **more)
    assert len(server.issued) == 12
    begins = np.sort(columns["scheduled_ns"][columns["index"] == 0])
    assert (begins - begins[0]).tolist() == [0, 5 * MS, 30 * MS]


def test_a_file_of_arrivals_may_name_the_sessions(tmp_path: Path) -> None:
    path = tmp_path / schedule.SCHEDULE
    schedule.store(path, np.array([0, MS, 2 * MS]), np.array([2, 3, 0]))
    more: Any = {"schedule": str(path), "journal_samples": 6}
    server, _ = ran(TWO, tmp_path, queries=3, **more)
    assert server.scheduler.in_order() == [2, 3, 2, 3, 0, 1]
    schedule.stored.cache_clear()
    with pytest.raises(ConfigError, match="whose session is not held in memory"):
        ran(TWO, tmp_path, queries=3, performance_count=2, **more)


def test_a_live_history_gets_the_answers_of_the_session(tmp_path: Path) -> None:
    history = History()
    ran(AGENTS, tmp_path, queries=8, concurrency=1, history=history)
    first, second = b"answer-0", b"answer-1"
    before = [(sample, sorted(answers)) for sample, answers in history.put]
    assert before == [(0, []), (2, [0]), (1, [0, 2]), (3, [0, 1, 2])] * 2
    assert history.put[3][1][0] == first
    assert history.put[3][1][1] == second


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
