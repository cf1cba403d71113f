"""Schedules of one query or none, plans without a schedule, and truncated closed loops."""

import numpy as np
import pytest

from harness.loadgen.schedule import freed_ns, planned_ns, server_schedule_ns
from tests.builders.support import plan


@pytest.mark.parametrize("queries", [-1, 0, 1, 2])
def test_schedule_has_a_time_per_query_and_starts_at_0(queries: int) -> None:
    after_ns = server_schedule_ns(queries, 100.0, 1)
    assert after_ns.dtype == np.int64
    assert len(after_ns) == max(0, queries)
    assert not after_ns[:1].any()


@pytest.mark.parametrize(
    ("scenario", "changed"),
    [
        ("server", {"accuracy": True}),
        ("server", {"target_qps": None, "concurrency": 4}),
        ("offline", {"target_qps": 100.0}),
        ("single-stream", {"target_qps": 100.0}),
    ],
)
def test_only_a_paced_performance_run_has_a_schedule(
    scenario: str, changed: dict[str, object]
) -> None:
    assert planned_ns(plan(scenario, **changed), 10) is None


def test_a_query_after_lost_answers_was_due_when_the_last_answer_came() -> None:
    """In a truncated run, fewer answers than queries come before the last query."""
    freed = freed_ns(np.array([30, 20]), np.array([0, 1, 2, 3, 9]), 2, 10)
    assert freed.tolist() == [10, 10, 20, 30, 30]
