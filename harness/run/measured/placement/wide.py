"""Opens the wide instance, with one thread on each core, if it answers a single query faster than one core does."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from harness.core import registry
from harness.core.config.run_config import RunConfig
from harness.core.queueing import simulate
from harness.core.registry import plugin
from harness.core.service_times import QUANTILES, ServiceTimes
from harness.core.units import show_ns
from harness.errors import HarnessError, one_line
from harness.loadgen.answers import Ragged, is_close
from harness.loadgen.plan import InstanceGroup, LoadPlan
from harness.loadgen.schedule import server_schedule_ns
from harness.machine import host
from harness.machine.threads import running_on
from harness.models.manifest.files import size_bytes
from harness.models.manifest.model import Model
from harness.models.manifest.schema import TOLERANCE
from harness.models.opened.loading import open_backends
from harness.models.opened.separate_instance import SeparateInstance
from harness.run.measured.answerer import Answerer

TAIL = 1.1
"""The wide instance is used if it lowers the mean latency and raises the latency percentile by at most this factor. The
percentile may rise, because queries wait while all cores work on one query.
"""

SIMULATED_QUERIES = 4_000

MEMORY_SHARE = 0.3
"""The wide instance may take at most this share of the available memory. An instance is assumed to need twice the
model's size.
"""

LOAD_LIMIT_S = 5.0
"""A wide instance is opened only if an ordinary instance loads within this time, because LoadGen's run cannot start
before the wide instance is open.
"""

WARM_UP, ROUNDS = 3, 10
"""Number of warm-up rounds, and total number of rounds. In each round, both instances process one sample."""

LIMIT_S = 1.0
"""The trial ends after this time if at least two rounds are finished."""

Curve = Sequence[tuple[int, int]]
"""Pairs (samples, ns), one per batch size, measured while every ordinary instance is busy."""


class Wide:
    """The wide instance, or the reason why the run has no wide instance."""

    answerer: Answerer | None = None
    """The wide instance. Its `cpus` contain only the processor of the calling thread."""
    reason: str | None = None
    wide_ns: int | None = None
    narrow_ns: int | None = None
    """Median time of one sample in the wide instance and in an ordinary instance on an otherwise idle machine."""

    def __init__(
        self, group: InstanceGroup, config: RunConfig, model: Model, path: Path | None
    ) -> None:
        self._group, self._config, self._model, self._path = group, config, model, path

    def open(
        self,
        usual: Answerer,
        loaded_s: float,
        sample: int,
        plan: LoadPlan,
        curve: Curve,
        stack: ExitStack,
    ) -> None:
        """Opens the wide instance, and keeps it open if it answers single queries faster.

        usual: an open instance, which took loaded_s to load. sample: dataset index of a loaded sample.
        curve: times per batch size; [] if batches have only one sample. stack: closes the wide instance if the instance
        stays open.
        """
        self.reason = self._unsuitable(usual, loaded_s)
        if self.reason is not None:
            return
        with ExitStack() as own:
            try:
                with plugin("an instance on all cores"):
                    wide = self._opened(usual, own)
                    self.wide_ns, self.narrow_ns = _times_ns(wide, usual, sample)
                    self.reason = self._loses(plan, curve) or _differs(wide, usual, sample)
            # A wide instance is optional, so an error does not stop the run.
            except HarnessError as e:
                self.reason = f"the instance on all cores does not work: {one_line(e)}"
            else:
                if self.reason is None:
                    self.answerer = wide
                    stack.push(own.pop_all())

    def about(self) -> Mapping[str, Any]:
        """Returns `elastic` for the `ended` message."""
        cpus = self._group.wide if self.answerer is not None else None
        times = {"wide_ns": self.wide_ns, "narrow_ns": self.narrow_ns}
        return {"cpus": cpus, **times, "reason": self.reason}

    def _unsuitable(self, usual: Answerer, loaded_s: float) -> str | None:
        name = self._config.backend
        if isinstance(usual.backend, SeparateInstance):
            return "the instances run in separate processes, and no process is left for an instance on all cores"
        if not getattr(registry.load("backend", name), "elastic", False):
            return f"backend {name!r} has no instances on all cores beside instances on one core"
        if loaded_s > LOAD_LIMIT_S:
            return f"one more instance takes too long to load ({loaded_s:.3g} s)"
        size = size_bytes(self._path) if self._path is not None else 0
        if 2 * size > MEMORY_SHARE * host.available_memory_bytes():
            return "one more instance would take too much memory"
        return None

    def _opened(self, usual: Answerer, stack: ExitStack) -> Answerer:
        cpus = self._group.wide
        group = self._group._replace(instances=1, threads=len(cpus), pinned=(), owns_cores=True)
        with running_on(cpus[:1]):
            (backend,) = open_backends(
                self._config, self._model, self._path, group, stack, cpus=cpus
            )
        return usual._replace(backend=backend, cpus=cpus[:1])

    def _loses(self, plan: LoadPlan, curve: Curve) -> str | None:
        """Simulates queries at the plan's rate. Returns the reason why the wide instance does not help; None if it
        helps.
        """
        if plan.target_qps is None:
            return "the request rate is not known before the run"
        assert self.wide_ns is not None
        assert self.narrow_ns is not None
        times = f"{show_ns(self.wide_ns)} on all cores and {show_ns(self.narrow_ns)} on one"
        # Both times are compared directly, because other load may have slowed `curve`, and the simulation would then
        # prefer the wide instance.
        if self.wide_ns >= self.narrow_ns:
            return f"a single query gains nothing, because a sample takes {times}"
        due_ns = server_schedule_ns(SIMULATED_QUERIES, plan.target_qps, 0)
        service = _constant(curve or [(1, self.narrow_ns)])
        both = (None, _constant([(1, self.wide_ns)]))
        (mean, tail), (wide_mean, wide_tail) = (
            _mean_and_tail(due_ns, service, self._group, wide, plan.percentile or 0.99)
            for wide in both
        )
        if wide_mean < mean and wide_tail <= TAIL * tail:
            return None
        return f"other queries would lose more time than a single query gains, because a sample takes {times}"


def _constant(points: Curve) -> ServiceTimes:
    sizes, times_ns = zip(*sorted(points), strict=True)
    ns = np.outer(times_ns, np.ones(QUANTILES))
    return ServiceTimes(tuple(sizes), ns, (1,) * len(sizes))


def _mean_and_tail(
    due_ns: Any,
    service: ServiceTimes,
    group: InstanceGroup,
    wide: ServiceTimes | None,
    percentile: float,
) -> tuple[float, float]:
    """Returns the mean and the percentile of the latency in ns."""
    found = simulate(due_ns, service, group.instances, group.max_batch, wide=wide)
    latency_ns = found.queue_ns + found.infer_ns
    return float(latency_ns.mean()), float(np.quantile(latency_ns, percentile))


def _times_ns(wide: Answerer, usual: Answerer, sample: int) -> tuple[int, int]:
    """Returns the sample's median time in each instance, measured alternately."""
    times_ns: tuple[list[int], list[int]] = ([], [])
    deadline_s = time.monotonic() + LIMIT_S
    for rounds in range(ROUNDS):
        if rounds > 1 and time.monotonic() > deadline_s:
            break
        for each, mine in zip((wide, usual), times_ns, strict=True):
            with running_on(each.cpus):
                mine.append(each.time_ns([sample]))
    warm_up = min(WARM_UP, len(times_ns[0]) - 1)
    of_wide, of_usual = (int(median(mine[warm_up:])) for mine in times_ns)
    return of_wide, of_usual


def _differs(wide: Answerer, usual: Answerer, sample: int) -> str | None:
    """Returns an error text if the answers of both instances differ by more than rounding; None if they agree."""
    ours, theirs = wide.answer([sample]), usual.answer([sample])
    if isinstance(ours, Ragged) or isinstance(theirs, Ragged):
        return None
    if np.array_equal(ours, theirs) or is_close(ours, theirs, TOLERANCE):
        return None
    return "its answer to a sample differs from an ordinary instance's answer"
