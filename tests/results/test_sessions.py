"""The summary of the sessions in a run."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from harness.results.evidence.evidence import Evidence
from harness.results.evidence.stages import Completions
from harness.results.tokens.sessions import reasons, section, shown
from tests.builders.support import evidence, present

MS = 1_000_000


def run(
    *rows: tuple[int, int, int, int, int], lag_ms: float = 0.5, tokens: Sequence[int] = ()
) -> Evidence:
    """rows: (session, number of turns in the session, due ms, completed ms, failed). tokens: token counts of the
    answers. The first token of each answer comes 5 ms before its end.
    """
    session, turns, due, completed, failed = np.array(rows).T
    columns = {
        "order": np.arange(len(rows)),
        "session": session,
        "session_turns": turns,
        "scheduled_ns": due * MS,
        "entry_ns": due * MS + int(lag_ms * MS),
        "completed_ns": completed * MS,
        "failed": failed,
    }
    if tokens:
        columns |= {"tokens": np.array(tokens), "first_token_ns": completed * MS - 5 * MS}
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
        "1 complete session of 50.0 ms / 50.0 ms (p50 / p99), 60 % of the time in delays, 1 broken, 1 cut"
    )


def test_subagents_that_overlap_are_not_idle_time() -> None:
    found = present(section(run((0, 3, 0, 10, 0), (0, 3, 10, 40, 0), (0, 3, 10, 20, 0))))
    assert found["idle_share"] == 0.0
    assert found["complete"] == 1


def test_a_user_gets_the_tokens_of_the_time_in_which_it_waits() -> None:
    rows = ((0, 2, 0, 10, 0), (0, 2, 100, 130, 0), (1, 1, 0, 20, 0))
    found = present(section(run(*rows, tokens=(6, 10, 4))))
    assert present(found["busy_ns"])["p99"] == 40 * MS
    assert present(found["idle_ns"])["p99"] == 90 * MS
    # One of the answers has 16 tokens in 40 ms, and the other has 4 tokens in 20 ms.
    assert found["tokens_per_s"] == {"p50": 400.0, "p10": 200.0, "p1": 200.0}
    assert present(found["turns"][0]["tpot_ns"])["p99"] == 5 * MS // 3
    assert found["turns"][1]["tpot_ns"] == {
        "p50": 5 * MS // 9,
        "p90": 5 * MS // 9,
        "p99": 5 * MS // 9,
    }


@pytest.mark.parametrize(("lag_ms", "codes"), [(9.0, []), (11.0, ["client-bound"])])
def test_late_sends_are_a_reason(lag_ms: float, codes: list[str]) -> None:
    late = run((0, 1, 0, 20, 0), (1, 1, 0, 30, 0), lag_ms=lag_ms)
    assert [reason.code for reason in reasons(late)] == codes


def test_late_sends_of_slow_answers_are_no_reason() -> None:
    assert [*reasons(run((0, 1, 0, 2000, 0), lag_ms=150.0))] == []
    assert [*reasons(evidence("server"))] == []


def test_sessions_that_never_ended_have_no_length() -> None:
    found = present(section(run((0, 4, 0, 10, 0))))
    assert found["length_ns"] is None
    assert found["idle_share"] is None
    assert found["complete"] == 0


def test_a_run_without_sessions_has_no_section() -> None:
    assert section(evidence("server")) is None
    assert shown({}) is None
