"""Bare loops around a run have the right length and batches; a run without bare loops states the reason."""

import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.core.config.run_config import RunConfig
from harness.core.service_times import ServiceTimes
from harness.loadgen.answers import AnswerRow
from harness.loadgen.plan import InstanceGroup
from harness.results.answer.load_generator import line
from harness.results.evidence.reference import report
from harness.run.measured import preparation, service_times
from harness.run.measured.answerer import Answerer
from harness.run.measured.preparation import Preparation
from harness.types import Batch
from tests.builders.support import UNCHANGED, plan

MS = 1_000_000


class Model:
    """A combined dataset and backend that sleeps, and answers each sample with its index."""

    def __init__(self, sleep_s: float = 0.0) -> None:
        self.sleep_s = sleep_s
        self.sizes: list[int] = []

    def load(self, indices: Sequence[int]) -> None:
        """Does nothing, because this dataset holds no samples."""

    unload = load

    def batch(self, indices: Sequence[int]) -> Batch:
        return Batch(len(indices), {"samples": np.asarray(indices, np.int64)})

    def infer(self, batch: Batch) -> Any:
        self.sizes.append(batch.size)
        time.sleep(self.sleep_s)
        return batch.inputs["samples"]


def prepared(
    model: Model, dispatch: str, max_batch: int, query_samples: int = 1, **more: Any
) -> Preparation:
    """Returns a preparation after `run`, with a model whose slowest warm batch took 20 ms."""
    plugin: Any = model
    same = UNCHANGED
    preparation_ = Preparation(
        RunConfig(scenario="offline"),
        dispatch,
        [Answerer(plugin, plugin, same)] * 2,
        plugin,
        "fake",
        held=100,
        max_batch=max_batch,
        query_samples=query_samples,
        **more,
    )
    preparation_.slowest_ns = 20 * MS
    preparation_.row = AnswerRow((), np.dtype(np.int64))
    return preparation_


@pytest.mark.parametrize(
    ("dispatch", "scenario", "count", "expected_s", "seconds"),
    [
        ("sliced", "offline", 8 * 100, None, 1.0),  # two instances answer 100 batches
        ("inline", "multi-stream", 100, None, 4.0),  # one instance answers two batches per query
        ("inline", "multi-stream", 100, 7.0, 7.0),
        ("queued", "server", 100, 3.0, 3.0),
    ],
)
def test_length_of_a_run_of_known_count_equals_the_time_of_its_batches(
    dispatch: str, scenario: str, count: int, expected_s: float | None, seconds: float
) -> None:
    query = 16 if scenario == "multi-stream" else 1
    instances = prepared(Model(), dispatch, 8, query)
    load = plan(scenario, query_count=count, expected_s=expected_s)
    assert instances._expected_s(load) == pytest.approx(seconds)


def test_a_given_count_gives_a_reference_of_more_than_three_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a run of 100 batches of 20 ms each, 5 % of the time allows 50 ms for the bare loops at each end."""
    limits_s: list[float] = []

    def note(answerers: Any, batches: Any, limit_s: float, *more: float) -> ServiceTimes:
        limits_s.append(limit_s)
        return service_times.measure(answerers, batches, limit_s, *more)

    monkeypatch.setattr(preparation, "measure", note)
    instances = prepared(Model(0.001), "sliced", 8)
    load = plan("offline", query_count=8 * 100, expected_s=None)
    instances.finish(load)
    bare = instances.after_run(load)["bare"]
    assert limits_s == [pytest.approx(0.05)] * 2
    assert bare is not None
    assert all(min(bare[name]["counts"]) > 2 * 3 for name in ("before", "after"))


@pytest.mark.parametrize(
    ("changed", "failed", "reason"),
    [
        (
            {"concurrency": 4},
            0,
            "a run with a fixed number of queries in flight has no schedule to simulate",
        ),
        ({}, 3, "batches failed"),
    ],
)
def test_run_without_bare_loops_gives_the_reason(
    changed: dict[str, Any], failed: int, reason: str
) -> None:
    instances = prepared(Model(), "queued", 2)
    load = plan("server", expected_s=0.0, **changed)
    instances.finish(load)
    bare = instances.after_run(load, failed)["bare"]
    assert bare == {"reason": reason}
    done: Any = None
    assert line(report(load, done, bare, InstanceGroup(2, 1, 2)), None) == f"no reference: {reason}"


def test_accuracy_run_measures_no_reference() -> None:
    model = Model()
    instances = prepared(model, "queued", 2)
    load = plan("server", accuracy=True)
    instances.finish(load)
    assert instances.after_run(load) == {"bare": None, "probed": None}
    assert not model.sizes


@pytest.mark.parametrize(("count", "sizes"), [(180, [52, 64]), (128, [64]), (10, [10]), (64, [64])])
def test_bare_loops_answer_the_batches_that_offline_will_have(count: int, sizes: list[int]) -> None:
    instances = prepared(Model(), "sliced", 64)
    load = plan("offline", query_count=count, expected_s=0.0)
    instances.finish(load)
    bare = instances.after_run(load)["bare"]
    assert bare is not None
    assert (bare["before"]["sizes"], bare["after"]["sizes"]) == (sizes, sizes)


def test_the_supervisor_hears_of_each_batch_before_the_run() -> None:
    heard: list[int] = []
    model = Model()
    instances = prepared(model, "sliced", 8, report_alive=lambda: heard.append(len(model.sizes)))
    instances.finish(plan("offline", query_count=13, expected_s=0.0))
    # The first two batches have five samples, the size of the last batch, one on each instance.
    assert heard[:2] == [1, 2]
    assert heard[2:] == [len(model.sizes)]


class Notes(Model):
    """Records each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[int]] = []
        self.loads: list[int] = []

    def load(self, indices: Sequence[int]) -> None:
        self.loads.append(len(indices))

    def infer(self, batch: Batch) -> Any:
        self.batches.append(batch.inputs["samples"].tolist())
        return super().infer(batch)


@pytest.mark.parametrize(
    ("dispatch", "max_batch"), [("inline", 1), ("sliced", 8), ("sliced", 99), ("sliced", 100)]
)
def test_consecutive_batches_differ(dispatch: str, max_batch: int) -> None:
    """Bug: with a backend that caches its last answer, the calibration and therefore the run became endless."""
    model = Notes()
    instances = prepared(model, dispatch, max_batch)
    instances.answerers = instances.answerers[:1]
    instances._load()
    instances._calibrate(0.01)
    instances._warm_up()
    assert len(model.batches) > 5
    assert all(before != after for before, after in pairwise(model.batches))
    whole = [batch for batch in model.batches if len(batch) == max_batch < 100]
    assert all(batch == list(range(batch[0], batch[0] + max_batch)) for batch in whole)


@pytest.mark.parametrize(
    ("seconds", "loads"),
    [
        (0.0, [1, 64]),
        (0.05, [1, 10]),  # a load of ten samples takes half a second
        (0.4, [1]),
    ],
)
def test_more_samples_are_loaded_if_loading_is_quick(
    seconds: float, loads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Notes()
    instances = prepared(model, "inline", 1)
    clock = iter([0.0, seconds])
    monkeypatch.setattr(preparation, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    instances._load()
    assert model.loads == loads


@pytest.mark.parametrize("dispatch", ["inline", "sliced"])
def test_a_run_is_sized_by_loadgens_own_part_of_a_query(
    dispatch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: only the model was timed, although LoadGen takes longer than a model of a few microseconds."""
    monkeypatch.setattr(preparation, "cost_ns", lambda *_: 9e6)
    found = prepared(Model(0.001), dispatch, 8).run(calibrate_s=0.02)
    per_s = found["issued_per_s"]
    if dispatch == "sliced":
        assert 1 / per_s == pytest.approx(1 / found["rate_per_s"] + 9e-3)
    else:
        assert 1 / per_s > 9e-3 + 1e-3


COST = """
import numpy as np
from harness.loadgen.answers import AnswerRow
from harness.run.measured.loadgen_cost import cost_ns

for scenario, query in (("single-stream", 1), ("multi-stream", 8), ("offline", 1)):
    for _ in range(2):
        print(cost_ns(scenario, query, 4, AnswerRow((2,), np.dtype(np.int64))))
"""


MANY_COSTS = """
import numpy as np
from harness.loadgen.answers import AnswerRow
from harness.run.measured.loadgen_cost import cost_ns

for _ in range(500):
    cost_ns("offline", 1, 64, AnswerRow((), np.dtype(np.int64)))
"""


@pytest.mark.slow
def test_loadgen_survives_the_runs_before() -> None:
    """Bug: in about one of 200 runs, LoadGen's next run crashed because a calling thread had ended."""
    done = subprocess.run([sys.executable, "-c", MANY_COSTS], stderr=subprocess.PIPE, check=False)
    assert done.returncode == 0, done.stderr


def test_loadgens_cost_can_be_measured_before_a_run() -> None:
    """Runs in a separate process, because a crash of LoadGen would end the other tests."""
    done = subprocess.run(
        [sys.executable, "-c", COST], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    costs = [float(line) for line in done.stdout.split()]
    assert len(costs) == 6
    assert min(costs) > 0


def test_a_batch_that_may_shrink_is_chosen_by_the_warm_up() -> None:
    class LargeIsSlow(Model):
        def infer(self, batch: Batch) -> Any:
            self.sleep_s = 0.0005 * batch.size**2
            return super().infer(batch)

    found = prepared(LargeIsSlow(), "sliced", 8, may_shrink=True)
    message = found.run(0)
    assert (found.max_batch, message["max_batch"]) == (1, 1)
    assert [size for size, _ in message["batch_latency_ns"]] == [1, 2, 4, 8]


def test_an_explicit_batch_is_kept_and_not_reported_as_chosen() -> None:
    found = prepared(Model(), "sliced", 8)
    message = found.run(0)
    assert (found.max_batch, message["max_batch"], message["batch_latency_ns"]) == (8, None, [])
