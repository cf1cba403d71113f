"""Streams in real time: frames arrive in order, each with the state of the previous frame, and no frame arrives twice."""

import json
import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.loadgen import real_time, schedule
from harness.run.measured.dispatch.instance import Failures
from harness.run.measured.own_scheduler import FramesInRealTime, Play, PlayLog, scheduler_for
from harness.run.measured.streams.dispatch import FrameDispatcher
from harness.types import Array, Batch
from tests.builders.support import journal, plan

PERIOD_NS = 32_000_000


@given(
    st.integers(1, 200), st.integers(1, 40), st.integers(1_000, 10**9), st.integers(0, 2**64 - 1)
)
def test_frames_of_a_stream_are_due_one_period_apart(
    queries: int, streams: int, period_ns: int, seed: int
) -> None:
    due = real_time.due_ns(queries, streams, period_ns, seed)
    assert len(due) == queries
    assert due[0] == 0
    assert (np.diff(due) >= 0).all()
    assert (due[streams:] - due[:-streams] == period_ns).all()


def test_streams_begin_within_one_period_at_different_times() -> None:
    begins = real_time.due_ns(100, 100, PERIOD_NS, 7)
    assert begins[-1] < PERIOD_NS
    assert len(set(begins.tolist())) > 90
    assert not np.array_equal(begins, real_time.due_ns(100, 100, PERIOD_NS, 8))


def test_length_of_a_run_covers_duration_and_percentile() -> None:
    long = real_time.load(None, 100 * PERIOD_NS, 50, PERIOD_NS, 0.99)
    assert long.query_count == 100 * 50
    assert long.expected_s == pytest.approx(3.2)
    short = real_time.load(None, PERIOD_NS, 1, PERIOD_NS, 0.99)
    assert short.query_count == 2010
    assert real_time.load(7, PERIOD_NS, 2, PERIOD_NS, 0.99).query_count == 7


def test_the_plan_has_the_schedule_of_the_streams() -> None:
    made = plan("server", query_count=40, streams=4, frame_period_ns=PERIOD_NS, target_qps=None)
    due = schedule.planned_ns(made, 40)
    assert due is not None
    assert np.array_equal(due, real_time.due_ns(40, 4, PERIOD_NS, made.seeds.schedule))
    assert made.harness_scheduled
    assert isinstance(scheduler_for(made, journal(40, 1)), FramesInRealTime)


class Recording:
    """Stands in for an instance: records its batches, and sleeps as long as a model would compute."""

    cpus: Sequence[int] = ()

    def __init__(self, streams: int, log: list[list[int]], lock: threading.Lock) -> None:
        self._streams, self._log, self._lock = streams, log, lock
        self.in_work: set[int] = set()
        self.others: list[Recording] = []
        self.clashes = 0

    def answer(self, queries: list[int], _taken_ns: int) -> None:
        mine = {query % self._streams for query in queries}
        with self._lock:
            self._log.append(queries)
            self.clashes += len(mine) < len(queries)
            self.clashes += any(mine & other.in_work for other in self.others)
            self.in_work = mine
        threading.Event().wait(random.uniform(0, 2e-4))
        with self._lock:
            self.in_work = set()


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(1, 3), st.integers(1, 6), st.integers(1, 60))
def test_no_stream_is_in_two_batches_and_the_order_stays(
    streams: int, workers: int, most: int, queries: int
) -> None:
    log: list[list[int]] = []
    lock = threading.Lock()
    instances = [Recording(streams, log, lock) for _ in range(workers)]
    for one in instances:
        one.others = [other for other in instances if other is not one]
    made: Any = instances
    dispatcher = FrameDispatcher(made, most, journal(queries, workers).issuer(), streams)
    at = 0
    while at < queries:
        end = min(queries, at + random.randint(1, 7))
        dispatcher.issue(list(range(at, end)), [0] * (end - at))
        at = end
    dispatcher.stop()
    assert sorted(query for batch in log for query in batch) == list(range(queries))
    assert all(batch == list(range(batch[0], batch[0] + len(batch))) for batch in log)
    assert all(len(batch) <= most for batch in log)
    assert not sum(one.clashes for one in instances)


def test_play_log_keeps_whole_sequences_drawn_at_random(tmp_path: Path) -> None:
    log = PlayLog(20, seed=3)
    for number in range(500):
        log.take([Play(number * 10, number % 7, bytes([number % 256]))])
    log.write(tmp_path / "log.json", np.zeros(0))
    rows = json.loads((tmp_path / "log.json").read_text())
    ids = [row["seq_id"] for row in rows]
    assert len(ids) == 20
    assert ids == sorted(set(ids))
    assert max(ids) > 2500  # the drawn sequences include late ones, and not only the first samples
    assert all(row["qsl_idx"] == row["seq_id"] // 10 % 7 for row in rows)


class Sequences:
    """A dataset with three sequences of 4, 1 and 7 frames."""

    lengths = (4, 1, 7)

    def batch(self, indices: Sequence[int]) -> Batch:
        (index,) = indices
        rows = np.random.default_rng(index).normal(size=(1, self.lengths[index], 6))
        return Batch(1, {"x": rows.astype(np.float32)})


class Writer:
    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []

    def batch(self, *row: Any) -> None:
        self.rows.append(row)


@pytest.fixture
def played(tmp_path: Path) -> Any:
    """Plays `batches` of queries on an LSTM; returns (finished plays, rows of the journal, failures, answers by
    sample).
    """
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from harness.models.steps.postprocess import postprocessor
    from harness.run.measured.streams.instance import StreamInstance
    from harness.run.measured.streams.playing import Streams
    from tests.builders.models import recurrent_nets as nets
    from tests.models.sequences.test_sequences import opened

    def play(batches: Sequence[list[int]], streams: int, fails_at: int = -1) -> Any:
        with opened(nets.lstm(tmp_path / "m.onnx")) as backend:
            dataset: Any = Sequences()
            state = Streams(backend, dataset, 3, streams, seed=5)
            plays: list[Play] = []
            writer: Any = Writer()
            failures = Failures()
            instance = StreamInstance(
                backend, state, postprocessor((), "y"), plays.extend, writer, failures
            )
            advance = backend.advance
            for number, queries in enumerate(batches):
                if number == fails_at:
                    backend.advance = None  # type: ignore[assignment,method-assign]
                instance.answer(queries, 0)
                backend.advance = advance  # type: ignore[method-assign]
            whole = {i: backend.infer(dataset.batch([i])) for i in range(3)}
            return plays, writer.rows, failures, whole

    return play


def _answers(play: Play) -> Array:
    rows: Array = np.frombuffer(play.answer, np.float32).reshape(-1, 3)
    return rows


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_played_sequence_has_the_answers_of_the_whole_one(played: Any, size: int) -> None:
    streams = 5
    queries = list(range(streams * 12))
    batches = [queries[at : at + size] for at in range(0, len(queries), size)]
    plays, rows, failures, whole = played(batches, streams)
    assert not failures.samples
    assert {play.sample for play in plays} == {0, 1, 2}
    for play in plays:
        expected = np.asarray(whole[play.sample])[0]
        assert len(_answers(play)) == Sequences.lengths[play.sample]
        np.testing.assert_allclose(_answers(play), expected, rtol=1e-4, atol=1e-6)
    samples = dict(zip(queries, [i for row in rows for i in row[1]], strict=True))
    for play in plays:
        own = [play.id + n * streams for n in range(Sequences.lengths[play.sample])]
        assert {samples[query] for query in own} == {play.sample}


def test_a_failed_batch_ends_the_sequences_of_its_streams(played: Any) -> None:
    batches = [[query, query + 1] for query in range(0, 24, 2)]
    plays, rows, failures, whole = played(batches, 2, fails_at=1)
    assert failures.samples == 2
    assert [row[2] for row in rows].count(1) == 1
    assert all(play.id != 0 or Sequences.lengths[play.sample] == 1 for play in plays)
    for play in plays:
        expected = np.asarray(whole[play.sample])[0]
        np.testing.assert_allclose(_answers(play), expected, rtol=1e-4, atol=1e-6)
