"""What `tune` chooses from, and what bare loops say of it before LoadGen is asked. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from harness.core.config.parse import Slo
from harness.core.config.run_config import RunConfig
from harness.core.service_times import ServiceTimes
from harness.core.stats import percentile_ns
from harness.core.units import NS_PER_S, show_ns, show_rate
from harness.loadgen.plan import Instances
from harness.loadgen.scenario import Scenario
from harness.loadgen.schedule import server_schedule_ns
from harness.machine.cores import Cores
from harness.results.evidence.simulation import simulate
from harness.types import Array

LARGEST_BATCH = 1024
"""Samples; larger ones are tried only where --max-batch names one."""

ALIKE = 0.02
"""Predictions that differ by less are the same: then the smaller batch is taken."""

SIMULATED_QUERIES = 10_000
MOST_UTILISATION = 0.98
"""Of the bare loops' rate: so short a simulation hardly sees a queue grow that is offered more."""

LEAST_UTILISATION = 0.001
"""The least that is tried: there a query hardly ever meets another."""

RATE_STEPS = 10
"""Of the bisection between these two, in ratios: to 0.7 % of the rate."""


class Layout(NamedTuple):
    """options: of the backend, beside those that were configured."""

    instances: int
    threads: int
    options: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return " ".join(
            [f"{self.instances} x {self.threads}", *(f"{k}={v}" for k, v in self.options)]
        )


class Plan(NamedTuple):
    """max_batch: samples."""

    layout: Layout
    max_batch: int

    def __str__(self) -> str:
        return f"{self.layout}, batch {self.max_batch}"

    @property
    def effort(self) -> tuple[int, ...]:
        """Of two plans that are equally good, the one with less is simpler."""
        instances, threads, options = self.layout
        return len(options), instances * threads, instances, self.max_batch

    def applied(self, config: RunConfig) -> RunConfig:
        options = dict(config.backend_option) | dict(self.layout.options)
        return replace(
            config,
            instances=self.layout.instances,
            threads=self.layout.threads,
            max_batch=self.max_batch,
            backend_option=tuple(options.items()),
        )


class Aim(NamedTuple):
    """A number that plans are compared by. unit: ns, or something a second."""

    what: str
    unit: str
    more_is_better: bool

    def gain(self, a: float, b: float) -> float:
        """Above 1 where `a` is the better one."""
        return a / b if self.more_is_better else b / a

    def show(self, value: float) -> str:
        return show_ns(value) if self.unit == "ns" else f"{show_rate(value)} {self.unit}"


def layouts(
    config: RunConfig, scenario: Scenario, cores: Cores, default: Instances
) -> list[Layout]:
    """default first: what would run without tuning. Then what fills the cores, or half of them, by
    as many instances as divide them and by powers of two, and as many instances of one thread;
    on cores with SMT also as many threads as they have. --instances and --threads are kept.
    """
    found = {Layout(default.instances, default.threads): None}
    for budget in sorted({cores.planned, cores.threads}):
        powers = _powers(budget)
        counts = sorted({*powers, *(n for n in range(1, budget + 1) if budget % n == 0)})
        for instances in _given(config.instances, [1] if scenario.streams else counts):
            share = budget // instances
            several = powers if scenario.streams else [share, share // 2, 1]
            for threads in _given(config.threads, several):
                fits = instances * threads <= cores.threads or config.oversubscribe
                if threads >= 1 and fits:
                    found[Layout(instances, threads)] = None
    return list(found)


def _given(value: int | None, otherwise: Sequence[int]) -> Sequence[int]:
    return otherwise if value is None else [value]


def _powers(most: int) -> list[int]:
    """1, 2, 4, ... and `most` itself."""
    below = takewhile(lambda n: n < most, (1 << k for k in range(64)))
    return [*below, most]


def batch_sizes(config: RunConfig, scenario: Scenario) -> list[int]:
    """Ascending: those whose service times are measured, as far as larger ones are worth it."""
    if scenario.streams:
        samples = scenario.samples_per_query(config)
        return sorted({-(-samples // (1 << k)) for k in range(13)})
    return _powers(config.max_batch or LARGEST_BATCH)


def candidates(given: int | None, service: ServiceTimes, fixed: int | None) -> Sequence[int]:
    """What may be the largest batch: the sizes that were measured, or the one that the user has given.

    given: as a run would have it. fixed: by the model file, which caps it as it does in a run; where
    bare loops ended before it says nothing of what may be asked for.
    """
    return service.sizes if given is None else [min(given, fixed or given)]


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a dispatcher that costs nothing would reach with these service times.

    slo: of Server; rate_per_s: the offered rate, None where the highest is looked for.
    """

    scenario: Scenario
    samples_per_query: int
    slo: Slo | None
    rate_per_s: float | None

    @property
    def aim(self) -> Aim:
        if self.scenario.streams:
            return Aim("time a query", "ns", more_is_better=False)
        if not self._queued:
            return Aim("throughput", "samples/s", more_is_better=True)
        assert self.slo is not None
        if self.rate_per_s is None:
            return Aim(f"highest rate at {self.slo}", "queries/s", more_is_better=True)
        return Aim(f"p{self.slo.percentile * 100:.10g}", "ns", more_is_better=False)

    def of(self, service: ServiceTimes, instances: int, max_batch: int) -> float:
        if self.scenario.streams:
            return _query_ns(service, self.samples_per_query, max_batch)
        if not self._queued:
            return _bare_rate(service, instances, max_batch)
        assert self.slo is not None  # Server always has one
        if self.rate_per_s is not None:
            return _tail_ns(service, instances, max_batch, self.rate_per_s, self.slo)
        sizes = {max_batch, *(s for s in service.sizes if s < max_batch)}
        most_per_s = max(_bare_rate(service, instances, size) for size in sizes)
        return _highest_rate(service, instances, max_batch, most_per_s, self.slo)

    def alone_ns(self, service: ServiceTimes) -> int:
        """The SLO's percentile of a query that meets no other. Of Server."""
        assert self.slo is not None
        return percentile_ns(np.sort(service.of(1)), self.slo.percentile)

    def hopeless(self, service: ServiceTimes) -> str:
        """Why no rate at all can meet the SLO; '' where one may, or where none is looked for."""
        if self.slo is None or not self._queued or self.rate_per_s is not None:
            return ""
        alone_ns = self.alone_ns(service)
        if alone_ns <= self.slo.bound_ns:
            return ""
        return f"misses {self.slo} even where a query is alone: {show_ns(alone_ns)}"

    @property
    def _queued(self) -> bool:
        return self.scenario.scheduled


def best_batch(
    forecast: Forecast, service: ServiceTimes, instances: int, sizes: Sequence[int]
) -> tuple[dict[int, float], int]:
    """What each largest batch is predicted to reach, and the smallest one that is as good as any."""
    values = {size: forecast.of(service, instances, size) for size in sizes}
    aim = forecast.aim
    best = (max if aim.more_is_better else min)(values.values())
    return values, next(s for s, v in values.items() if aim.gain(v, best) >= 1 - ALIKE)


def _bare_rate(service: ServiceTimes, instances: int, size: int) -> float:
    """samples/s with every instance busy on batches of `size`."""
    return instances * size * NS_PER_S / float(service.of(size).mean())


def _query_ns(service: ServiceTimes, samples: int, max_batch: int) -> float:
    """The batches of one query, one after another."""
    starts = range(0, samples, max_batch)
    return sum(service.median_ns(min(max_batch, samples - start)) for start in starts)


def _unit_arrivals() -> Array:
    """(SIMULATED_QUERIES,) the same for all plans: times in seconds at one query a second."""
    return server_schedule_ns(SIMULATED_QUERIES, 1.0, 0) / NS_PER_S


def _tail_ns(
    service: ServiceTimes, instances: int, max_batch: int, rate_per_s: float, slo: Slo
) -> float:
    arrivals_ns = (_unit_arrivals() * (NS_PER_S / rate_per_s)).astype(np.int64)
    found = simulate(arrivals_ns, service, instances, max_batch)
    return float(percentile_ns(np.sort(found.queue_ns + found.infer_ns), slo.percentile))


def _highest_rate(
    service: ServiceTimes, instances: int, max_batch: int, most_per_s: float, slo: Slo
) -> float:
    """queries/s. Where no rate that was tried meets the bound, the least of them: it is above any that
    does, and still far below those of layouts that have one.
    """
    low, high = LEAST_UTILISATION * most_per_s, MOST_UTILISATION * most_per_s
    if _tail_ns(service, instances, max_batch, high, slo) <= slo.bound_ns:
        return high
    for _ in range(RATE_STEPS):
        middle = math.sqrt(low * high)
        passes = _tail_ns(service, instances, max_batch, middle, slo) <= slo.bound_ns
        low, high = (middle, high) if passes else (low, middle)
    return low
