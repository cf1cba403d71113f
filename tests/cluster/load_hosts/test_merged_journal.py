"""The merged journal contains every sample of each host, unchanged."""

import os
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.cluster.load_hosts.merged_journal import MergedJournal, Share, merged_completions
from harness.cluster.load_hosts.thinning import parts_of, plan_of
from harness.core.stats import percentile_ns
from harness.loadgen import schedule
from harness.loadgen.plan import LoadPlan
from harness.results.evidence.stages import percentiles
from harness.results.load_hosts.section import HOST
from harness.run.journal import Journal, RowKind
from harness.run.supervisor.completions import NewRows, read_completions
from harness.run.supervisor.metrics.live_counts import LiveCounts
from harness.run.supervisor.watchdog import Watchdog
from tests.builders.support import plan

START_NS = 1_700_000_000_000_000_000
QUERIES = 300


def remote_journal(capacity: int) -> Journal:
    fd = Journal.create()
    try:
        Journal.resize(fd, capacity, 1, RowKind.REPLY)
        return Journal(fd)
    finally:
        os.close(fd)


def fill(
    share: Share, sizes: Sequence[int], seed: int, *, stamped: bool = True, start_ns: int = START_NS
) -> None:
    """Answers the host's queries in batches of these sizes; the batches come in random order."""
    journal, part = share.journal, share.part
    journal.start_ns = start_ns
    stored = schedule.read_stored(str(share.plan.schedule))
    issuer, writer = journal.issuer(), journal.remote_writer()
    random = np.random.default_rng(seed)
    for after_ns in stored.after_ns:
        issuer.issued(1, start_ns + int(after_ns) + 1_000)
    ends = np.minimum(np.cumsum(np.resize(sizes, len(part))), len(part))
    firsts = [0, *dict.fromkeys(ends[ends < len(part)].tolist())]
    batches = list(zip(firsts, [*firsts[1:], len(part)], strict=True))
    random.shuffle(batches)
    assert stored.samples is not None
    for first, end in batches:
        done_ns = (
            start_ns + int(stored.after_ns[end - 1]) + int(random.integers(1_000_000, 9_000_000))
        )
        stamps = [done_ns - 9000, done_ns - 8000, done_ns - 3000 if stamped else 0, done_ns - 2000]
        stamps += [done_ns - 1000, done_ns, 0, 0, 0, 0, 0, 0]
        writer.reply(first, stored.samples[first:end].tolist(), int(random.random() < 0.1), *stamps)


@pytest.fixture
def whole() -> LoadPlan:
    return plan("server", query_count=QUERIES, journal_samples=QUERIES, load_hosts=3)


@pytest.fixture
def shares(whole: LoadPlan, tmp_path_factory: pytest.TempPathFactory) -> list[Share]:
    found = []
    for part in parts_of(whole, ["a", "b", "c"]):
        own = plan_of(whole, part, tmp_path_factory.mktemp("host"))
        found.append(Share(own, part, remote_journal(len(part))))
    return found


def test_merged_columns_match_each_host_and_the_whole_schedule(
    whole: LoadPlan, shares: list[Share]
) -> None:
    for number, share in enumerate(shares):
        fill(share, [1, 3, 2], number)
    merged = merged_completions(shares)
    assert merged.answered_once
    assert (merged.issued, len(merged)) == (QUERIES, QUERIES)
    columns = merged.columns
    assert columns["order"].tolist() == list(range(QUERIES))
    due_ns = schedule.planned_ns(whole, QUERIES)
    assert due_ns is not None
    assert np.array_equal(columns["scheduled_ns"], due_ns + START_NS)
    assert np.array_equal(columns["index"], schedule.drawn_samples(whole))
    for host, share in enumerate(shares):
        own = read_completions(share.journal, share.plan).columns
        of_host = columns[HOST] == host
        for name in set(own) - {"order", "worker", "batch"}:
            assert np.array_equal(columns[name][of_host], own[name]), name
    _, first, counts = np.unique(columns["batch"], return_index=True, return_counts=True)
    assert np.array_equal(counts, columns["batch_size"][first])
    assert sorted(set(columns["worker"].tolist())) == [0, 1, 2]


def test_percentiles_are_computed_from_the_joined_latencies(shares: list[Share]) -> None:
    for number, share in enumerate(shares):
        fill(share, [1], number)
    raw = [read_completions(share.journal, share.plan).latency_ns for share in shares]
    joined = np.sort(np.concatenate(raw))
    found = percentiles(merged_completions(shares).latency_ns)
    assert found["p99"] == percentile_ns(joined, 0.99)
    assert (found["min"], found["max"]) == (int(joined[0]), int(joined[-1]))
    means = [percentiles(one)["p99"] for one in raw]
    # P99 must not be the mean of the hosts' percentiles.
    assert found["p99"] != round(sum(means) / len(means))


@settings(max_examples=20, deadline=None)
@given(sizes=st.lists(st.integers(1, 7), min_size=1, max_size=5), seed=st.integers(0, 99))
def test_rows_read_live_equal_the_final_samples(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], seed: int
) -> None:
    whole = plan("server", query_count=QUERIES, journal_samples=QUERIES, load_hosts=2)
    found = []
    for part in parts_of(whole, ["a", "b"]):
        own = plan_of(whole, part, tmp_path_factory.mktemp("host"))
        found.append(Share(own, part, remote_journal(len(part))))
    journal = MergedJournal(found)
    journal.start_ns = START_NS
    rows = NewRows(journal, whole)
    live = []
    for share in found:
        fill(share, sizes, seed)
        live += [rows.samples(part) for part in rows.read()]
    assert list(rows.read()) == []
    assert (journal.issued, journal.completed) == (QUERIES, QUERIES)
    order = np.concatenate([part.order for part in live])
    in_order = np.argsort(order)
    columns = merged_completions(found).columns
    assert order[in_order].tolist() == columns["order"].tolist()
    for name in ("entry_ns", "scheduled_ns", "completed_ns"):
        column = np.concatenate([getattr(part, name) for part in live])
        assert np.array_equal(column[in_order], columns[name]), name


def test_watchdog_and_live_counts_count_every_sample(whole: LoadPlan, shares: list[Share]) -> None:
    journal = MergedJournal(shares)
    journal.start_ns = START_NS
    rows = NewRows(journal, whole)
    watchdog, counts = Watchdog(rows), LiveCounts(rows.copy())
    for number, share in enumerate(shares):
        fill(share, [2, 1], number)
    now = watchdog.look()
    assert (now.issued, now.completed, now.waiting) == (QUERIES, QUERIES, 0)
    counts.finish()
    failed = merged_completions(shares).failed
    assert (counts.completed, counts.failed, now.failed) == (QUERIES, failed, failed)
    assert failed > 0


def test_arrival_stamps_are_dropped_if_one_host_lacks_them(shares: list[Share]) -> None:
    for number, share in enumerate(shares):
        fill(share, [1], number, stamped=number != 1)
    merged = merged_completions(shares)
    assert "arrived_ns" not in merged.columns
    assert len(merged) == QUERIES


def test_samples_of_the_other_hosts_are_kept_when_one_has_none(shares: list[Share]) -> None:
    """The second host has neither issued a query nor received an answer."""
    for number in (0, 2):
        fill(shares[number], [1], number)
    merged = merged_completions(shares)
    assert len(merged) == len(shares[0].part) + len(shares[2].part)
    assert not set(merged.columns["order"].tolist()) & set(shares[1].part.tolist())
    assert set(merged.columns[HOST].tolist()) == {0, 2}
    assert len(merged_completions([shares[1]])) == 0
