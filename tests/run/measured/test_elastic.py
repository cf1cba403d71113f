"""The wide instance answers a query that is alone, and a queue serves all other queries."""

import threading
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from harness.core import registry
from harness.core.config.run_config import RunConfig
from harness.loadgen.plan import InstanceGroup
from harness.models.steps.postprocess import Postprocess, not_finite
from harness.run.measured.answerer import Answerer
from harness.run.measured.dispatch.elastic import ElasticDispatcher
from harness.run.measured.placement import wide
from harness.run.measured.placement.wide import LOAD_LIMIT_S, Wide
from harness.types import Batch
from tests.builders.support import plan
from tests.run.measured.test_threads import WAIT_S, Bench, Gated, Plugin, run

SOON_S = 0.05


class Named(Plugin):
    """Records which threads call it."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[str] = set()

    def infer(self, batch: Batch) -> Any:
        self.threads.add(threading.current_thread().name)
        return super().infer(batch)


def elastic(bench: Bench, max_batch: int = 4) -> ElasticDispatcher:
    """Returns a dispatcher whose last instance is the wide one."""
    *instances, wide = bench.instances
    return ElasticDispatcher(instances, max_batch, bench.journal.issuer(), None, wide)


def of_bench(bench: Bench) -> Any:
    return lambda _instances, max_batch, _issuer: elastic(bench, max_batch)


@pytest.mark.usefixtures("_eager_switching")
@pytest.mark.parametrize("callbacks", [[1] * 3000, [1, 30, 1, 17] * 100, [2, 1] * 700])
def test_every_sample_is_answered_once_and_in_order(callbacks: list[int]) -> None:
    total = sum(callbacks)
    bench = Bench(total, 4)
    run(of_bench(bench), callbacks, 4, bench)
    assert [i for _, ids, _, _ in bench.batches() for i in ids] == list(range(1000, 1000 + total))
    assert bench.journal.completed == total
    assert set(bench.plugins[-1].sizes) <= {1}


def test_lone_query_runs_on_the_wide_instance_in_the_first_worker() -> None:
    bench = Bench(100, 4, Named)
    dispatcher = elastic(bench)
    done = 0
    for burst in [1, 1, 8, 1, 8, 1, 1]:
        dispatcher.issue(list(range(done, done + burst)), list(range(done, done + burst)))
        done += burst
        while bench.journal.completed < done:
            bench.recorders[0].some.acquire(timeout=1e-4)
        while any(dispatcher._answering.values()):
            bench.recorders[0].some.acquire(timeout=1e-4)
    dispatcher.stop()
    wide: Any = bench.plugins[-1]
    # The last sample of a burst may also be alone, so more than five queries may use all cores.
    assert len(wide.sizes) >= 5
    assert wide.threads == {"instance-0"}
    assert bench.journal.completed == done


def test_the_other_instances_wait_while_their_cores_compute_for_one_query() -> None:
    bench = Bench(4, 3, Gated)
    first, second, wide = bench.plugins
    assert isinstance(first, Gated)
    assert isinstance(second, Gated)
    assert isinstance(wide, Gated)
    dispatcher = elastic(bench, max_batch=2)
    dispatcher.issue([0], [0])
    assert wide.has_one.acquire(timeout=WAIT_S)
    for i in (1, 2, 3):
        dispatcher.issue([i], [i])
    assert not first.has_one.acquire(timeout=SOON_S)
    assert not second.has_one.acquire(timeout=SOON_S)
    for plugin in (wide, first, second):
        plugin.may.release(3)
    dispatcher.stop()
    assert wide.sizes[0] == 1
    assert sorted(first.sizes + second.sizes + wide.sizes[1:]) == [1, 2]


def usual() -> Answerer:
    plugin: Any = Plugin()
    return Answerer(plugin, plugin, Postprocess(plugin.postprocess, not_finite), ())


GROUP = InstanceGroup(2, 1, 4, wide=(0, 1))
CONFIG = RunConfig(scenario="server")
NOTHING: Any = SimpleNamespace()


class Other(Plugin):
    """Returns numbers that differ from the first instance's."""

    def infer(self, batch: Batch) -> Any:
        return super().infer(batch) + 1


def opened(
    monkeypatch: pytest.MonkeyPatch,
    times_ns: tuple[int, int] = (5_000_000, 10_000_000),
    *,
    group: InstanceGroup = GROUP,
    rate_per_s: float | None = 40.0,
    load_s: float = 0.1,
    rounds: int = wide.ROUNDS,
    plugin: type[Plugin] = Plugin,
    curve: wide.Curve = (),
) -> Wide:
    """times_ns: times of the wide and of the ordinary instance; a round after number `rounds` fails."""
    monkeypatch.setattr(wide, "open_backends", lambda *_, **__: [plugin()])
    turns = iter([ns for _ in range(rounds) for ns in times_ns])
    monkeypatch.setattr(Answerer, "time_ns", lambda *_: next(turns))
    found = Wide(group, CONFIG, NOTHING, None)
    made = plan("server", target_qps=rate_per_s, percentile=0.99)
    found.open(usual(), load_s, 0, made, curve, ExitStack())
    return found


def test_the_wide_instance_is_used_if_the_queries_gain_by_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = opened(monkeypatch)
    assert found.answerer is not None
    times = {"wide_ns": 5_000_000, "narrow_ns": 10_000_000}
    assert found.about() == {"cpus": (0, 1), **times, "reason": None}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (
            {"times_ns": (9_000_000, 10_000_000)},
            "other queries would lose more time than a single query gains, because a sample takes 9.00 ms on all cores and 10.0 ms on one",
        ),
        # Another program was computing while the curve was measured.
        (
            {"times_ns": (12_000_000, 10_000_000), "curve": [(1, 30_000_000), (4, 40_000_000)]},
            "a single query gains nothing, because a sample takes 12.0 ms on all cores and 10.0 ms on one",
        ),
        # While a query uses all four cores, other samples wait, so the tail is longer if both times are equal.
        (
            {"group": GROUP._replace(instances=4), "rate_per_s": 80.0},
            "other queries would lose more time than a single query gains",
        ),
        ({"rate_per_s": None}, "the request rate is not known before the run"),
        ({"load_s": LOAD_LIMIT_S + 1}, "one more instance takes too long to load (6 s)"),
        ({"plugin": Other}, "its answer to a sample differs from an ordinary instance's answer"),
    ],
)
def test_run_without_a_wide_instance_gives_the_reason(
    given: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = opened(monkeypatch, **given)
    assert found.answerer is None
    about = found.about()
    assert about["cpus"] is None
    assert about["reason"].startswith(reason)


def test_a_slow_model_delays_the_run_by_two_rounds_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide, "LIMIT_S", 0.0)
    found = opened(monkeypatch, rounds=2)
    assert (found.wide_ns, found.narrow_ns) == (5_000_000, 10_000_000)


def test_a_run_does_without_a_wide_instance_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(Plugin):
        def __init__(self) -> None:
            raise MemoryError("no room for the weights")

    found = opened(monkeypatch, plugin=Full)
    assert found.answerer is None
    assert found.reason is not None
    assert "no room for the weights" in found.reason


def test_a_backend_that_is_not_elastic_has_no_wide_instance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "load", lambda *_: Plugin)
    reason = opened(monkeypatch).about()["reason"]
    assert reason == "backend 'ort' has no instances on all cores beside instances on one core"
