"""Series of batch means from the samples of a run."""

from typing import Any

import numpy as np
import pytest

from harness.results.steady.series import BATCHES, FEWEST, Stream, series_of, without_spikes
from harness.types import Array

MS = 1_000_000


def stream(latency_ns: Array, index: Array | None = None, **more: Any) -> Stream:
    """Returns a run that issues one query at a time."""
    n = len(latency_ns)
    latency_ns = latency_ns.astype(np.int64)
    issued_ns = np.cumsum(latency_ns) - latency_ns
    index = np.arange(n) if index is None else index
    return Stream(issued_ns, latency_ns, index, np.ones(n, bool))._replace(**more)


def test_a_short_run_has_no_series() -> None:
    assert dict(series_of(stream(np.full(FEWEST - 1, MS)))) == {}
    assert "latency" in series_of(stream(np.full(FEWEST, MS)))


def test_the_mix_of_samples_vanishes_if_they_repeat() -> None:
    rng = np.random.default_rng(1)
    lengths = rng.lognormal(sigma=1.0, size=100)
    index = rng.integers(0, 100, 6400)
    values = series_of(stream(MS * lengths[index], index))["latency"].values
    assert len(values) == BATCHES
    assert values.std() < 1e-3
    unpaired = series_of(stream(MS * lengths[index]))["latency"].values
    assert unpaired.std() > 0.05


@pytest.mark.parametrize("repeats", [1, 2, 3, 10])
def test_few_repeats_do_not_hide_a_ramp(repeats: int) -> None:
    rng = np.random.default_rng(2)
    index = rng.permutation(np.repeat(np.arange(6400 // repeats), repeats))
    x = np.arange(len(index)) / len(index)
    logs = (
        0.3 * rng.normal(size=index.max() + 1)[index] + 0.1 * rng.normal(size=len(index)) + 0.2 * x
    )
    values = series_of(stream(MS * np.exp(logs), index))["latency"].values
    slope = np.polyfit((np.arange(BATCHES) + 0.5) / BATCHES, values, 1)[0]
    assert slope == pytest.approx(0.2, abs=0.03)


def test_the_rate_of_a_closed_loop_mirrors_its_latency() -> None:
    latency_ns = MS * np.where(np.arange(6400) < 3200, 1.0, 1.25)
    values = series_of(stream(latency_ns))["rate"].values
    assert values[-5:].mean() - values[:5].mean() == pytest.approx(-np.log(1.25), abs=0.01)


def test_a_paced_run_has_no_rate() -> None:
    assert "rate" not in series_of(stream(np.full(1000, MS), is_paced=True))


def test_long_samples_do_not_look_like_a_slow_rate() -> None:
    rng = np.random.default_rng(3)
    lengths = rng.lognormal(sigma=1.0, size=50)
    index = rng.integers(0, 50, 6400)
    values = series_of(stream(MS * lengths[index], index))["rate"].values
    assert values.std() < 0.02


def test_failed_samples_count_as_failures_only() -> None:
    latency_ns = np.where(np.arange(6400) % 50 == 0, 1, MS)
    is_ok = latency_ns > 1
    found = series_of(stream(latency_ns, is_ok=is_ok))
    assert found["latency"].values.std() < 1e-9
    assert found["failures"].values.mean() == pytest.approx(2.0, abs=0.1)
    assert "failures" not in series_of(stream(np.full(6400, MS)))


def test_times_of_tokens_may_be_missing() -> None:
    ttft_ns = np.full(6400, 2.0 * MS)
    ttft_ns[::2] = np.nan
    found = series_of(stream(np.full(6400, 9 * MS), ttft_ns=ttft_ns))
    assert found["TTFT"].values == pytest.approx(np.log(2 * MS))
    assert "TPOT" not in found


def test_the_tail_counts_slow_samples() -> None:
    rng = np.random.default_rng(4)
    latency_ns = MS * rng.lognormal(sigma=0.1, size=20_000)
    late = rng.random(20_000) < 0.02 * (np.arange(20_000) > 10_000)
    values = series_of(stream(np.where(late, 10 * latency_ns, latency_ns)))["tail"].values
    assert values[32:].mean() - values[:32].mean() > 1


def test_a_spike_is_cut_and_a_step_is_kept() -> None:
    values = np.random.default_rng(5).normal(size=64) * 0.01
    spiked = values.copy()
    spiked[30] += 1
    assert np.abs(without_spikes(spiked) - values).max() < 0.1
    step = values + (np.arange(64) > 40)
    assert without_spikes(step) == pytest.approx(step, abs=0.03)


def test_samples_answered_at_once_have_a_rate_of_their_work() -> None:
    latency_ns = np.full(1000, MS)
    done_ns = np.repeat(np.arange(1, 501), 2) * MS
    found = series_of(stream(latency_ns, done_ns=done_ns, work=np.full(1000, 8)))
    assert found["rate"].values.std() < 1e-6
