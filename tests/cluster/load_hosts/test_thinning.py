"""The parts of the schedule that the load hosts issue add up to the schedule of a single LoadGen."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from harness.cluster.load_hosts.thinning import parts_of, plan_of, samples_of
from harness.errors import ConfigError
from harness.loadgen import schedule
from harness.loadgen.plan import LoadPlan, Seeds
from harness.types import Array
from tests.builders.loadgen_trace import trace
from tests.builders.support import plan

QPS = 5000.0
QUERIES = 2000


def names(hosts: int) -> list[str]:
    return [f"local-{host}" for host in range(1, hosts + 1)]


def stored_parts(whole: LoadPlan, hosts: int, tmp_path: Path) -> list[schedule.Stored]:
    """Returns the schedules that the hosts read from their own files."""
    found = []
    for name, part in zip(names(hosts), parts_of(whole, names(hosts)), strict=True):
        (tmp_path / name).mkdir()
        own = plan_of(whole, part, tmp_path / name)
        assert (own.query_count, own.journal_samples) == (len(part), len(part))
        assert own.schedule is not None
        found.append(schedule.read_stored(own.schedule))
    return found


def union(stored: list[schedule.Stored]) -> tuple[Array, Array]:
    after_ns = np.concatenate([one.after_ns for one in stored])
    samples = np.concatenate([one.samples for one in stored if one.samples is not None])
    in_order = np.argsort(after_ns, kind="stable")
    return after_ns[in_order], samples[in_order]


def test_the_union_of_four_hosts_equals_the_loadgen_schedule(tmp_path: Path) -> None:
    """The reference is LoadGen's own run with the same seed, rate and count, whose trace is in whole microseconds."""
    whole = plan("server", query_count=QUERIES, target_qps=QPS, load_hosts=4)
    after_ns, samples = union(stored_parts(whole, 4, tmp_path))
    assert np.array_equal(after_ns, schedule.server_schedule_ns(QUERIES, QPS, whole.seeds.schedule))
    assert np.array_equal(samples, schedule.drawn_samples(whole))
    traced = trace(tmp_path, QUERIES, late=0, qps=int(QPS))
    theirs = traced.scheduled_ns - traced.scheduled_ns[0]
    assert int(np.abs(after_ns - theirs).max()) <= 1000


def test_arrivals_of_a_file_are_shared_with_their_samples(tmp_path: Path) -> None:
    path = tmp_path / schedule.SCHEDULE
    due_ns, asked = np.arange(50) * 1000, np.arange(50)[::-1]
    schedule.store(path, due_ns, asked)
    whole = plan("server", query_count=50, schedule=str(path), target_qps=None)
    after_ns, samples = union(stored_parts(whole, 3, tmp_path))
    assert (after_ns.tolist(), samples.tolist()) == (due_ns.tolist(), asked.tolist())
    assert samples_of(whole).tolist() == asked.tolist()


@given(st.integers(1, 400), st.integers(1, 8), st.integers(0, 2**64 - 1))
def test_each_query_has_one_host(queries: int, hosts: int, seed: int) -> None:
    whole = plan("server", query_count=queries, seeds=Seeds(1, 2, seed))
    try:
        parts = parts_of(whole, names(hosts))
    except ConfigError:
        assume(queries >= 40 * hosts)  # with fewer queries, a host might get none
        raise
    assert sorted(np.concatenate(parts).tolist()) == list(range(queries))
    assert all((np.diff(part) > 0).all() for part in parts)
    again = parts_of(whole, names(hosts))
    assert all(np.array_equal(one, other) for one, other in zip(parts, again, strict=True))


def test_hosts_get_equal_shares_and_their_streams_stay_poisson() -> None:
    whole = plan("server", query_count=200_000, target_qps=QPS)
    after_ns = schedule.server_schedule_ns(200_000, QPS, whole.seeds.schedule)
    for part in parts_of(whole, names(4)):
        assert len(part) == pytest.approx(50_000, rel=0.02)
        gaps_s = np.diff(after_ns[part]) / 1e9
        assert gaps_s.mean() == pytest.approx(4 / QPS, rel=0.02)
        # In an exponential distribution, the standard deviation equals the mean.
        assert gaps_s.std() == pytest.approx(4 / QPS, rel=0.03)


def test_a_host_without_a_query_is_refused() -> None:
    whole = plan("server", query_count=2)
    with pytest.raises(
        ConfigError, match=r"none of 2 queries is drawn for .*local-\d+.*list fewer hosts"
    ):
        parts_of(whole, names(4))
