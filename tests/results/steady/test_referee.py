"""The three verdicts, tested on generated runs whose truth is known."""

import time

import numpy as np
import pytest

from harness.results.steady import referee as judge
from harness.results.steady.referee import Refereed, referee
from harness.results.steady.series import Stream
from harness.types import Array

MS = 1_000_000
PASS = 100


def run(level: Array, noise: float = 0.1, seed: int = 1) -> Stream:
    """Returns passes over 100 samples, one sample at a time. level: logarithm of each sample's level."""
    rng = np.random.default_rng(seed)
    n = len(level)
    index = np.concatenate([rng.permutation(PASS) for _ in range(-(-n // PASS))])[:n]
    lengths = 0.4 * rng.normal(size=PASS)
    logs = lengths[index] + noise * rng.normal(size=n) + level
    latency_ns = (MS * np.exp(logs)).astype(np.int64)
    return Stream(np.cumsum(latency_ns) - latency_ns, latency_ns, index, np.ones(n, bool))


def judged(level: Array, noise: float = 0.1, seed: int = 1) -> Refereed:
    found = referee(run(level, noise, seed))
    assert found is not None
    return found


X = np.linspace(0, 1, 3200)


def test_a_run_of_few_samples_has_no_verdict() -> None:
    assert referee(run(np.zeros(95))) is None


def test_a_flat_run_is_steady() -> None:
    found = judged(np.zeros(3200))
    assert (found.verdict, found.needed_s, found.cause) == ("steady", None, None)
    assert found.warm_up_s == 0
    assert [one.name for one in found.series] == ["latency", "rate", "tail"]


@pytest.mark.parametrize("change", [-0.2, 0.15, 0.4])
def test_a_ramp_is_not_steady(change: float) -> None:
    found = judged(np.log1p(change * X))
    assert found.verdict == "not steady"
    assert found.cause is not None
    assert found.warm_up_s == 0, "the start of a ramp is not a warm-up"


def test_a_step_is_found_with_its_time() -> None:
    stream = run(0.2 * (X > 0.6))
    found = referee(stream)
    assert found is not None
    assert found.verdict == "not steady"
    latency = found.series[0]
    assert (latency.name, latency.shape) == ("latency", "step")
    assert latency.change == pytest.approx(0.22, abs=0.03)
    assert latency.at_ns == pytest.approx(stream.issued_ns[int(0.6 * 3200)], rel=0.03)


def test_a_slow_start_is_left_out() -> None:
    found = judged(0.5 * np.exp(-X / 0.02))
    assert found.verdict == "steady"
    assert 0.02 < found.warm_up_s / (found.warm_up_s + found.judged_s) < 0.2
    assert 0.005 < found.warm_up_change < 0.05


def test_a_noisy_run_is_undecided_and_says_how_long() -> None:
    found = judged(np.zeros(200), noise=0.5)
    assert found.verdict == "undecided"
    assert found.needed_s is not None
    took_s = found.warm_up_s + found.judged_s
    assert 1.25 * took_s <= found.needed_s <= 100.1 * took_s


def test_the_stated_length_is_about_enough() -> None:
    short = judged(np.zeros(400), noise=0.5)
    assert short.verdict == "undecided"
    assert short.needed_s is not None
    times = short.needed_s / (short.warm_up_s + short.judged_s)
    decided = [
        judged(np.zeros(int(2 * times * 400)), noise=0.5, seed=seed).verdict == "steady"
        for seed in range(5)
    ]
    assert sum(decided) >= 4


def test_a_slower_tail_is_not_steady() -> None:
    stream = run(np.zeros(20_000))
    late = np.random.default_rng(7).random(20_000) < 0.05 * (np.arange(20_000) > 10_000)
    slow = np.where(late, 8 * stream.latency_ns, stream.latency_ns)
    found = referee(stream._replace(latency_ns=slow))
    assert found is not None
    assert found.verdict == "not steady"
    assert "tail" in [one.name for one in found.series if one.verdict == "not steady"]


def test_failures_that_begin_late_are_not_steady() -> None:
    stream = run(np.zeros(3200))
    is_ok = np.random.default_rng(8).random(3200) > 0.05 * (X > 0.5)
    found = referee(stream._replace(is_ok=is_ok))
    assert found is not None
    assert [one.name for one in found.series if one.verdict == "not steady"] == ["failures"]


def test_tokens_that_slow_down_are_not_steady() -> None:
    stream = run(np.zeros(3200))
    tpot_ns = MS * (1 + 0.3 * (X > 0.4)) * np.exp(0.1 * np.random.default_rng(9).normal(size=3200))
    found = referee(stream._replace(tpot_ns=tpot_ns))
    assert found is not None
    assert found.verdict == "not steady"
    assert found.cause is not None
    assert found.cause.name == "TPOT"


@pytest.mark.slow
def test_a_million_queries_take_less_than_a_second() -> None:
    stream = run(np.zeros(1_000_000))
    referee(stream)
    begin = time.process_time()
    referee(stream)
    assert time.process_time() - begin < 1.0


@pytest.mark.slow
def test_the_stated_error_rates_hold_on_other_seeds() -> None:
    """Checks the rates stated in docs/steady.md with as many streams as a minute allows."""
    flat = [judged(np.zeros(3200), seed=1000 + seed).verdict for seed in range(200)]
    changed = [
        judged(np.log1p(0.1 * X) if seed % 2 else 0.0953 * (X > 0.5), seed=3000 + seed).verdict
        for seed in range(200)
    ]
    assert flat.count("not steady") <= 4
    assert changed.count("steady") <= 8


def test_the_limits_are_those_of_the_documentation() -> None:
    assert (judge.TOLERATED, judge.CHANGED) == (0.04, 0.10)
