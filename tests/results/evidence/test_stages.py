"""The stages and percentiles of a journal obey their laws, and agree with LoadGen's logs of the golden runs."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.loadgen.schedule import server_schedule_ns
from harness.results.evidence.stages import LOCAL_STAGES, percentiles, query_latency_ns, summarise
from harness.results.verdict.doubts import AGREE_NS, AGREE_SHARE
from harness.run.journal import Journal
from harness.run.supervisor.completions import read_completions
from harness.types import Array
from tests.builders.support import (
    SCENARIOS,
    golden_columns,
    golden_completions,
    golden_journal,
    golden_log,
    journal,
    plan,
)

EDGES = (
    *("scheduled_ns", "entry_ns", "taken_ns", "gathered_ns", "inferred_ns", "postprocessed_ns"),
    "completed_ns",
)
START_NS = 1_800_000_000 * 10**9
WORKERS = 3

# A batch consists of a worker, a number of samples, and the ns from each of its time stamps to the next.
batches = st.lists(
    st.tuples(
        st.integers(0, WORKERS - 1),
        st.integers(1, 6),
        st.lists(st.integers(0, 10**9), min_size=6, max_size=6),
    ),
    min_size=1,
    max_size=15,
)


def written(batches: Sequence[tuple[int, int, list[int]]]) -> Journal:
    """Returns a journal with these batches, issued one after the other."""
    made = journal(sum(size for _, size, _ in batches), WORKERS)
    issuer, writers = made.issuer(), [made.writer(w) for w in range(WORKERS)]
    entry_ns = START_NS
    for worker, size, (between, *gaps) in batches:
        entry_ns += between
        first = issuer.issued(size, entry_ns)
        stamps = (entry_ns + np.cumsum(gaps)).tolist()
        writers[worker].batch(first, [first + i for i in range(size)], 0, *stamps)
    return made


scenarios = st.sampled_from(sorted(SCENARIOS))


@given(batches, scenarios, st.booleans())
def test_stages_of_each_sample_sum_to_its_latency(
    rows: list[tuple[int, int, list[int]]], scenario: str, accuracy: bool
) -> None:
    done = read_completions(written(rows), plan(scenario, accuracy=accuracy))
    edges = [done.columns[name] for name in EDGES]
    stages = [b - a for a, b in pairwise(edges)]
    assert len(stages) == len(LOCAL_STAGES)
    assert sum(stages).tolist() == done.latency_ns.tolist()  # type: ignore[union-attr]
    assert all((stage >= 0).all() for stage in stages)
    assert done.answered_once
    assert done.columns["order"].tolist() == done.columns["index"].tolist()


@given(batches, scenarios)
def test_shares_of_the_stages_sum_to_one(
    rows: list[tuple[int, int, list[int]]], scenario: str
) -> None:
    done = read_completions(written(rows), plan(scenario))
    shares = [stage["share"] for stage in summarise(done).values()]
    assert sum(shares) == pytest.approx(1.0 if done.latency_ns.any() else 0.0)


@given(batches)
def test_server_samples_follow_the_seed_and_precede_their_callback(
    rows: list[tuple[int, int, list[int]]],
) -> None:
    made = plan("server")
    columns = read_completions(written(rows), made).columns
    after = columns["scheduled_ns"] - columns["scheduled_ns"][0]
    count, qps = len(after), made.target_qps
    assert qps is not None
    assert after.tolist() == server_schedule_ns(count, qps, made.seeds.schedule).tolist()
    assert int((columns["entry_ns"] - columns["scheduled_ns"]).min()) == 0


@pytest.mark.parametrize("scenario", ["server", "offline"])
@given(rows=batches, before_ns=st.integers(0, 10**6))
def test_the_shortest_latency_of_loadgen_moves_the_start_back(
    scenario: str, rows: list[tuple[int, int, list[int]]], before_ns: int
) -> None:
    made = written(rows)
    ours = read_completions(made, plan(scenario)).latency_ns
    moved = read_completions(made, plan(scenario), int(ours.min()) + before_ns).latency_ns
    assert (moved - ours).tolist() == [before_ns] * len(ours)


def test_journal_of_a_run_that_died_holds_its_answers() -> None:
    made = journal(10, 2)
    issuer, writers = made.issuer(), [made.writer(w) for w in range(2)]
    issuer.issued(6, START_NS)
    writers[1].batch(4, [14, 15], 1, *[START_NS] * 5)
    writers[0].batch(0, [10, 11], 0, *[START_NS] * 5)
    done = read_completions(made, plan("offline"))
    assert done.columns["order"].tolist() == [0, 1, 4, 5]
    assert done.columns["index"].tolist() == [10, 11, 14, 15]
    assert done.columns["worker"].tolist() == [0, 0, 1, 1]
    assert (len(done), done.issued, done.failed, done.answered_once) == (4, 6, 2, False)


def test_an_empty_journal_has_no_completions() -> None:
    for scenario in SCENARIOS:
        done = read_completions(journal(5, 2), plan(scenario))
        assert (len(done), done.issued) == (0, 0)


def test_a_sample_without_an_answer_is_noticed_also_when_it_is_the_last() -> None:
    made = journal(3, 1)
    made.issuer().issued(3, START_NS)
    made.writer(0).batch(0, [0, 1], 0, *[START_NS] * 5)
    assert not read_completions(made, plan("offline")).answered_once


def test_a_sample_answered_twice_is_noticed() -> None:
    made = journal(3, 2)
    made.issuer().issued(2, START_NS)
    made.writer(0).batch(0, [0], 0, *[START_NS] * 5)
    made.writer(1).batch(0, [0], 0, *[START_NS] * 5)
    assert not read_completions(made, plan("offline")).answered_once


@given(st.lists(st.integers(0, 10**9), max_size=40), st.integers(1, 8))
def test_a_query_is_as_late_as_its_last_sample(latencies: list[int], samples: int) -> None:
    made = journal(len(latencies), 1)
    issuer, writer = made.issuer(), made.writer(0)
    for i, ns in enumerate(latencies):
        issuer.issued(1, START_NS)
        writer.batch(i, [i], 0, *[START_NS + stamp for stamp in (0, 0, 0, 0, ns)])
    done = read_completions(made, plan("multi-stream", samples_per_query=samples))
    whole = [latencies[i : i + samples] for i in range(0, len(latencies), samples)]
    wanted = [max(query) for query in whole if len(query) == samples]
    assert query_latency_ns(done, samples).tolist() == wanted


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=60))
def test_percentiles_are_measured_values_in_order(latencies: list[int]) -> None:
    found = percentiles(np.array(latencies))
    names = ("min", "p50", "p90", "p95", "p97", "p99", "p99.9", "max")
    assert [found[n] for n in names] == sorted(found[n] for n in names)
    assert {found[n] for n in names} <= set(latencies)
    assert found["min"] <= found["mean"] <= found["max"]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_journal_of_a_golden_run_gives_its_completions(scenario: str) -> None:
    columns = golden_columns(scenario)
    found = golden_completions(scenario).columns
    assert set(found) == set(columns)
    for name, column in columns.items():
        assert found[name].tolist() == column.tolist(), name


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_golden_percentiles_are_loadgens(scenario: str) -> None:
    per = "per_query_latency" if scenario == "multi-stream" else "latency"
    latency = query_latency_ns(golden_completions(scenario), plan(scenario).samples_per_query)
    found, log = percentiles(latency), golden_log(scenario)
    for name, text in (("p50", "50.00"), ("p90", "90.00"), ("p99", "99.00"), ("p99.9", "99.90")):
        theirs = log.get(f"result_{text}_percentile_{per}_ns")
        assert abs(found[name] - theirs) <= max(AGREE_SHARE * theirs, AGREE_NS), name


def _multi_stream_calls(columns: dict[str, Any]) -> Array:
    return columns["entry_ns"].reshape(-1, 8)  # type: ignore[no-any-return]


def test_multi_stream_query_comes_in_one_call_and_is_one_batch() -> None:
    columns = golden_columns("multi-stream")
    calls = _multi_stream_calls(columns)
    assert bool((calls == calls[:, :1]).all())
    assert set(columns["batch_size"].tolist()) == {8}
    finished = columns["completed_ns"].reshape(-1, 8)[:, 0]
    # Each query waits for the previous query, so no call begins before the previous query has ended.
    assert bool((calls[1:, 0] >= finished[:-1]).all())


def test_reading_a_journal_twice_gives_the_same() -> None:
    made = golden_journal("offline")
    first, second = (read_completions(made, plan("offline")) for _ in range(2))
    assert first.latency_ns.tolist() == second.latency_ns.tolist()
