"""The limit computed by benchmarks/tail.py: its queue equals the harness's simulation under the common policy."""

import numpy as np
import pytest

from benchmarks.tail import LIMIT, OURS, Seen
from benchmarks.tail_limit import BATCHES, Policy, Tail, Times, limit, policies, simulated
from harness.core.batch_rule import BatchRule, batch_times
from harness.core.queueing import simulate
from harness.core.service_times import QUANTILES, ServiceTimes
from harness.loadgen.schedule import server_schedule_ns


def service(each_ns: float, fixed_ns: float = 0.0) -> ServiceTimes:
    ns = np.array([[fixed_ns + each_ns * size] * QUANTILES for size in BATCHES])
    return ServiceTimes(BATCHES, ns, (9,) * len(BATCHES))


DUE_NS = server_schedule_ns(3000, 300.0, 0)
NARROW, WIDE = service(4e6), service(2.2e6)
TIMES = Times(NARROW, WIDE, WIDE.of(1))


def test_the_simulation_matches_the_harness_for_the_same_rule() -> None:
    costly = service(1e6, 3e6)
    points = [(n, costly.median_ns(n)) for n in BATCHES]
    rule = BatchRule(batch_times(points, BATCHES[-1]), 2)
    theirs = simulate(DUE_NS, costly, 2, BATCHES[-1])
    wanted = np.percentile(theirs.queue_ns + theirs.infer_ns, (50, 99)) / 1e6
    assert simulated(DUE_NS, Policy(2, costly.of, rule.size)) == pytest.approx(wanted, rel=0.02)


def test_only_a_query_that_is_alone_uses_all_cores() -> None:
    def one(_waiting: int, _idle: int) -> int:
        return 1

    far = np.arange(1000) * 10_000_000
    assert simulated(far, Policy(2, NARROW.of, one, WIDE.of(1))) == pytest.approx((2.2, 2.2))
    pairs = np.repeat(far, 2)
    assert simulated(pairs, Policy(2, NARROW.of, one, WIDE.of(1))) == pytest.approx((4.0, 4.0))


def test_the_limit_is_below_every_fixed_plan() -> None:
    found = limit(DUE_NS, TIMES, 2)
    greedy = simulated(DUE_NS, Policy(2, NARROW.of, lambda waiting, _idle: min(waiting, 8)))
    assert found.p99_ms < greedy.p99_ms
    # The median is short, because some queries form a batch of one.
    assert 2.2 < found.p50_ms < 4.0
    assert len(list(policies(Times(NARROW), 2))) == len(BATCHES) + 1


def test_rounds_are_compared_with_their_own_limit() -> None:
    seen = Seen()
    for ours, least in ((3.0, 2.0), (8.0, 4.0)):
        seen.add(0.4, OURS, Tail(1.0, ours))
        seen.add(0.4, LIMIT, Tail(0.5, least))
    assert seen.over_limit(0.4) == [1.5, 2.0]
