"""The phases of requests divide the window of a run without a remainder."""

from typing import Any

import numpy as np
import pytest

from harness.results.evidence.stages import Completions
from harness.results.tokens.phases import phases


def rows(*stamps: tuple[int, int, int], failed: int = 0) -> Completions:
    """stamps: (sent, first token, completed) for each request. failed: number of additional requests that failed."""
    sent, first, done = np.array([*stamps, *[(0, 0, 100)] * failed], np.int64).T
    failures = np.array([0] * len(stamps) + [1] * failed)
    columns: dict[str, Any] = {
        "order": np.arange(len(sent)),
        "sent_ns": sent,
        "first_token_ns": first,
        "completed_ns": done,
    }
    return Completions({**columns, "failed": failures}, len(sent), True)


@pytest.mark.parametrize(
    ("stamps", "expected"),
    [
        ([(0, 30, 100)], (0.3, 0.7, 0.0)),
        ([(10, 30, 60)], (0.2, 0.3, 0.5)),
        ([(0, 50, 100), (0, 50, 100)], (0.5, 0.5, 0.0)),
        # From 20 to 40, both requests wait, or one waits while the other generates; each state takes half of the time.
        ([(0, 20, 40), (20, 40, 60)], (0.2 + 0.1, 0.1 + 0.2, 0.4)),
        ([(-50, 50, 150)], (0.5, 0.5, 0.0)),
    ],
)
def test_requests_in_flight_share_each_moment(
    stamps: list[tuple[int, int, int]], expected: tuple[float, float, float]
) -> None:
    assert phases(rows(*stamps), (0, 100)) == pytest.approx(expected)


def test_the_shares_of_many_requests_add_up() -> None:
    random = np.random.default_rng(5)
    stamps = np.cumsum(random.integers(1, 50, (200, 3)), axis=1) + random.integers(0, 900, (200, 1))
    found = phases(rows(*map(tuple, stamps.tolist())), (100, 1000))
    assert found is not None
    assert sum(found) == pytest.approx(1)
    assert min(found) >= 0


def test_failed_requests_have_no_phase() -> None:
    assert phases(rows((0, 50, 100), failed=3), (0, 100)) == pytest.approx((0.5, 0.5, 0.0))


def test_a_run_without_streams_is_not_divided() -> None:
    assert phases(rows((0, 0, 100)), (0, 100)) is None
    assert phases(None, (0, 100)) is None
    assert phases(rows((0, 50, 100)), None) is None
