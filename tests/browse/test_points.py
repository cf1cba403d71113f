"""The points in a live page's charts: rates, percentiles, and the shares of the time between two readings."""

from typing import Any

import numpy as np
import pytest

from harness.browse.live.points import CHARTS, LEAST, begin_of, opening, point
from harness.run.supervisor.metrics.course import Buckets, Snapshot
from harness.run.supervisor.metrics.histogram import Histogram
from harness.run.supervisor.metrics.live_counts import EDGES_NS
from tests.browse.looks import look
from tests.builders.support import present


def buckets(latencies_s: Any) -> Buckets:
    made = Histogram(EDGES_NS)
    made.add(np.asarray(latencies_s, float) * 1e9)
    counts: list[int] = made.counts.tolist()
    return counts


def charts(*looks: Snapshot) -> Any:
    return point(looks, origin_s=100.0)["charts"]


def test_rates_are_computed_between_two_looks() -> None:
    one = look(110.0, 1_000, tokens=50.0, nodes={"a": 10.0}, offered=200.0)
    two = look(112.0, 1_300, tokens=90.0, nodes={"a": 30.0, "b": 8.0}, offered=200.0, failed=4.0)
    found = point([one, two], origin_s=100.0)
    assert found["t"] == 12.0
    assert found["charts"]["rate"] == {"answered": 150, "requested": 200, "failed": 2}
    assert found["charts"]["tokens"] == {"answered": 20}
    # Node b joined between the two readings, so its rate is unknown.
    assert found["charts"]["nodes"] == {"a": 10}


def test_the_first_look_has_no_rates() -> None:
    assert charts(look(110.0, 1_000, in_flight=3.0, waiting=2.0)) == {
        "queue": {"in flight": 3, "waiting": 2}
    }


def test_a_counter_that_decreases_gives_no_negative_rate() -> None:
    assert charts(look(110.0, 1_000), look(111.0, 10))["rate"] == {"answered": 0}


def test_percentiles_cover_the_queries_between_two_looks() -> None:
    random = np.random.default_rng(0)
    slow, fast = random.exponential(0.5, 2_000), random.exponential(1e-3, 2_000)
    before, after = buckets(slow), buckets([*slow, *fast])
    found = charts(look(110.0, latency=before), look(111.0, latency=after))["latency"]
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        assert found[name] == pytest.approx(np.quantile(fast, share), rel=0.15)


@pytest.mark.parametrize(
    ("count", "names"),
    [(0, []), (1, []), (2, ["p50"]), (10, ["p50", "p90"]), (LEAST, ["p50", "p90", "p99"])],
)
def test_a_percentile_needs_a_query_beyond_it(count: int, names: list[str]) -> None:
    looks = look(110.0, latency=buckets([])), look(111.0, latency=buckets([0.01] * count))
    assert [*charts(*looks).get("latency", {})] == names


def test_looks_are_merged_until_they_have_enough_queries() -> None:
    # One second without answers follows the first 500, then 40 answers come per second.
    counts = [0, 500, 500, 540, 580, 620]
    looks = [look(110.0 + i, latency=buckets([0.01] * n)) for i, n in enumerate(counts)]
    assert "p99" in charts(*looks)["latency"]
    assert "p99" not in charts(*looks[2:5])["latency"]


def test_offline_has_no_latency() -> None:
    looks = [look(110.0 + i, i, latency=buckets([1.0] * i), scenario="offline") for i in (0, 200)]
    assert "latency" not in charts(*looks)


def test_stages_show_means_and_cores_show_their_users() -> None:
    one = look(110.0, stages={"infer": (1.0, 10.0)}, run_cpu_s=5.0, busy_s=50.0, stolen_s=1.0)
    two = look(112.0, stages={"infer": (3.0, 20.0), "queue": (0.5, 10.0)}, run_cpu_s=6.0, busy_s=53.0, stolen_s=2.0)  # fmt: skip
    found = charts(one, two)
    assert found["stages"] == {"infer": 0.2, "queue": 0.05}
    # Bug: Offline's wait for a turn, of seconds, hid all other stages.
    offline = [each._replace(scenario="offline") for each in (one, two)]
    assert charts(*offline)["stages"] == {"infer": 0.2}
    assert found["cores"] == {
        "measured process": 0.5,
        "other programs": 1,
        "taken by the host": 0.5,
    }


def test_a_missing_reading_of_the_machine_leaves_a_gap() -> None:
    """Bug: a stacked chart drew the missing `user` value as 0."""
    one = look(110.0, run_cpu_s=5.0, busy_s=50.0, stolen_s=1.0)
    two = look(111.0, run_cpu_s=6.0, stolen_s=1.0)
    assert "cores" not in charts(one, two)
    assert "cores" not in charts(two, one)


def test_the_use_of_the_cores_is_a_mean_of_three_looks() -> None:
    """Bug: a second with two readings of the machine showed more cores in use than the machine has."""
    busy = (0.0, 10.0, 12.0, 12.0, 16.0)
    looks = [look(110.0 + i, run_cpu_s=0.0, busy_s=s) for i, s in enumerate(busy)]
    assert charts(*looks)["cores"]["other programs"] == 2


def test_no_more_cores_are_in_use_than_the_machine_has() -> None:
    """Bug: the chart showed 2.6 of 2 cores in use, because the readings were farther apart than the snapshots."""
    one = look(110.0, run_cpu_s=0.0, busy_s=0.0, stolen_s=0.0, cores=2)
    two = look(111.0, run_cpu_s=1.0, busy_s=3.0, stolen_s=1.0, cores=2)
    used = charts(one, two)["cores"]
    assert used == {"measured process": 0.5, "other programs": 1, "taken by the host": 0.5}


def test_the_curves_begin_with_the_means_since_the_first_query() -> None:
    """Bug: the curves started at the second reading, and the x axis at the start of the command."""
    first = look(
        110.0, 800, elapsed_s=4.0, in_flight=7.0, stages={"infer": (2.0, 800.0)}, nodes={"a": 4.0}
    )
    begin = present(begin_of(first))
    made = opening([begin, first], begin.at_s)
    assert made["t"] == 0
    assert made["charts"] == {
        "queue": {"in flight": 0},
        "rate": {"answered": 200},
        "stages": {"infer": 0.0025},
        "nodes": {"a": 1},
    }
    offline = present(begin_of(first._replace(scenario="offline")))
    # Offline issues all samples at once, so all samples without an answer are in flight.
    assert offline.in_flight == 807
    assert begin_of(look(110.0)) is None


def test_the_time_left_follows_from_the_answers_so_far() -> None:
    assert look(110.0, elapsed_s=4.0)._replace(progress=0.25).left_s == 12
    assert look(110.0, elapsed_s=0.1).left_s is None
    assert look(110.0, elapsed_s=4.0)._replace(progress=1.0).left_s is None


def test_token_times_and_bounds_have_their_names() -> None:
    bounds: dict[str, Any] = {"bounds_s": [("p99", 0.05)], "token_bounds_s": [("TTFT p90", 0.2)]}
    one = look(110.0, token_times={"ttft": buckets([])}, **bounds)
    two = look(111.0, token_times={"ttft": buckets([0.1] * 10)}, watts={"rapl": 12.34567}, **bounds)
    found = point([one, two], origin_s=100.0)
    assert [*found["charts"]["token_times"]] == ["TTFT p50", "TTFT p90"]
    assert found["bounds"] == {"latency": {"p99": 0.05}, "token_times": {"TTFT p90": 0.2}}
    assert found["charts"]["watts"] == {"rapl": 12.35}
    assert found["charts"].keys() <= {chart.name for chart in CHARTS}
