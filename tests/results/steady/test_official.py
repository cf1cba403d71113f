"""The steady-state rule of MLPerf Endpoints, tested on generated passes against the results of MLPerf's own detector."""

import math

import numpy as np
import pytest

from harness.results.steady import official, rank_tests
from harness.results.steady.official import Official, Samples
from harness.types import Array

PASS = 40
MS = 1e6


def samples(levels_ms: list[float], pass_s: float = 150.0, tokens: int = 100) -> Samples:
    """Returns a run with one pass per TPOT level; within a pass, TPOT varies by 10 % around the level."""
    n = len(levels_ms) * PASS
    within = np.tile(np.linspace(0.95, 1.05, PASS), len(levels_ms))
    tpot_ns = np.repeat(levels_ms, PASS) * MS * within
    return Samples(
        issued_ns=np.arange(n) * (pass_s / PASS) * 1e9,
        ttft_ns=np.full(n, 30 * MS) * np.tile(np.linspace(0.9, 1.1, PASS), len(levels_ms)),
        tpot_ns=tpot_ns,
        latency_ns=30 * MS + tokens * tpot_ns,
        tokens=np.full(n, tokens),
    )


def judged(levels_ms: list[float], pass_s: float = 150.0) -> Official:
    return official.judge(samples(levels_ms, pass_s), PASS)


def test_a_flat_run_has_a_window_after_one_pass_of_warm_up() -> None:
    found = judged([20.0, 20.1, 19.9, 20.0, 20.05, 20.0, 19.95, 20.1])
    assert (found.is_found, found.is_clean, found.status) == (True, True, "windowable")
    assert found.window is not None
    assert (found.window.first_pass, found.window.end_pass) == (1, 8)
    assert found.window.samples == 7 * PASS
    assert found.window.per_user_tps == pytest.approx(50, rel=0.01)
    low, high = found.window.per_user_interval
    assert low < found.window.per_user_tps < high
    assert found.window.system_tps == pytest.approx(
        7 * PASS * 100 / (150 * 7 * (1 - 1 / (7 * PASS)))
    )
    assert found.window.duration.dominant == "floor"


def test_the_warm_up_is_dropped_up_to_half_of_the_run() -> None:
    assert judged([30, 26, 22, 20, 20, 20, 20, 20, 20, 20]).warm_up_passes == 3
    assert judged([30, 30, 30, 30, 30, 30, 20, 20, 20, 20]).warm_up_passes == 5


@pytest.mark.parametrize(
    ("passes", "status"),
    [(0.5, "partial_dataset"), (1, "insufficient_passes"), (4, "insufficient_passes")],
)
def test_a_run_below_five_passes_has_no_window(passes: float, status: str) -> None:
    run = samples([20.0] * math.ceil(passes))
    cut = Samples(*(one[: int(passes * PASS)] for one in run))
    found = official.judge(cut, PASS)
    assert (found.is_found, found.status) == (False, status)
    assert found.reason == "no admissible steady plateau"


def test_a_short_window_is_refused_with_the_time_that_it_needs() -> None:
    found = judged([20.0] * 8, pass_s=10.0)
    assert (found.is_found, found.status) == (False, "insufficient_duration")
    assert found.window is not None
    assert found.reason is not None
    assert "70 s, and 600 s are needed (floor)" in found.reason


def test_a_window_of_four_passes_cannot_see_a_ramp_of_ten_percent() -> None:
    found = judged([20.0, 20.4, 20.8, 21.2, 21.6], pass_s=160)
    assert found.is_clean


def test_a_late_slow_down_is_left_out_of_the_window() -> None:
    found = judged([20.0, 20.1, 19.9, 20.0, 20.1, 19.9, 20.0, 25.0, 25.0])
    assert found.window is not None
    assert found.window.end_pass == 7
    assert found.is_clean, "no anomaly without four passes at the new level"


def test_a_step_with_enough_passes_on_both_sides_is_an_anomaly() -> None:
    levels = [20.0, 20.1, 19.9] * 7 + [25.0, 25.1] * 4
    found = judged(levels)
    assert found.shift is not None
    assert found.shift.at_pass == 21
    assert found.window is not None
    assert found.window.end_pass == 21
    assert found.shift.change == pytest.approx(0.25, abs=0.01)
    assert not found.is_clean
    assert found.drifts_up == ["tpot_p50", "tpot_p90"]


def test_a_step_in_the_second_half_can_pass_for_a_warm_up() -> None:
    found = judged([20.0, 20.1, 19.9] * 2 + [25.0, 25.1, 24.9] * 2)
    assert found.warm_up_passes == 6, "half of the run is dropped"
    assert found.is_clean


def test_enough_passes_without_a_plateau_have_no_status() -> None:
    found = judged([20, 30, 20, 30, 20, 30, 20, 30])
    assert (found.is_found, found.status) == (False, None)


def test_missing_times_count_in_no_percentile() -> None:
    run = samples([20.0] * 8)
    run.tpot_ns[::3] = math.nan
    found = official.judge(run, PASS)
    assert found.is_found
    run.tpot_ns[3 * PASS : 4 * PASS] = math.nan
    assert not official.judge(run, PASS).is_found, "a pass without tokens ends each window"


def test_a_run_without_samples_is_a_partial_dataset() -> None:
    empty = np.empty(0)
    assert official.judge(Samples(*[empty] * 5), PASS).status == "partial_dataset"


def test_a_pass_without_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 sample"):
        official.judge(samples([20.0]), 0)


@pytest.mark.parametrize(
    ("values", "trend"),
    [
        ([1.0, 2.0, 3.0], "insufficient"),
        ([1.0, 2.0, 3.0, 4.0], "steady"),
        ([1.0, 2.0, 3.0, 4.0, 5.0], "up"),
        ([5.0, 4.0, 3.0, 2.0, 1.0], "down"),
        ([3.0, 3.0, 3.0, 3.0, 3.0], "steady"),
        ([1.0, 3.0, 2.0, 5.0, 4.0, 6.0, 8.0, 7.0], "up"),
        ([2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0], "steady"),
    ],
)
def test_trends_have_the_answers_of_the_detector(values: list[float], trend: str) -> None:
    assert rank_tests.trend_of(np.array(values)) == trend


def test_pettitt_finds_the_step_with_tied_ranks() -> None:
    series: Array = np.array([1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0])
    step = rank_tests.step_of(series)
    assert step.at == 5
    assert step.p_value == pytest.approx(2 * math.exp(-6 * 25**2 / 1100))
    assert rank_tests.step_of(np.ones(10)) == (0, 1.0)
    assert rank_tests.step_of(np.ones(3)) == (0, 1.0)
