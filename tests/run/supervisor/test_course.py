"""The course of a run: which snapshots the endpoint keeps and serves to `browse`."""

from itertools import pairwise

import pytest

from harness.run.supervisor.metrics import course
from harness.run.supervisor.metrics.course import REPLY, Course, Snapshot
from harness.run.supervisor.metrics.live_counts import EDGES_NS
from tests.browse.looks import look


class Run:
    """A run whose state each test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(course, "monotonic", lambda: self.now.at_s)
        self.now: Snapshot = look(0.0)
        self.course = Course(lambda: ("night", self.now))

    def at(self, now: Snapshot) -> None:
        self.now = now
        self.course.update(1.0)

    def times_s(self, after_s: float = 0.0) -> list[float]:
        answer = REPLY.validate_json(self.course.answer(after_s))
        assert answer.run == "night"
        return [one.at_s for one in answer.snapshots]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(monkeypatch)


def test_a_snapshot_survives_its_encoding(run: Run) -> None:
    sent = look(
        3.0,
        100,
        latency=[0] * len(EDGES_NS) + [100],
        stages={"queue": (0.5, 100.0)},
        bounds_s=[("p99", 0.05)],
        watts={"rapl": 12.5},
        elapsed_s=2.0,
    )
    run.at(sent)
    (received,) = REPLY.validate_json(run.course.answer(0.0)).snapshots
    assert received.rate == 50
    assert received.totals.latency == sent.totals.latency
    assert received.totals.stages == {"queue": (0.5, 100.0)}
    assert [*map(tuple, received.totals.bounds_s)] == [("p99", 0.05)]
    assert received.totals.watts == {"rapl": 12.5}


def test_a_snapshot_is_taken_at_most_once_per_period(run: Run) -> None:
    for at_s in (1.0, 1.4, 2.0, 2.9, 3.1):
        run.at(look(at_s, 10 * at_s))
    assert run.times_s() == [1.0, 2.0, 3.1]


def test_an_answer_begins_after_the_given_time_and_has_the_newest_state(run: Run) -> None:
    for at_s in (1.0, 2.0, 3.0):
        run.at(look(at_s, 10 * at_s))
    assert run.times_s(after_s=1.0) == [2.0, 3.0]
    assert run.times_s(after_s=3.0) == [3.0]
    run.now = look(3.6, 40)
    assert run.times_s(after_s=3.0) == [3.6]


def test_a_long_course_stays_whole(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(course, "MOST", 8)
    for second in range(1, 41):
        run.at(look(float(second), 10 * second))
        assert len(run.times_s()) <= 8
    kept = run.times_s()
    assert (kept[0], kept[-1]) == (1.0, 40.0)
    assert {later - earlier for earlier, later in pairwise(kept[:-1])} == {8.0}


def test_waiting_for_queries_and_for_the_verdict_takes_no_room(run: Run) -> None:
    for second in range(1, 4):
        run.at(look(float(second), progress=0.0)._replace(phase=""))
    for second in range(4, 6):
        run.at(look(float(second), 10, progress=0.5))
    for second in range(6, 9):
        run.at(look(float(second), 20, progress=1.0))
    assert run.times_s() == [3.0, 4.0, 5.0, 8.0]


@pytest.mark.parametrize(
    "wrong",
    [
        b"SSH-2.0",
        b'["night"]',
        b'["night",[[1]]]',
        b'["night",[[NaN,null,"server","",0,0,0,0,null,null,[[],{},0,{},{},null,null,null,null,{},[],[],2],1]]]',
        b'["night",[[1,null,"server","",0,0,0,0,null,null,[[3],{},0,{},{},null,null,null,null,{},[],[],2],1]]]',
        b'["night",[[1,null,"server","",0,0,0,0,null,null,[[],{},0,{"a":[1e999,1]},{},null,null,null,null,{},[],[],2],1]]]',
    ],
    ids=["no JSON", "no snapshots", "too short", "no number", "too few buckets", "infinite"],
)
def test_an_answer_of_another_program_is_rejected(wrong: bytes) -> None:
    with pytest.raises(ValueError, match="validation error"):
        REPLY.validate_json(wrong)
