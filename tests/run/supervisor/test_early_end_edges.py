"""A run may end early only if its schedule is completely known, and only before its last answer."""

import pytest

from harness.core.units import NS_PER_MS, NS_PER_S
from harness.errors import RunHopeless
from harness.run.supervisor import completions
from harness.run.supervisor.completions import NewRows
from harness.run.supervisor.early_end import LateLimit
from tests.builders.support import journal, plan
from tests.run.supervisor.test_early_end import BOUND_NS, START_NS, answered, issue, now, server

__all__ = ["now"]


def late_run(limit: LateLimit, rows: object, after_ns: object) -> None:
    issue(rows, after_ns)  # type: ignore[arg-type]
    answered(rows, 0, 0, 50, START_NS + 100 * BOUND_NS)  # type: ignore[arg-type]
    limit.check()


def test_a_journal_with_room_for_more_queries_than_planned_is_judged(now: list[int]) -> None:
    made = plan("server", query_count=100, journal_samples=125, target_qps=1000.0)
    rows = journal(125, 1)
    cursor = NewRows(rows, made)
    assert cursor.due_ns is not None
    with pytest.raises(RunHopeless):
        late_run(LateLimit(cursor, lambda _: 1), rows, cursor.due_ns[:100])


def test_a_run_whose_schedule_is_too_long_to_be_held_is_never_ended(
    now: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, after_ns, _ = server(100, 1)
    monkeypatch.setattr(completions, "LONGEST_SCHEDULE", 99)
    rows, _, limit = server(100, 1)
    late_run(limit, rows, after_ns)


def test_a_stream_of_many_samples_is_judged_until_its_last_sample(now: list[int]) -> None:
    made = plan("multi-stream", query_count=8, latency_bound_ns=BOUND_NS)
    rows = journal(64, 1)
    issuer, writer = rows.issuer(), rows.writer(0)
    limit = LateLimit(NewRows(rows, made), lambda _: 0)
    for query in range(2):
        issuer.issued(8, START_NS)
        late_ns = BOUND_NS + NS_PER_MS
        stamps = [*[START_NS] * 4, START_NS + late_ns]
        writer.batch(8 * query, list(range(8)), 0, *stamps)
    with pytest.raises(RunHopeless, match="2 of 8 queries"):
        limit.check()


def test_answers_of_several_reads_are_all_answered(now: list[int]) -> None:
    rows, after_ns, limit = server(100, 100)
    issue(rows, after_ns)
    writer = rows.writer(0)
    now[0] = START_NS + 10 * NS_PER_S  # at this time, all samples without an answer are overdue
    for first in (0, 20, 40):
        writer.batch(first, list(range(20)), 0, *[START_NS] * 5)
        assert limit.count() == 100 - first - 20


def test_a_streams_query_ends_only_with_its_last_sample(now: list[int]) -> None:
    made = plan("multi-stream", query_count=1, latency_bound_ns=BOUND_NS)
    rows = journal(8, 1)
    rows.issuer().issued(8, START_NS)
    writer = rows.writer(0)
    limit = LateLimit(NewRows(rows, made), lambda _: 0)
    writer.batch(0, list(range(7)), 0, *[START_NS] * 5)
    assert limit.count() == 0
    stamps = [*[START_NS] * 4, START_NS + BOUND_NS + 1]
    writer.batch(7, [7], 0, *stamps)
    assert limit.count() == 1
