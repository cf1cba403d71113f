"""The reference dispatcher: its simulated queue agrees with theory and with a simpler simulation."""

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.batch_rule import BatchRule
from harness.core.queueing import simulate
from harness.core.service_times import QUANTILES, ServiceTimes, together
from harness.loadgen.plan import InstanceGroup, LoadPlan, Seeds
from harness.loadgen.schedule import server_schedule_ns
from harness.results.answer.load_generator import line
from harness.results.evidence import reference
from harness.results.evidence.stages import LOCAL_STAGES, Completions
from harness.run.measured import service_times as service_module
from harness.run.measured.answerer import Answerer
from harness.run.measured.service_times import batches_of, measure
from harness.types import Array, Batch


def report(*arguments: Any, **more: Any) -> Any:
    return reference.report(*arguments, **more)


def constant(*ns: float, sizes: Sequence[int] | None = None) -> ServiceTimes:
    rows = np.repeat(np.asarray(ns, np.float64)[:, None], QUANTILES, axis=1)
    return ServiceTimes(tuple(sizes or range(1, len(ns) + 1)), rows, (9,) * len(ns))


def slowly(arrivals: list[int], service_ns: list[int], instances: int) -> list[tuple[int, int]]:
    """Returns (queue, infer) per query, simulated nanosecond by nanosecond without the tested code."""
    rule = BatchRule([0, *service_ns], instances)
    busy_until = [0] * instances
    waiting: list[int] = []
    found: dict[int, tuple[int, int]] = {}
    now = 0
    while len(found) < len(arrivals):
        waiting += [i for i, at in enumerate(arrivals) if at == now]
        while waiting and min(busy_until) <= now:
            size = rule.size(len(waiting), sum(until <= now for until in busy_until))
            taken, waiting = waiting[:size], waiting[size:]
            spent = service_ns[len(taken) - 1]
            busy_until[busy_until.index(min(busy_until))] = now + spent
            found |= {i: (now - arrivals[i], spent) for i in taken}
        now += 1
    return [found[i] for i in range(len(arrivals))]


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=30),
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.integers(1, 3),
)
def test_queueing_equals_a_simulation_by_the_clock(
    gaps: list[int], service_ns: list[int], instances: int
) -> None:
    service_ns = sorted(service_ns)  # a larger batch takes at least as long as a smaller one
    arrivals = np.cumsum(gaps) - gaps[0]
    found = simulate(arrivals, constant(*service_ns), instances, len(service_ns))
    wanted = slowly(arrivals.tolist(), service_ns, instances)
    assert list(zip(found.queue_ns.tolist(), found.infer_ns.tolist(), strict=True)) == wanted


def test_lone_query_takes_all_cores_and_the_next_waits_for_its_end() -> None:
    scheduled_ns = np.array([0, 1000, 1020, 1030, 2000])
    found = simulate(scheduled_ns, constant(100), 2, 1, wide=constant(60))
    assert found.queue_ns.tolist() == [0, 0, 40, 30, 0]
    assert found.infer_ns.tolist() == [60, 60, 100, 100, 60]


def test_a_batch_of_the_wide_instance_is_as_fast_as_its_own_bare_loops() -> None:
    done = completions(np.arange(100) * 10_000, queue=0, infer=60)
    # Worker 2 is the wide instance, after the two usual workers 0 and 1.
    done = replace(done, columns={**done.columns, "worker": np.full(100, 2)})
    wide = {"before": constant(60).to_json(), "after": constant(60).to_json()}
    bare = {"before": constant(100).to_json(), "after": constant(100).to_json(), "wide": wide}
    server = plan("server", target_qps=1.0, percentile=0.99)
    found = report(server, done, bare, InstanceGroup(2, 1, 1, wide=(0, 1)))
    assert (found["ratio"], found["model_ratio"]) == (1, 1)
    assert (found["at_run_speed"]["reference"], found["lost_ns"]["infer"]) == (60, 0)


def test_requested_wait_is_not_charged_to_the_dispatcher() -> None:
    """With --batch-wait, a batch starts when it is full, or when its oldest query has waited long enough."""
    scheduled_ns = np.array([0, 10, 20, 1000, 1500, 5000])
    found = simulate(scheduled_ns, constant(5, 6, 7), 2, 3, wait_ns=600)
    assert found.queue_ns.tolist() == [20, 10, 0, 600, 100, 600]
    assert found.infer_ns.tolist() == [7, 7, 7, 6, 6, 5]
    assert simulate(scheduled_ns, constant(5, 6, 7), 2, 3).queue_ns.tolist() == [0, 0, 0, 0, 0, 0]


def test_run_that_waited_as_requested_was_not_held_back() -> None:
    done = completions(np.arange(100) * 10_000, queue=5000, infer=100)
    bare = {"before": constant(100).to_json(), "after": constant(100).to_json()}
    server = plan("server", target_qps=1.0, percentile=0.99)
    spec = InstanceGroup(1, 1, 2)
    greedy = report(server, done, bare, spec)
    assert greedy["lost_ns"]["queue"] == 5000
    assert "was the bottleneck" in line(greedy, None)
    asked = report(server, done, bare, spec, wait_ns=5000)
    assert (asked["ratio"], asked["at_run_speed"]["ratio"]) == (1, 1)
    assert "was not the bottleneck" in line(asked, None)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_one_instance_without_batches_waits_as_queueing_theory_says(load: float) -> None:
    """In an M/D/1 queue, the mean wait is load / (2 (1 - load)) service times (Pollaczek and Khinchine)."""
    service_ns = 1_000_000
    scheduled_ns = server_schedule_ns(200_000, load * 1e9 / service_ns, 7)
    found = simulate(scheduled_ns, constant(service_ns), 1, 1)
    wanted = service_ns * load / (2 * (1 - load))
    assert found.queue_ns.mean() == pytest.approx(wanted, rel=0.05)


def test_service_times_are_interpolated_and_extrapolated() -> None:
    service = constant(10, 40, sizes=(1, 4))
    assert [service.median_ns(size) for size in (1, 2, 3, 4, 8)] == [10, 20, 30, 40, 80]


def test_before_and_after_are_one_measurement() -> None:
    before, after = constant(10.0), constant(30.0)
    both = together(before, after)
    assert (both.ns[0, 0], both.ns[0, -1], both.counts) == (10, 30, (18,))
    assert both.ns.mean() == pytest.approx(20)
    assert ServiceTimes.from_json(both.to_json()).sizes == (1,)


class Counting:
    """A backend that records how many callers use it at the same time."""

    def __init__(self, at_once: list[int]) -> None:
        self._at_once = at_once
        self.sizes: list[int] = []

    def infer(self, batch: Batch) -> Any:
        self.sizes.append(batch.size)
        self._at_once.append(threading.active_count())
        time.sleep(0.002)


class Plain:
    def batch(self, indices: Sequence[int]) -> Batch:
        return Batch(len(indices), {"samples": np.asarray(indices)})


def on(backend: Any) -> Answerer:
    anything: Any = None
    return Answerer(backend, anything, anything)


def test_bare_loops_keep_every_instance_busy_at_once() -> None:
    at_once: list[int] = []
    others = threading.active_count()
    backends = [Counting(at_once), Counting(at_once)]
    dataset: Any = Plain()
    batches = batches_of(dataset, [5, 6, 7], [1, 2, 4])
    assert [[b.inputs["samples"].tolist() for b in alike] for alike in batches] == [
        [[5], [6], [7]],
        [[5, 6], [7, 5]],
        [[5, 6, 7, 5]],
    ]
    service = measure([on(b) for b in backends], batches, 0.06)
    assert service.sizes == (1, 2, 4)
    assert min(service.counts) >= 2 * 3
    assert max(at_once) == others + 2
    assert all(set(b.sizes) == {1, 2, 4} for b in backends)
    assert service.ns.min() >= 2e6


class FakeTime:
    """A clock that advances only while a model computes."""

    def __init__(self) -> None:
        self.now_ns = 0

    def monotonic_ns(self) -> int:
        return self.now_ns


@pytest.mark.parametrize(
    ("ms_per_sample", "sizes", "counts"),
    [
        (1000, (1, 8), (1, 1)),
        (50, (1, 2, 4, 8), (3, 3, 1, 1)),  # the loops end after 150, 450, 650 and 1050 ms
        (5, (1, 2, 4, 8), (5, 3, 3, 3)),
    ],
)
def test_bare_loops_of_a_slow_model_end_in_time(
    ms_per_sample: int,
    sizes: tuple[int, ...],
    counts: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Service times include the largest size, so that no size must be extrapolated."""
    clock = FakeTime()
    monkeypatch.setattr(service_module, "time", clock)

    class Slow:
        def infer(self, batch: Batch) -> None:
            clock.now_ns += batch.size * ms_per_sample * 1_000_000

    dataset: Any = Plain()
    batches = batches_of(dataset, range(8), [1, 2, 4, 8])
    found = measure([on(Slow())], batches, limit_s=0.1, most_s=0.5)
    assert (found.sizes, found.counts) == (sizes, counts)


def test_sizes_measured_at_only_one_end_are_left_out() -> None:
    bare = {
        "before": constant(100, 200, 400, sizes=[1, 2, 4]).to_json(),
        "after": constant(100, 400, sizes=[1, 4]).to_json(),
    }
    server = plan("server", target_qps=1.0, percentile=0.99)
    found = report(
        server, completions(np.arange(9) * 1000, infer=100), bare, InstanceGroup(1, 1, 4)
    )
    assert [row["batch"] for row in found["service_ns"]] == [1, 4]
    assert (found["ratio"], found["drift"]) == (1, 0)


def test_bare_loops_raise_the_error_of_a_backend() -> None:
    class Broken:
        def infer(self, _batch: Batch) -> Any:
            raise ValueError("no")

    with pytest.raises(ValueError, match=r"^no$"):
        measure([on(Broken()), on(Broken())], [[Batch(1, {})]], 0.01)


@pytest.mark.parametrize("found", [float("nan"), float("inf"), -1.0])
def test_invalid_stored_service_times_are_refused(found: float) -> None:
    stored = constant(1).to_json()
    stored["ns"][0][0] = found
    with pytest.raises(ValueError, match="negative or not finite"):
        ServiceTimes.from_json(stored)


def plan(scenario: str, samples_per_query: int = 1, **more: Any) -> LoadPlan:
    return LoadPlan(
        scenario=scenario,
        accuracy=False,
        query_count=10,
        journal_samples=10 * samples_per_query,
        total_count=10,
        performance_count=10,
        seeds=Seeds(1, 2, 3),
        samples_per_query=samples_per_query,
        **more,
    )


def completions(scheduled_ns: Any, **spent_ns: int) -> Completions:
    """Returns a journal with batches of one sample and the given stage times."""
    at = np.asarray(scheduled_ns, np.int64)
    columns = {"order": np.arange(len(at)), "scheduled_ns": at}
    columns |= {"batch": columns["order"], "batch_size": np.ones(len(at), np.int64)}
    names = ("entry", "taken", "gathered", "inferred", "postprocessed", "completed")
    for stage, name in zip(LOCAL_STAGES, names, strict=True):
        at = at + spent_ns.get(stage, 0)
        columns[f"{name}_ns"] = at
    return Completions(columns, len(at), True)


BARE = {"before": constant(90).to_json(), "after": constant(110).to_json()}
SPEC = InstanceGroup(1, 1, 1)


def test_losses_of_a_server_run_sum_to_its_tail() -> None:
    done = completions(np.arange(100) * 1000, issue_delay=5, queue=20, infer=130, complete=7)
    bare = {"before": constant(100).to_json(), "after": constant(100).to_json()}
    found = report(plan("server", target_qps=1.0, percentile=0.99), done, bare, SPEC)
    found["null_backend_per_s"] = 3000.0
    assert (found["reference"], found["ours"], found["ratio"]) == (100, 162, 1.62)
    lost = {"issue_delay": 5, "queue": 20, "gather": 0, "infer": 30, "postprocess": 0}
    assert found["lost_ns"] == lost | {"complete": 7}
    assert line(found, 1000.0) == (
        "p99 162 ns by the journal, against 100 ns with a cost-free load generator (1.62 x): the model itself was slower in the "
        "run: in the slowest 1 %, 30 ns more in infer, 20 ns more in queue; the null backend reaches 3,000/s here, 3 x"
    )


@pytest.mark.parametrize(
    ("lost_ns", "judgement"),
    [
        ({"infer": 196e6, "issue_delay": 123e6, "queue": 1e6}, "the model itself was slower in the run: in the slowest 1 %, 196 ms more in infer, 123 ms more in issue delay"),
        ({"infer": 5e6, "queue": 9e6}, "the load generator was the bottleneck; in the slowest 1 %, 9.00 ms more in queue; the model itself: 5.00 ms more in infer"),
        ({"infer": -5e6, "issue_delay": 123e6, "queue": 1e6}, "the load generator was the bottleneck; in the slowest 1 %, 123 ms more in issue delay, 1.00 ms more in queue"),
        ({}, "the load generator was the bottleneck"),
    ],
)  # fmt: skip
def test_the_load_generator_is_not_blamed_for_the_model(
    lost_ns: dict[str, float], judgement: str
) -> None:
    """Bug: the message was "the load generator held it back, 196 ms in infer", although `infer` is the model's stage."""
    judged = {"reference": 1e9, "ratio": 2.0}
    section = {"what": "p99", "unit": "ns", "ours": 2e9, **judged, "at_run_speed": judged}
    section |= {"null_backend_per_s": None, "lost_ns": lost_ns, "queries": 9, "of_queries": 9}
    numbers = "p99 2.00 s by the journal, against 1.00 s with a cost-free load generator (2 x)"
    assert line(section, None) == f"{numbers}: {judgement}"


def test_reference_of_a_part_of_the_run_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.results.evidence.reference.LIMIT_QUERIES", 60)
    done = completions(np.arange(100) * 1000, infer=130)
    bare = {"before": constant(100).to_json(), "after": constant(100).to_json()}
    found = report(plan("server", target_qps=1.0, percentile=0.99), done, bare, SPEC)
    assert line(found, None).startswith(
        "p99 of the first 60 queries 130 ns by the journal, against 100 ns with "
    )


def test_offline_is_compared_with_the_bare_loop() -> None:
    done = completions(np.zeros(50, np.int64), infer=10_000, postprocess=990_000)
    bare = {"before": constant(10_000).to_json(), "after": constant(10_000).to_json()}
    found = report(plan("offline"), done, bare, InstanceGroup(2, 1, 1))
    assert (found["reference"], found["ours"], found["ratio"]) == (200_000, 50_000, 0.25)
    assert "was the bottleneck" in line(found, None)


def test_plan_with_idle_cores_is_compared_with_one_on_all_cores() -> None:
    bare = {"before": constant(100).to_json(), "after": constant(100).to_json()}
    done = completions(np.arange(100) // 2 * 200, queue=50, infer=100)
    served = plan("server", target_qps=1.0, percentile=0.99)
    found = report(served, done, bare, InstanceGroup(1, 1, 1, cores=2))
    assert found["reference"] == 200
    assert found["on_all_cores"] == {"instances": 2, "reference": 100}
    found = report(plan("offline"), done, bare, InstanceGroup(1, 2, 1, cores=8))
    assert found["on_all_cores"]["instances"] == 4
    assert found["on_all_cores"]["reference"] == pytest.approx(4 * found["reference"])
    for one in (InstanceGroup(2, 1, 1, cores=2), InstanceGroup(3, 1, 1, cores=4)):
        assert "on_all_cores" not in report(served, done, bare, one)
    assert "on_all_cores" not in report(plan("single-stream"), done, bare, SPEC._replace(cores=8))


@pytest.mark.parametrize(
    ("samples", "instances", "sizes", "bare_sizes"),
    [
        (180, 2, [64, 64, 52], [52, 64]),
        (384, 3, [64] * 6, [64]),
        (130, 2, [64, 64, 2], [2, 64]),
        (192, 2, [64] * 3, [64]),
        (10, 2, [10], [10]),
    ],
)
def test_work_in_whole_batches_is_not_a_loss_of_the_dispatcher(
    samples: int, instances: int, sizes: list[int], bare_sizes: list[int]
) -> None:
    """A free worker takes the next slice at once, as a dispatcher without overhead would."""
    free, rows = [0] * instances, []
    for size in sizes:
        worker = int(np.argmin(free))
        rows.append((free[worker], free[worker] + 500 + 1000 * size))
        free[worker] = rows[-1][1]
    begin, end = np.repeat(np.asarray(rows), sizes, axis=0).T
    done = completions(np.zeros(samples, np.int64))
    columns: dict[str, Array] = dict(done.columns)
    columns |= dict.fromkeys(("taken_ns", "gathered_ns"), begin)
    columns |= dict.fromkeys(("inferred_ns", "postprocessed_ns", "completed_ns"), end)
    columns["batch"] = np.repeat(np.arange(len(sizes)), sizes)
    columns["batch_size"] = np.repeat(sizes, sizes)
    stored = constant(*(500 + 1000 * n for n in bare_sizes), sizes=bare_sizes).to_json()
    bare = {"before": stored, "after": stored}
    ran = Completions(columns, samples, True)
    found = report(plan("offline"), ran, bare, InstanceGroup(instances, 1, 64))
    assert (found["ratio"], found["model_ratio"]) == (pytest.approx(1), pytest.approx(1))


def test_last_batch_of_offline_is_not_used_to_judge_the_machine() -> None:
    bare = {
        "before": constant(100, 10_000, sizes=[1, 64]).to_json(),
        "after": constant(150, 10_000, sizes=[1, 64]).to_json(),
    }
    done = completions(np.zeros(65, np.int64), infer=10_000)
    assert report(plan("offline"), done, bare, InstanceGroup(1, 1, 64))["drift"] == 0


def test_query_of_several_batches_is_compared_with_all_of_them() -> None:
    done = completions(np.repeat(np.arange(5) * 1000, 2), infer=100, postprocess=10)
    columns = dict(done.columns)
    second = np.tile([0, 110], 5)
    for name in columns.keys() - {"order", "scheduled_ns", "entry_ns"}:
        columns[name] = columns[name] + second
    found = report(plan("multi-stream", 2), Completions(columns, 10, True), BARE, SPEC)
    assert (found["reference"], found["ours"]) == (pytest.approx(200), 220)
    assert found["lost_ns"]["queue"] == pytest.approx(10)
    assert found["lost_ns"]["postprocess"] == 10


def test_a_machine_that_changed_decides_nothing() -> None:
    found = report(plan("single-stream"), completions(np.arange(9) * 1000, infer=100), BARE, SPEC)
    assert found["drift"] == pytest.approx(2 / 9)
    assert found["at_slower_loops"] == {
        "reference": pytest.approx(110),
        "ratio": pytest.approx(1 / 1.1),
    }
    assert line(found, None).endswith(
        "not decidable, because a batch took 22 % more time after the run than before"
    )


@pytest.mark.parametrize("before_after", [(90, 110), (110, 90)])
@pytest.mark.parametrize(
    ("scenario", "reference_number"),
    [("single-stream", 110), ("server", 110), ("offline", 1e9 / 110)],
)
def test_a_gap_that_drift_cannot_explain_is_decided(
    before_after: tuple[int, int], scenario: str, reference_number: float
) -> None:
    """Bug: 28.7 times the reference's time was "not decidable", because the bare loops differed by 14 %."""
    at = np.zeros(9, np.int64) if scenario == "offline" else np.arange(9) * 1000
    done = completions(at, infer=100, complete=9_000)
    bare = {
        name: constant(ns).to_json()
        for name, ns in zip(("before", "after"), before_after, strict=True)
    }
    more: dict[str, Any] = {"target_qps": 1.0, "percentile": 0.99} if scenario == "server" else {}
    found = report(plan(scenario, **more), done, bare, SPEC)
    assert found["at_slower_loops"]["reference"] == pytest.approx(reference_number)
    assert "the load generator was the bottleneck" in line(found, None)


def test_loops_that_agree_need_no_second_comparison() -> None:
    stored = constant(100).to_json()
    done = completions(np.arange(9) * 1000, infer=100)
    found = report(plan("single-stream"), done, {"before": stored, "after": stored}, SPEC)
    assert "at_slower_loops" not in found


def test_missing_reference_has_its_reason() -> None:
    found = report(plan("server"), completions([0]), {"reason": "the backend broke"}, SPEC)
    assert line(found, None) == "no reference: the backend broke"


def test_a_slow_second_in_the_middle_is_not_the_dispatchers() -> None:
    """With an ideal dispatcher and a model that is twice as slow in every fifth second, no time is lost."""
    arrivals = np.cumsum(np.random.default_rng(1).exponential(6.4e6, 4000)).astype(np.int64)
    service = constant(*(9_500_000 * n for n in range(1, 9)))
    bare = {"before": service.to_json(), "after": service.to_json()}
    journal = _ideal_journal(arrivals, instances=2, max_batch=8)
    server = plan("server", target_qps=1.0, percentile=0.99)

    def judged(columns: dict[str, Array], instances: int = 2) -> Any:
        done = Completions(columns, len(arrivals), True)
        return report(server, done, bare, InstanceGroup(instances, 1, 8))

    ideal = judged(journal)
    assert ideal["ratio"] > 1.5
    assert ideal["at_run_speed"]["ratio"] == pytest.approx(1.0)
    assert ideal["model_ratio"] == pytest.approx(1.2, abs=0.07)
    assert line(ideal, None).endswith(
        "not decidable: at the model's speed in the run, such a load generator would reach "
        f"{ideal['ours'] / 1e6:.0f} ms, and the run reaches 1 times this value"
    )
    alone = judged(journal, 1)["at_run_speed"]["ratio"]
    assert alone < 0.5, "one instance would have been far slower than these two"
    late = judged(journal | {"completed_ns": journal["completed_ns"] + np.int64(200_000_000)})
    assert late["at_run_speed"]["ratio"] > 1.2
    assert "was the bottleneck" in line(late, None)


def test_slower_model_is_reported_in_offline_too() -> None:
    """Bug: the line contained "1.04 x that", although the run reached 0.963 x the rate."""
    done = completions(np.zeros(50, np.int64), infer=13_000)
    done.columns["completed_ns"][-1] = 25 * 13_500
    bare = {"before": constant(10_000).to_json(), "after": constant(10_000).to_json()}
    found = report(plan("offline"), done, bare, InstanceGroup(2, 1, 1))
    assert (found["ratio"], found["model_ratio"]) == (pytest.approx(1 / 1.35), pytest.approx(1.3))
    assert found["at_run_speed"]["ratio"] == pytest.approx(0.963, abs=5e-4)
    assert (
        "such a load generator would reach 153,846/s, and the run reaches 0.963 times this value"
        in line(found, None)
    )


def test_a_stall_of_the_model_acquits_no_load_generator() -> None:
    """Each call takes 1 ms, and each query loses 0.6 ms; a single call of one second changes sums, but not medians."""
    done = completions(np.arange(101) * 10_000_000, infer=1_000_000, complete=600_000)
    for name in ("inferred_ns", "postprocessed_ns", "completed_ns"):
        done.columns[name][50] += 1_000_000_000
    stored = constant(1_000_000).to_json()
    bare = {"before": stored, "after": stored}
    found = report(plan("single-stream"), done, bare, SPEC)
    assert found["model_ratio"] > 10
    assert found["at_run_speed"]["ratio"] == pytest.approx(1.6)
    assert "was the bottleneck; 600 us more in complete" in line(found, None)


def _ideal_journal(arrivals: Array, instances: int, max_batch: int) -> dict[str, Array]:
    rule = BatchRule([9.5e6 * n for n in range(max_batch + 1)], instances)
    free, rows, first = [0] * instances, [], 0
    while first < len(arrivals):
        worker = int(np.argmin(free))
        start = max(free[worker], int(arrivals[first]))
        waiting = arrivals[first : np.searchsorted(arrivals, start, "right")]
        size = rule.size(max(1, len(waiting)), sum(at <= start for at in free))
        slow = 2 if start // 1_000_000_000 % 5 == 0 else 1
        free[worker] = start + size * slow * 9_500_000
        rows += [
            (at, start, free[worker], first, size) for at in arrivals[first : first + size].tolist()
        ]
        first += size
    names = ("scheduled_ns", "gathered_ns", "inferred_ns", "batch", "batch_size")
    columns: dict[str, Array] = dict(zip(names, np.asarray(rows, np.int64).T, strict=True))
    for name, same in (
        ("entry_ns", "scheduled_ns"),
        ("taken_ns", "gathered_ns"),
        ("postprocessed_ns", "inferred_ns"),
        ("completed_ns", "inferred_ns"),
    ):
        columns[name] = columns[same]
    return columns | {"order": np.arange(len(arrivals))}
