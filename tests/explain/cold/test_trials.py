"""Trials of a cold start: the page cache, the phases of loading, and the parts of the first answer's time."""

import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.explain.cold import summary, tables
from harness.explain.cold.measure import remaining_s
from harness.explain.cold.trials import page_cache, phases

_ABSENT_OR_NS = st.none() | st.integers(0, 10**12)


def _trial(**times_ns: int | None) -> dict[str, int | None]:
    rest = {f"{phase.key}_ns": 0 for phase in (*summary.PHASES, *summary.OUTSIDE)}
    return {**rest, "steady_ns": 1, **{f"{key}_ns": ns for key, ns in times_ns.items()}}


def test_a_dropped_file_is_not_in_the_page_cache_until_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(bytes(1 << 20))
    page_cache.drop([file])
    if page_cache.resident_share([file]) > page_cache.MOST_RESIDENT:
        pytest.skip("the file system lies in memory")
    assert page_cache.read([file]) == 1 << 20
    assert page_cache.resident_share([file]) == 1.0


def test_remaining_time_follows_the_round_before() -> None:
    """Bug: the remaining time jumped from 3 to 15 minutes, because the times of formats differ by a factor of ten."""
    assert remaining_s([1.0, 3.0], count=6, steps=3) == [2.0, 1.0, 3.0, 2.0]
    assert remaining_s([1.0, 3.0, 50.0, 2.0], count=9, steps=3) == [3.0, 50.0, 2.0, 3.0, 50.0]
    assert remaining_s([1.0] * 6, count=6, steps=3) == []


def test_an_empty_file_has_no_pages(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert page_cache.resident_share([tmp_path / "empty"]) == 0.0


def test_the_calls_of_a_framework_are_timed_by_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("slow_framework")

    class Session:
        def __init__(self) -> None:
            time.sleep(0.02)

        def initialise(self) -> str:
            time.sleep(0.04)
            return "ready"

    module.Session = Session
    monkeypatch.setitem(sys.modules, "slow_framework", module)
    calls = (
        phases.Call(phases.DESERIALISE, "slow_framework", "", "Session"),
        phases.Call(phases.PREPARE, "slow_framework", "Session", "initialise"),
        phases.Call(phases.PREPARE, "slow_framework", "Session", "of_another_version"),
    )
    monkeypatch.setitem(phases.CALLS, "slow", calls)
    clock = phases.watch("slow")
    assert module.Session().initialise() == "ready"
    assert clock.spent_ns[phases.DESERIALISE] >= 20_000_000
    assert clock.spent_ns[phases.PREPARE] >= 40_000_000


def test_the_load_of_a_plug_in_is_one_phase() -> None:
    assert phases.watch("file.py:Class").spent_ns == {}
    assert "plug-in" in phases.note("file.py:Class")


@given(st.lists(st.tuples(*[_ABSENT_OR_NS] * 5, st.integers(1, 10**12)), min_size=1, max_size=6))
def test_the_shares_of_a_first_answer_add_up_to_the_whole(
    rows: list[tuple[int | None, ...]],
) -> None:
    keys = [phase.key for phase in summary.PHASES]
    trials = [_trial(**dict(zip(keys, row, strict=True))) for row in rows]
    shares = summary.shares(trials)
    assert sum(shares.values()) == pytest.approx(1)
    assert sum(round(share * 1000) for _, share in tables.rounded(shares)) == 1000
    parts = sum(value.mean for _, value in summary.phase_times(trials))
    assert parts == pytest.approx(summary.total(trials).mean)


def test_one_trial_has_no_interval() -> None:
    assert summary.total([_trial(first=5, input=2)]) == (7, None)


def test_a_phase_that_no_trial_measured_is_left_out() -> None:
    told = [phase.key for phase, _ in summary.phase_times([_trial(prepare=None, read=None)])]
    assert told == ["deserialise", "rest", "input", "first"]
