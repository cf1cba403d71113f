"""Summary of the sessions of a run."""

from dataclasses import replace

import numpy as np
import pytest

from harness.results.evidence.evidence import Evidence
from harness.results.evidence.stages import Completions
from harness.results.tokens.sessions import section, shown
from tests.builders.support import evidence, present

MS = 1_000_000


def run(*rows: tuple[int, int, int, int, int]) -> Evidence:
    """rows: (session, turns of the session, due ms, completed ms, failed)."""
    session, turns, due, completed, failed = np.array(rows).T
    columns = {
        "order": np.arange(len(rows)),
        "session": session,
        "session_turns": turns,
        "scheduled_ns": due * MS,
        "entry_ns": due * MS + MS // 2,
        "completed_ns": completed * MS,
        "failed": failed,
    }
    return replace(evidence("server"), done=Completions(columns, len(rows), True))


def test_complete_broken_and_cut_sessions_are_counted_apart() -> None:
    found = present(
        section(
            run(
                (0, 2, 0, 10, 0),
                (1, 3, 0, 20, 0),
                (2, 2, 5, 9, 1),
                (0, 2, 40, 50, 0),
                (1, 3, 20, 30, 0),
            )
        )
    )
    assert (found["begun"], found["complete"], found["broken"], found["cut"]) == (3, 1, 1, 1)
    assert found["broken_at"] == {"0": 1}
    assert found["length_ns"] == {"p50": 50 * MS, "p90": 50 * MS, "p99": 50 * MS}
    assert found["idle_share"] == pytest.approx(30 / 50)
    assert found["send_lag_ns"]["p99"] == MS // 2
    assert [turn["answers"] for turn in found["turns"]] == [2, 2]
    assert present(found["turns"][1]["latency_ns"])["p50"] == 10 * MS
    assert shown({"sessions": found}) == (
        "1 complete session of 50.0 ms / 50.0 ms (p50 / p99), 60 % of it delays, 1 broken, 1 cut"
    )


def test_subagents_that_overlap_are_not_idle_time() -> None:
    found = present(section(run((0, 3, 0, 10, 0), (0, 3, 10, 40, 0), (0, 3, 10, 20, 0))))
    assert found["idle_share"] == 0.0
    assert found["complete"] == 1


def test_sessions_that_never_ended_have_no_length() -> None:
    found = present(section(run((0, 4, 0, 10, 0))))
    assert found["length_ns"] is None
    assert found["idle_share"] is None
    assert found["complete"] == 0


def test_a_run_without_sessions_has_no_section() -> None:
    assert section(evidence("server")) is None
    assert shown({}) is None
