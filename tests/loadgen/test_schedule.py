"""The Server schedule that the harness recomputes from its seed equals LoadGen's trace."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.loadgen.schedule import server_schedule_ns
from harness.loadgen.versions import PINNED_VERSION, ROUNDS
from harness.results.evidence.stages import percentiles
from tests.builders.loadgen_trace import Traced, trace

QPS = 5000
QUERIES = 2000
SEED = ROUNDS[PINNED_VERSION].seeds.schedule


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Traced:
    return trace(tmp_path_factory.mktemp("trace"), QUERIES, late=0, qps=QPS)


def test_the_schedule_equals_loadgens_within_a_microsecond(traced: Traced) -> None:
    ours = server_schedule_ns(QUERIES, QPS, SEED)
    theirs = traced.scheduled_ns - traced.scheduled_ns[0]
    assert int(np.abs(ours - theirs).max()) <= 1000


def test_the_last_query_is_due_when_loadgen_reports(traced: Traced) -> None:
    """LoadGen draws one query more than it issues, and reports the time of this query as the duration."""
    ours = server_schedule_ns(QUERIES + 1, QPS, SEED)
    assert traced.log.get("generated_query_duration") in ours[-2:].tolist()


def test_percentiles_of_the_traced_latencies_equal_loadgens(traced: Traced) -> None:
    found = percentiles(traced.latency_ns)
    for name, key in (("p50", "50.00"), ("p90", "90.00"), ("p99", "99.00"), ("p99.9", "99.90")):
        assert found[name] == traced.log.get(f"result_{key}_percentile_latency_ns")
    assert found["min"] == traced.log.get("result_min_latency_ns")
    assert found["max"] == traced.log.get("result_max_latency_ns")
    assert found["mean"] == traced.log.get("result_mean_latency_ns")


counts = st.integers(0, 300)
rates = st.floats(0.1, 1e6)
seeds = st.integers(0, 2**64 - 1)


@given(counts, rates, seeds)
def test_a_schedule_starts_at_0_and_never_goes_back(queries: int, qps: float, seed: int) -> None:
    after_ns = server_schedule_ns(queries, qps, seed)
    assert len(after_ns) == queries
    assert after_ns[:1].tolist() == [0][:queries]
    assert bool((np.diff(after_ns) >= 0).all())


@given(counts, counts, rates, seeds)
def test_a_shorter_run_is_the_beginning_of_a_longer_one(
    queries: int, more: int, qps: float, seed: int
) -> None:
    longer = server_schedule_ns(queries + more, qps, seed)
    assert server_schedule_ns(queries, qps, seed).tolist() == longer[:queries].tolist()


@given(counts, rates, seeds)
def test_twice_the_rate_is_half_the_time(queries: int, qps: float, seed: int) -> None:
    slow, fast = server_schedule_ns(queries, qps, seed), server_schedule_ns(queries, 2 * qps, seed)
    # Each gap is rounded to a whole number of ns, so the times may differ by this rounding.
    assert bool((np.abs(slow - 2 * fast) <= 2 * np.arange(queries)).all())


@given(seeds)
def test_only_the_lower_half_of_the_seed_has_effect_as_in_loadgen(seed: int) -> None:
    """LoadGen seeds std::mt19937 with 32 bits."""
    short = server_schedule_ns(10, 100, seed & 0xFFFFFFFF)
    assert server_schedule_ns(10, 100, seed).tolist() == short.tolist()
