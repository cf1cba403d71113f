"""Prepares the instances before LoadGen's run: warm-up, calibration and bare loops."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from math import ceil
from typing import Any

from harness.core.batch_rule import offline_batch
from harness.core.config.run_config import RunConfig
from harness.core.registry import plugin
from harness.core.service_times import ServiceTimes
from harness.core.units import NS_PER_S
from harness.errors import type_and_text
from harness.loadgen.answers import AnswerRow
from harness.loadgen.plan import LoadPlan
from harness.machine.threads import running_on
from harness.models.steps.postprocess import flat
from harness.remote import HasReader
from harness.run.measured.answerer import Answerer
from harness.run.measured.calibration import (
    IN_TIME,
    busy_at,
    calibrate_latency,
    calibrate_rate,
    measure_curve,
)
from harness.run.measured.client import prompt_probe
from harness.run.measured.dispatch.by_length import Lengths
from harness.run.measured.dispatch.choose import dispatcher_class
from harness.run.measured.dispatch.threads import QueuedDispatcher
from harness.run.measured.input_probe import probe
from harness.run.measured.loadgen_cost import cost_ns
from harness.run.measured.placement.fewer_threads import Choice, Reopen, choose
from harness.run.measured.service_times import LIMIT_S, SHARE, batches_of, measure, time_for
from harness.run.measured.warm_up import (
    EXAMINED,
    FLAT_LIMIT_S,
    Warmth,
    batch_sizes,
    probes,
    remainders,
    until_flat,
    warm_up,
)
from harness.types import Backend, Dataset, HasLengths, show_shape
from harness.wire.remote_backend import RemoteBackend

SAMPLES = 64
LOAD_LIMIT_S = 0.5
"""The samples of the largest batch are always loaded before the run. More samples are loaded only if they load within
this time: up to SAMPLES samples or two of the largest batches, whichever is more.
"""

PROBE_LIMIT_S = 20.0
"""The probe after the run gets at most this long, because the supervisor waits only two minutes for the end of a run.
"""

CheckSteps = Callable[[Backend, Dataset, list[int]], None]
"""Tries the manifest's postprocessing on the output for one sample. Raises a ConfigError that names the field."""

CheckNumbers = Callable[[Dataset, list[int]], None]
"""Compares the loaded samples with the model's tables. Raises a ConfigError that names the input."""


class Preparation:
    """Prepares one run. Call `run`, then `finish` when the plan is known, and `after_run` after LoadGen's run.

    Some samples stay loaded between `run` and `finish`.
    """

    row: AnswerRow
    """Shape and type of the run's answers; set by `run`."""
    slowest_ns: int
    """Time of the slowest warm batch; set by `run`."""

    def __init__(
        self,
        config: RunConfig,
        dispatch: str,
        answerers: Sequence[Answerer],
        dataset: Dataset,
        name: str,
        *,
        held: int,
        max_batch: int,
        query_samples: int,
        may_vary: bool = False,
        may_shrink: bool = False,
        threads: int = 1,
        reopen: Reopen | None = None,
        check_steps: CheckSteps = lambda _backend, _dataset, _first: None,
        check_numbers: CheckNumbers = lambda _dataset, _loaded: None,
        report_alive: Callable[[], None] = lambda: None,
        no_schedule: str = "",
        no_probe: str = "",
    ) -> None:
        """name: name of the dataset. held: number of samples that a run loads at once.

        query_samples: samples per query. may_vary: whether samples may differ in shape. may_shrink: whether `run`
        chooses Offline's batch size, up to max_batch. threads: number of threads per instance. reopen: if set, `run`
        chooses the number of threads of the only instance, up to `threads`. report_alive: `finish` calls this function
        after batches. no_schedule, no_probe: see `System`.
        """
        self._config = config
        self._dispatch = dispatch
        self.answerers = answerers
        self._dataset = dataset
        self._name = name
        self.max_batch = max_batch
        """Number of samples in the largest batch; `run` may lower it."""
        self._may_shrink = may_shrink
        self._threads = threads
        self._reopen = reopen
        self._query_samples = query_samples
        self._sizes = (
            probes(range(1, max_batch + 1))
            if may_shrink
            else batch_sizes(dispatch, max_batch, query_samples)
        )
        examined = EXAMINED if may_vary else 1
        self._least = min(held, max(self._sizes[-1], examined))
        self._most = min(held, max(2 * self._sizes[-1], SAMPLES, examined))
        self._loaded = list(range(self._least))
        self._turn = 0  # position of the loaded sample with which the next batch begins
        self._may_vary = may_vary
        self._check_steps = check_steps
        self._check_numbers = check_numbers
        self._report_alive = report_alive
        self._no_schedule = no_schedule
        self._no_probe = no_probe
        self.curve: list[tuple[int, int]] = []
        """Pairs (samples, ns) for warm batches; `run` sets them if the dispatcher plans with these times."""
        self.lengths: Lengths | None = None
        """Returns the lengths of samples; set by `finish` if the lengths differ and Offline may sort by length."""
        self.wide: Answerer | None = None
        """The wide instance, which answers a query when no other query waits; None if the run has only ordinary instances.

        Set it before `finish`.
        """
        self._choice: Choice | None = None
        self._probed: list[int] = []  # batch sizes whose service times are measured
        self._before: ServiceTimes | None = None
        self._wide_before: ServiceTimes | None = None

    @property
    def loaded(self) -> Sequence[int]:
        """Returns the dataset indices of the samples that are loaded between `run` and `finish`."""
        return self._loaded

    def run(self, calibrate_s: float) -> Mapping[str, Any]:
        """Warms up and calibrates. Returns the `calibrated` message.

        calibrate_s: time for the calibration; 0 if the plan needs no calibration.
        """
        sizes = self._sizes
        with plugin(f"dataset {self._name!r}, loading samples for the warm-up,"):
            self._load()
        with self._warming():
            warm = self._warm_up()
            self.row = warm.row or warm.first
            if self._may_shrink:
                self._choose_batch()
            if self._reopen is not None:
                warm = self._choose_threads(warm, self._reopen)
            calibration = self._calibrate(calibrate_s) if calibrate_s else {}
            if percent := self._curve_percent(warm.slowest_ns):
                self.curve = measure_curve(self.answerers, probes(sizes), self._batch, percent)
        self.slowest_ns = warm.slowest_ns
        if warm.row is None and self._may_vary:
            self.row = AnswerRow((None,), warm.first.dtype)
            self.answerers = [
                each._replace(postprocess=flat(each.postprocess)) for each in self.answerers
            ]
        return {
            "slowest_batch_ns": warm.slowest_ns,
            "answer_bytes": warm.answer_bytes,
            "batch_latency_ns": self.curve,
            "max_batch": self.max_batch if self._may_shrink else None,
            "threads": self._choice.threads if self._choice else None,
            "thread_latency_ns": self._choice.times_ns if self._choice else (),
            "cold": {"first_batch_ns": warm.first_ns, "first_batch_samples": sizes[0]},
            "warm_up": {
                "seconds": warm.seconds,
                "sizes": len(sizes),
                "skipped": warm.skipped,
                "flat": warm.flat,
            },
            "placed": warm.placed if any(a.cpus for a in self.answerers) else (),
            **calibration,
        }

    def _choose_batch(self) -> None:
        self.curve = measure_curve(self.answerers, self._sizes, self._batch, 50)
        self.max_batch = offline_batch(self.curve)
        self._sizes = [self.max_batch]

    def _choose_threads(self, warm: Warmth, reopen: Reopen) -> Warmth:
        """Chooses the number of threads. Returns the result of the warm-up for the instance that the run will use."""
        (usual,) = self.answerers
        self._choice = choose(usual, self._threads, reopen, self._query)
        if self._choice.answerer is usual:
            return warm
        self.answerers = [self._choice.answerer]
        slowest_ns, flat = until_flat(self.answerers[0], self._sizes, self._batch, FLAT_LIMIT_S)
        return warm._replace(slowest_ns=slowest_ns, flat=flat)

    def _query(self) -> list[list[int]]:
        """Returns the batches of one query of a stream. Each call returns different samples."""
        return [self._batch(size) for size in self._query_sizes()]

    def _query_sizes(self) -> list[int]:
        starts = range(0, self._query_samples, self.max_batch)
        return [min(self.max_batch, self._query_samples - start) for start in starts]

    def _curve_percent(self, slowest_ns: int) -> float | None:
        """Returns the percentile of the batch times with which the dispatcher plans; None if the dispatcher needs no
        batch times.
        """
        if self._config.dispatch == "deadline":
            return IN_TIME
        cls = dispatcher_class(self._dispatch, self._config, len(self.answerers), slowest_ns)
        return 50 if cls is QueuedDispatcher and self._sizes[-1] > 1 else None

    def _load(self) -> None:
        """Loads the samples of the largest batch. If loading is quick, loads more samples, so that batches differ."""
        start_s = time.monotonic()
        self._dataset.load(self._loaded)
        each_s = (time.monotonic() - start_s) / self._least
        count = min(self._most, int(LOAD_LIMIT_S / max(each_s, 1e-9)))
        if count > self._least:
            self._dataset.unload(self._loaded)
            self._loaded = list(range(count))
            self._dataset.load(self._loaded)

    def _warm_up(self) -> Warmth:
        """Warms up. Always checks the manifest's steps. Checks the samples' numbers only if answering fails.

        Both checks raise more precise errors than a failed answer.
        """
        alone = self._loaded if self._may_vary else ()
        try:
            return warm_up(self.answerers, self._sizes, self._batch, alone)
        except Exception:
            self._check_numbers(self._dataset, self._loaded)
            raise
        finally:
            self._check_steps(self.answerers[0].backend, self._dataset, self._loaded[:1])

    def finish(self, plan: LoadPlan) -> None:
        """Warms up the size of Offline's last batch, which depends on the plan. Then unloads the samples."""
        self._probed = probes(self._sizes)
        if self._dispatch == "sliced":
            held = plan.performance_count
            sets = (held, plan.total_count % held)
            sizes = remainders(sets if plan.accuracy else (plan.query_count,), self.max_batch)
            largest = self._sizes if plan.query_count >= self.max_batch else []
            self._probed = [*sizes, *largest]
            with self._warming():
                for each in self.answerers:
                    with running_on(each.cpus):
                        for size in sizes:
                            each.answer(self._batch(size))
                            self._report_alive()
            with plugin(f"dataset {self._name!r}: lengths"):
                self.lengths = self._known_lengths()
        if not plan.accuracy and plan.concurrency is None and not self._no_schedule:
            # A closed loop has no schedule, and a server keeps a separate queue, so neither can be simulated.
            with self._warming():
                self._before, self._wide_before = self._service_times(plan)
            self._report_alive()
        with plugin(f"dataset {self._name!r}: unload"):
            self._dataset.unload(self._loaded)

    def after_run(
        self, plan: LoadPlan, failed_samples: int = 0, tolerance: float = 0.0
    ) -> Mapping[str, Any]:
        """Returns `bare`, `probed` and `prompts` for the `ended` message; all are None for an accuracy run.

        bare: service times before the run and after the run (measured by this call), or the reason why the times are
        missing. harness/results/evidence/reference.py reads them.
        probed, prompts: see harness/run/measured/input_probe.py and client/prompt_probe.py.
        tolerance: maximum difference between equal answers.
        """
        if plan.accuracy:
            return {"bare": None, "probed": None}
        if failed_samples:
            failed = {"reason": "batches failed"}
            return {"bare": failed, "probed": failed}
        bare: dict[str, Any] = {
            "reason": self._no_schedule
            or "a run with a fixed number of queries in flight has no schedule to simulate"
        }
        try:
            self._dataset.load(self._loaded)
            if self._before is not None:
                after, wide_after = self._service_times(plan)
                bare = {"before": self._before.to_json(), "after": after.to_json()}
                if self._wide_before is not None and wide_after is not None:
                    times = [self._wide_before, wide_after]
                    bare["wide"] = dict(zip(bare, [each.to_json() for each in times], strict=True))
            probed = self._probe(plan, tolerance)
            prompts = self._probe_prompts(plan)
            self._dataset.unload(self._loaded)
        except Exception as e:  # noqa: BLE001 - the run is over and must not be lost
            reason = {"reason": f"the batches after the run: {type_and_text(e)}"}
            return {"bare": reason, "probed": reason}
        return {"bare": bare, "probed": probed, "prompts": prompts}

    def _probe(self, plan: LoadPlan, tolerance: float) -> Mapping[str, Any]:
        if self._no_probe:
            return {"reason": self._no_probe}
        sizes = dict.fromkeys([self._sizes[0], 1])
        most_s = self._probe_s(plan)
        return probe(self.answerers[0], self.row, self._loaded, [*sizes], most_s, tolerance)

    def _probe_prompts(self, plan: LoadPlan) -> Mapping[str, Any] | None:
        """Probes the server of a language model; returns None without such a server."""
        backend = self.answerers[0].backend
        if not isinstance(backend, RemoteBackend) or not isinstance(backend.remote, HasReader):
            return None
        return prompt_probe.probe(backend, self._dataset, self._loaded, self._probe_s(plan))

    def _probe_s(self, plan: LoadPlan) -> float:
        return min(max(LIMIT_S, SHARE * self._expected_s(plan)), PROBE_LIMIT_S)

    def _service_times(self, plan: LoadPlan) -> tuple[ServiceTimes, ServiceTimes | None]:
        """Measures the batch times of all instances, and the time of one sample in the wide instance."""

        def timed(answerers: Sequence[Answerer], sizes: Sequence[int]) -> ServiceTimes:
            batches = batches_of(self._dataset, self._loaded, sizes)
            return measure(answerers, batches, time_for(self._expected_s(plan)), LIMIT_S)

        usual = timed(self.answerers, self._probed)
        return usual, timed([self.wide], [1]) if self.wide is not None else None

    def _expected_s(self, plan: LoadPlan) -> float:
        """Returns the expected duration of the run. If the plan has no forecast, computes the duration from warm batch
        times.
        """
        if plan.expected_s is not None:
            return plan.expected_s
        batches = plan.query_count * ceil(self._query_samples / self.max_batch)
        if self._dispatch == "sliced":
            batches = ceil(plan.query_count / self.max_batch / len(self.answerers))
        return batches * self.slowest_ns / NS_PER_S

    def _calibrate(self, seconds: float) -> Mapping[str, Any]:
        if self._dispatch != "inline":
            busy, size = busy_at(self._config.concurrency, self.answerers, self._sizes[-1])
            rate = calibrate_rate(busy, size, self._batch, seconds)
            if self._dispatch != "sliced" or self._config.mlperf:
                return rate
            return {**rate, "issued_per_s": 1 / (1 / rate["rate_per_s"] + self._loadgen_s())}
        found = calibrate_latency(self.answerers[0], self._query, seconds)
        mean_s = found.pop("mean_ns") / NS_PER_S
        # LoadGen sets the size of an official run, so such a run does not need the issue rate.
        if self._config.mlperf:
            return found
        return {**found, "issued_per_s": 1 / (mean_s + self._loadgen_s())}

    def _loadgen_s(self) -> float:
        samples, scenario = self._query_samples, self._config.scenario
        return cost_ns(scenario, samples, self.max_batch, self.row) / NS_PER_S

    def _known_lengths(self) -> Lengths | None:
        """Returns the dataset's function `lengths` after trying it on the loaded samples.

        `lengths` must not fail later, because LoadGen's callback must not raise an error.
        """
        dataset = self._dataset
        if not isinstance(dataset, HasLengths):
            return None
        lengths = dataset.lengths(self._loaded)
        if lengths is None:
            return None
        if lengths.shape != (len(self._loaded),) or lengths.dtype.kind not in "iuf":
            raise ValueError(
                f"{lengths.dtype} of shape {show_shape(lengths.shape)} for {len(self._loaded)} samples"
            )
        return dataset.lengths  # type: ignore[return-value] # the call above has shown its type

    def _batch(self, size: int) -> list[int]:
        """Returns the indices of `size` loaded samples. Each call returns different samples.

        If enough samples are loaded, the returned samples are adjacent, so that the batch is a view of the dataset's
        memory. Otherwise, some samples are repeated.
        """
        loaded, count = self._loaded, len(self._loaded)
        if size >= count:
            self._turn = turn = (self._turn + 1) % count
            return [loaded[(turn + i) % count] for i in range(size)]
        begin = min(self._turn, count - size) if self._turn < count else 0
        self._turn = begin + size
        return loaded[begin : begin + size]

    def _warming(self) -> AbstractContextManager[None]:
        return plugin(f"warm-up of backend {self._config.backend!r} on {self._name!r}")
