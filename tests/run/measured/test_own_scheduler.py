"""Our own scheduler issues every query once, never early, and never too many at a time."""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.clock import wall_ns
from harness.loadgen import logs, schedule
from harness.loadgen.binding import Callbacks
from harness.loadgen.logs import read_answers
from harness.loadgen.plan import LoadPlan
from harness.loadgen.schedule import freed_ns
from harness.results.evidence.stages import Completions
from harness.run.journal import Journal
from harness.run.measured.own_scheduler import (
    AnswerLog,
    ClosedLoop,
    ConversationsInTurn,
    Replay,
    Scheduler,
    scheduler_for,
)
from harness.run.supervisor.completions import NewRows, read_completions
from harness.run.supervisor.metrics.live_counts import LiveCounts
from harness.run.supervisor.until import shortened
from harness.run.supervisor.watchdog import Watchdog
from harness.types import Array
from tests.builders.support import journal, plan

QUERIES = 300


class Response(NamedTuple):
    id: int
    data: int = 0
    size: int = 0


How = Literal["worker", "inline", "receiver"]
HOWS = get_args(How)


class Server:
    """Stands in for dispatcher and instance: a worker takes all waiting samples, or the caller answers.

    receiver: whether the worker also issues the next queries of a closed loop.
    """

    def __init__(self, view: Journal, scheduler: Scheduler, how: How = "worker") -> None:
        self._issuer, self._writer = view.issuer(), view.writer(0)
        self._scheduler = scheduler
        self._jobs: SimpleQueue[tuple[int, list[int], list[int]] | None] = SimpleQueue()
        self._inline = how == "inline"
        self.follow: Callable[[], None] | None = None
        if how == "receiver" and isinstance(scheduler, ClosedLoop):
            scheduler.issue_on(self)
        self.calls: list[tuple[list[int], list[int], int]] = []
        self.threads: list[int] = []
        """The thread that made each call."""
        self.loaded: list[list[int]] = []
        self.unloaded: list[list[int]] = []
        self._thread = threading.Thread(target=self._work)

    def issue(self, ids: list[int], indices: list[int]) -> None:
        now_ns = wall_ns()
        first = self._issuer.issued(len(ids), now_ns)
        self.calls.append((list(ids), indices, now_ns))
        self.threads.append(threading.get_ident())
        if self._inline:
            self._answer(first, ids, indices)
        else:
            self._jobs.put((first, ids, indices))

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            if job[1]:
                self._answer(*job)
            if self.follow is not None:
                self.follow()

    def wake(self) -> None:
        self._jobs.put((0, [], []))

    def _answer(self, first: int, ids: list[int], indices: list[int]) -> None:
        taken_ns = wall_ns()
        completed_ns = wall_ns()
        self._scheduler.complete([Response(i) for i in ids])
        self._writer.batch(first, indices, 0, *([taken_ns] * 4 + [completed_ns]))

    def run(self, folder: Path) -> None:
        self._thread.start()
        calls = Callbacks(self.issue, self.loaded.append, self.unloaded.append)
        self._scheduler.run(calls, folder)
        self._jobs.put(None)
        self._thread.join()


def replayed(folder: Path, after_ns: Array, samples: Array | None = None) -> LoadPlan:
    path = folder / schedule.SCHEDULE
    schedule.store(path, after_ns, samples)
    schedule.stored.cache_clear()
    count = len(after_ns)
    return plan(
        "server",
        target_qps=None,
        schedule=str(path),
        query_count=count,
        journal_samples=count,
    )


def ran(
    load: LoadPlan, folder: Path, how: How = "worker", *, turns: Array | None = None
) -> tuple[Server, Completions]:
    view = journal(load.query_count, 1)
    scheduler = scheduler_for(load, view, turns)
    assert scheduler is not None
    server = Server(view, scheduler, how)
    server.run(folder)
    assert server.loaded == server.unloaded == [list(range(load.performance_count))]
    done = read_completions(view, load)
    assert done.answered_once
    assert len(done) == load.query_count
    assert [i for ids, _, _ in server.calls for i in ids] == list(range(load.query_count))
    for begin, end in done.edges.values():
        assert bool((done.columns[end] >= done.columns[begin]).all())
    return server, done


def test_loadgen_schedules_by_default() -> None:
    assert scheduler_for(plan("server"), journal(1, 1)) is None


def test_a_replayed_query_is_never_issued_before_its_time(tmp_path: Path) -> None:
    after_ns = np.cumsum(np.random.default_rng(1).integers(0, 2_000_000, QUERIES))
    server, done = ran(replayed(tmp_path, after_ns - after_ns[0]), tmp_path)
    scheduled = done.columns["scheduled_ns"]
    assert (scheduled - scheduled[0]).tolist() == (after_ns - after_ns[0]).tolist()
    assert bool((done.columns["entry_ns"] >= scheduled).all())
    assert len(server.calls) > 10


def test_overdue_queries_come_in_one_call(tmp_path: Path) -> None:
    server, _ = ran(replayed(tmp_path, np.zeros(QUERIES, np.int64)), tmp_path)
    assert len(server.calls) == 1


def test_a_schedule_names_its_samples_or_they_are_drawn_by_seed(tmp_path: Path) -> None:
    zeros, named = np.zeros(QUERIES, np.int64), np.arange(QUERIES) % 7
    _, done = ran(replayed(tmp_path, zeros, named), tmp_path)
    assert done.columns["index"].tolist() == named.tolist()
    drawn = [ran(replayed(tmp_path, zeros), tmp_path)[1].columns["index"] for _ in range(2)]
    assert drawn[0].tolist() == drawn[1].tolist()
    assert set(drawn[0].tolist()) == set(range(20))  # 300 random draws cover all 20 samples
    load = replayed(tmp_path, zeros)
    other = replace(load, seeds=load.seeds._replace(sample_index=1))
    assert ran(other, tmp_path)[1].columns["index"].tolist() != drawn[0].tolist()


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("concurrency", [1, 7, QUERIES, 10 * QUERIES])
def test_number_in_flight_never_exceeds_the_limit(
    concurrency: int, how: How, tmp_path: Path
) -> None:
    load = plan("server", target_qps=None, concurrency=concurrency, query_count=QUERIES)
    server, done = ran(load, tmp_path, how)
    entered = [ns for ids, _, ns in server.calls for _ in ids]
    completed = np.sort(done.columns["completed_ns"])
    for query, entry_ns in enumerate(entered):
        answered = int(np.searchsorted(completed, entry_ns, "right"))
        assert query + 1 - answered <= concurrency
    assert len(server.calls[0][0]) == min(concurrency, QUERIES)


def test_a_receiving_thread_issues_all_but_the_first_call(tmp_path: Path) -> None:
    load = plan("server", target_qps=None, concurrency=7, query_count=QUERIES)
    server, _ = ran(load, tmp_path, "receiver")
    first, *others = server.threads
    assert others
    assert {*others} != {first}
    assert len({*others}) == 1


TURNS = np.array([0, 1, 2, 0, 0, 1, 0, 1, 2, 3, 4, 5, 6, 7, 0, 0, 1, 0, 1, 2, 3, 4])
"""The last conversation, 0 1 2, is truncated, because only 20 samples are loaded."""


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("concurrency", [1, 4])
def test_turn_is_issued_after_the_answer_to_the_previous_one(
    concurrency: int, how: How, tmp_path: Path
) -> None:
    load = plan("server", target_qps=None, concurrency=concurrency, query_count=QUERIES)
    _, done = ran(load, tmp_path, how, turns=TURNS)
    samples = done.columns["index"].tolist()
    entered, completed = (done.columns[name].tolist() for name in ("entry_ns", "completed_ns"))
    # For each sample, the completed queries whose next turn has not been issued.
    ends_at: list[list[int]] = [[] for _ in range(20)]
    for query, sample in enumerate(samples):
        assert sample < 20
        if TURNS[sample]:
            before = ends_at[sample - 1]
            assert before
            assert completed[before.pop(0)] <= entered[query]
        ends_at[sample].append(query)
    begun = sum(TURNS[sample] == 0 for sample in samples)
    ended = sum(TURNS[sample + 1] == 0 or sample == 19 for sample in samples)
    assert 0 <= begun - ended <= concurrency
    assert set(samples) == set(range(20))


def test_the_seed_decides_which_conversations_come(tmp_path: Path) -> None:
    load = plan("server", target_qps=None, concurrency=1, query_count=QUERIES)
    runs = [ran(load, tmp_path, turns=TURNS)[1].columns["index"].tolist() for _ in range(2)]
    assert runs[0] == runs[1]
    other = replace(load, seeds=load.seeds._replace(sample_index=1))
    assert ran(other, tmp_path, turns=TURNS)[1].columns["index"].tolist() != runs[0]


def test_latencies_of_a_closed_loop_fill_the_run(tmp_path: Path) -> None:
    """Little's law holds except in the last round: in flight = rate x mean latency."""
    load = plan("server", target_qps=None, concurrency=3, query_count=2000)
    _, done = ran(load, tmp_path)
    took_ns = int(done.columns["completed_ns"].max() - done.columns["scheduled_ns"].min())
    idle_ns = 3 * took_ns - int(done.latency_ns.sum())
    assert 0 <= idle_ns <= 3 * int(done.latency_ns.max())


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("kind", ["closed loop", "conversations", "replay"])
def test_a_run_that_is_ended_answers_every_issued_query(
    kind: str, how: How, tmp_path: Path
) -> None:
    """After the supervisor has ended the run, no query is issued, and the plan becomes the plan of a shorter run."""
    load = plan("server", target_qps=None, concurrency=7, query_count=QUERIES)
    if kind == "replay":
        load = replayed(tmp_path, np.arange(QUERIES) * 2_000_000)
    load = replace(load, until="steady", least_queries=50)
    view = journal(QUERIES, 1)
    scheduler = scheduler_for(load, view, TURNS if kind == "conversations" else None)
    assert scheduler is not None
    server = Server(view, scheduler, how)
    answer = scheduler.complete

    def complete(responses: Any) -> None:
        answer(responses)
        if responses[-1].id >= 100:
            view.ends = True

    scheduler.complete = complete  # type: ignore[method-assign]
    server.run(tmp_path)
    ended = shortened(load, view)
    assert 100 < ended.query_count < QUERIES
    assert ended.journal_samples == ended.query_count == view.issued
    done = read_completions(view, ended)
    assert done.answered_once
    assert len(done) == ended.query_count


def test_the_plan_of_a_run_that_was_not_ended_stays_as_it_is() -> None:
    load = plan("server", until="steady", query_count=5)
    assert shortened(load, journal(5, 1)) is load


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=50), st.integers(1, 60))
def test_place_is_free_at_the_start_or_after_an_earlier_answer(
    latencies: list[int], concurrency: int
) -> None:
    completed = np.array(latencies, np.int64)
    freed = freed_ns(completed, np.arange(len(completed)), concurrency, 0)
    assert freed[:concurrency].tolist() == [0] * min(concurrency, len(completed))
    later = freed[concurrency:].tolist()
    assert later == sorted(latencies)[: len(later)]


def test_query_of_an_interrupted_run_is_due_before_it_is_issued() -> None:
    """The process was killed after an answer and before its row, so only the row is missing."""
    load = plan("server", target_qps=None, concurrency=1, query_count=5)
    view = journal(5, 1)
    view.start_ns = 100
    issuer, writer = view.issuer(), view.writer(0)
    for entry_ns in (110, 210, 310):
        issuer.issued(1, entry_ns)
    writer.batch(0, [0], 0, *(120, 120, 120, 120, 205))
    writer.batch(2, [0], 0, *(320, 320, 320, 320, 400))  # query 1 was answered, but its row is lost
    done = read_completions(view, load)
    assert not done.answered_once
    assert done.columns["scheduled_ns"].tolist() == [100, 310]


def test_the_supervisor_sees_the_schedule_and_start_of_the_run(tmp_path: Path) -> None:
    load = replayed(tmp_path, np.array([0, 10**6, 10**12]))
    view = journal(3, 1)
    rows = NewRows(view, load)
    assert rows.due_ns is not None
    assert rows.due_ns.tolist() == [0, 10**6, 10**12]
    watchdog = Watchdog(rows.copy())
    view.start_ns = start_ns = wall_ns() - 10**7
    issuer, writer = view.issuer(), view.writer(0)
    issuer.issued(2, start_ns + 2 * 10**6)
    stamps = [start_ns + 3 * 10**6] * 4 + [start_ns + 4 * 10**6]
    writer.batch(0, [0, 0], 0, *stamps)
    now = watchdog.look()
    # The latency counts from the scheduled time of the first query, and not from its call.
    assert now.p99_ns == pytest.approx(4e6, rel=0.06)
    assert now.idle_ns == 0  # the third query is not due yet, so nothing is idle
    counts = LiveCounts(rows)
    counts.read()
    assert counts.start_ns == start_ns
    assert counts.stages["issue_delay"].sum == 2 * 10**6 + 10**6


class Payload:
    """Returns n answers of 4 bytes; each answer contains its id."""

    def __init__(self, ids: range) -> None:
        self._rows = np.array(list(ids), np.int32)
        base = self._rows.ctypes.data
        self.responses = [Response(i, base + 4 * n, 4) for n, i in enumerate(ids)]


@settings(max_examples=30)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=60), st.integers(1, 40), st.integers(0, 9))
def test_drawn_answers_are_kept_in_any_batches(sizes: list[int], target: int, seed: int) -> None:
    total = sum(sizes)
    log = AnswerLog(total, target, seed)
    first = 0
    for size in sizes:
        log.take(Payload(range(first, first + size)).responses)
        first += size
    rows: list[tuple[int, bytes]] = log._rows
    assert [int.from_bytes(data, "little") for _, data in rows] == [i for i, _ in rows]
    kept = [i for i, _ in rows]
    assert kept == sorted(set(kept))
    assert len(kept) == min(target, total)


def test_another_seed_draws_other_answers() -> None:
    """Bug: every run compared the same answers, which a cheat could predict."""

    def kept(seed: int) -> list[int]:
        log = AnswerLog(1000, 50, seed)
        log.take(Payload(range(1000)).responses)
        return [query for query, _ in log._rows]

    assert kept(1) == kept(1)
    assert len(set(kept(1)) & set(kept(2))) < 15


def test_stored_answers_have_loadgens_format_even_if_empty(tmp_path: Path) -> None:
    log = AnswerLog(4, 4, 1)
    log.take([Response(2), Response(3)])
    log.take(Payload(range(2)).responses)
    log.write(tmp_path / logs.ANSWERS, np.array([5, 6, 7, 8]))
    answers = list(read_answers(tmp_path / logs.ANSWERS))
    assert [a.sample for a in answers] == [5, 6, 7, 8]
    assert [a.payload for a in answers] == [b"\0\0\0\0", b"\1\0\0\0", b"", b""]
    assert [row["seq_id"] for row in json.loads((tmp_path / logs.ANSWERS).read_text())] == [
        *range(4)
    ]


def test_answers_that_cannot_be_written_do_not_lose_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    AnswerLog(1, 1, 1).write(tmp_path / "none" / "x.json", np.zeros(1))
    assert "FileNotFoundError" in capsys.readouterr().err


def test_waiting_for_the_next_query_burns_no_core(tmp_path: Path) -> None:
    after_ns = np.arange(10) * 50_000_000
    before = time.process_time()
    ran(replayed(tmp_path, after_ns), tmp_path)
    # The run lasts 0.45 s, so the scheduler sleeps for most of it.
    assert time.process_time() - before < 0.2


def test_each_kind_of_load_has_its_scheduler(tmp_path: Path) -> None:
    kinds: list[tuple[LoadPlan, Any]] = [
        (replayed(tmp_path, np.zeros(2, np.int64)), Replay),
        (plan("server", concurrency=2), ClosedLoop),
    ]
    for load, kind in kinds:
        assert type(scheduler_for(load, journal(2, 1))) is kind
    closed = kinds[1][0]
    assert type(scheduler_for(closed, journal(2, 1), TURNS)) is ConversationsInTurn
