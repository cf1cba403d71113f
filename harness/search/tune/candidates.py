"""Lists the candidates that `tune` considers, and forecasts their performance from bare loops."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from harness.core import registry
from harness.core.config.parse import Slo
from harness.core.config.run_config import RunConfig
from harness.core.queueing import simulate
from harness.core.service_times import ServiceTimes
from harness.core.stats import percentile_ns
from harness.core.units import NS_PER_S, show_ns, show_rate
from harness.loadgen.plan import InstanceGroup
from harness.loadgen.scenario import Scenario
from harness.loadgen.schedule import server_schedule_ns
from harness.machine.cores import Cores

LARGEST_BATCH = 1024
"""Largest batch in samples. Larger batches are tried only with --max-batch."""

ALIKE = 0.02
"""If two forecasts differ by less than this share, the smaller batch is chosen."""

SIMULATED_QUERIES = 10_000
MOST_UTILISATION = 0.98
"""Rates above this share of the bare loops' rate are not tried, because the short simulation cannot detect a growing
queue.
"""

LEAST_UTILISATION = 0.001
"""Rates below this share of the bare loops' rate are not tried, because queries hardly ever overlap even at this share.
"""

RATE_STEPS = 10
"""Number of steps in the geometric bisection between the two shares. These steps determine the rate to within 0.7 %."""


class Layout(NamedTuple):
    """Numbers of instances and threads. options: backend options to set in addition to the configured ones."""

    instances: int
    threads: int
    options: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return " ".join(
            [f"{self.instances} x {self.threads}", *(f"{k}={v}" for k, v in self.options)]
        )


class Placement(NamedTuple):
    """A layout with a largest batch size. max_batch: in samples."""

    layout: Layout
    max_batch: int

    def __str__(self) -> str:
        return f"{self.layout}, batch {self.max_batch}"

    @property
    def effort(self) -> tuple[int, ...]:
        """Sort key of a placement. If two placements are equally good, the placement with the smaller key is simpler."""
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
    """The number that ranks the placements. unit: ns, or a rate such as samples/s."""

    what: str
    unit: str
    more_is_better: bool

    def gain(self, a: float, b: float) -> float:
        return a / b if self.more_is_better else b / a

    def show(self, value: float) -> str:
        return show_ns(value) if self.unit == "ns" else f"{show_rate(value)} {self.unit}"


def layouts(
    config: RunConfig, scenario: Scenario, cores: Cores, default: InstanceGroup
) -> list[Layout]:
    """Returns the default layout, then layouts that use all cores, half of the cores, or one thread per instance. The
    number of instances divides the number of cores or is a power of two. If the cores support SMT, the list continues
    with the same layouts for all hardware threads. --instances and --threads restrict the layouts.
    """
    layouts = {Layout(default.instances, default.threads): None}
    for budget in sorted({cores.planned, cores.threads}):
        powers = _powers(budget)
        counts = sorted({*powers, *(n for n in range(1, budget + 1) if budget % n == 0)})
        for instances in _configured(config.instances, [1] if scenario.streams else counts):
            share = budget // instances
            several = powers if scenario.streams else [share, share // 2, 1]
            if config.backend in registry.OF_ONE_THREAD:
                several = [1]
            for threads in _configured(config.threads, several):
                fits = instances * threads <= cores.threads or config.oversubscribe
                if threads >= 1 and fits:
                    layouts[Layout(instances, threads)] = None
    return list(layouts)


def _configured(value: int | None, otherwise: Sequence[int]) -> Sequence[int]:
    return otherwise if value is None else [value]


def _powers(most: int) -> list[int]:
    """Returns 1, 2, 4, ... below `most`, then `most`."""
    below = takewhile(lambda n: n < most, (1 << k for k in range(64)))
    return [*below, most]


def batch_sizes(config: RunConfig, scenario: Scenario) -> list[int]:
    """Returns the batch sizes to time, in ascending order. Larger sizes are timed only as long as they may be
    worthwhile.
    """
    if scenario.streams:
        samples = scenario.samples_per_query(config)
        return sorted({-(-samples // (1 << k)) for k in range(13)})
    return _powers(config.max_batch or LARGEST_BATCH)


def candidates(max_batch: int | None, service: ServiceTimes, fixed: int | None) -> Sequence[int]:
    """Returns the candidates for the largest batch size: the measured sizes, or, if --max-batch is set, only its value.

    max_batch: the value that a run would use. fixed: the batch size that the model file fixes.
    """
    return service.sizes if max_batch is None else [min(max_batch, fixed or max_batch)]


@dataclass(frozen=True, slots=True)
class Forecast:
    """Forecasts the performance of an ideal dispatcher with the given service times.

    slo: set in the Server scenario. rate_per_s: the offered rate; if None, the highest rate is searched for.
    """

    scenario: Scenario
    samples_per_query: int
    slo: Slo | None
    rate_per_s: float | None

    @property
    def aim(self) -> Aim:
        if self.scenario.streams:
            return Aim("time a query", "ns", more_is_better=False)
        if not self.scenario.scheduled:
            return Aim("throughput", "samples/s", more_is_better=True)
        assert self.slo is not None
        if self.rate_per_s is None:
            return Aim(f"highest rate at {self.slo}", "queries/s", more_is_better=True)
        return Aim(f"p{self.slo.percentile * 100:.10g}", "ns", more_is_better=False)

    def of(self, service: ServiceTimes, instances: int, max_batch: int) -> float:
        if self.scenario.streams:
            return _query_ns(service, self.samples_per_query, max_batch)
        if not self.scenario.scheduled:
            return _bare_rate(service, instances, max_batch)
        assert self.slo is not None  # because Server always sets an SLO
        if self.rate_per_s is not None:
            return _tail_ns(service, instances, max_batch, self.rate_per_s, self.slo)
        sizes = {max_batch, *(s for s in service.sizes if s < max_batch)}
        most_per_s = max(_bare_rate(service, instances, size) for size in sizes)
        return _highest_rate(service, instances, max_batch, most_per_s, self.slo)

    def alone_ns(self, service: ServiceTimes) -> int:
        """Returns the latency, at the SLO's percentile, of queries that never overlap (Server)."""
        assert self.slo is not None
        return percentile_ns(np.sort(service.of(1)), self.slo.percentile)

    def is_beyond(self, parts: Sequence[ServiceTimes]) -> bool:
        """Returns whether the fastest batch in these bare loops is slower than the bound, so that no rate can meet the
        SLO. Returns False if the highest rate is not being searched for.
        """
        if self.slo is None or not self.scenario.scheduled or self.rate_per_s is not None:
            return False
        return bool(parts) and min(float(part.ns.min()) for part in parts) > self.slo.bound_ns

    def hopeless(self, service: ServiceTimes) -> str:
        """Returns the reason why no rate can meet the SLO; '' if some rate can, or if the highest rate is not being
        searched for.
        """
        if self.slo is None or not self.scenario.scheduled or self.rate_per_s is not None:
            return ""
        alone_ns = self.alone_ns(service)
        if alone_ns <= self.slo.bound_ns:
            return ""
        return f"misses {self.slo} even for a single query: {show_ns(alone_ns)}"


def best_batch(
    forecast: Forecast, service: ServiceTimes, instances: int, sizes: Sequence[int]
) -> tuple[dict[int, float], int]:
    """Returns the forecast for each largest batch size, and the smallest among the best sizes."""
    values = {size: forecast.of(service, instances, size) for size in sizes}
    aim = forecast.aim
    best = (max if aim.more_is_better else min)(values.values())
    return values, next(s for s, v in values.items() if aim.gain(v, best) >= 1 - ALIKE)


def _bare_rate(service: ServiceTimes, instances: int, size: int) -> float:
    """Returns the rate in samples/s if every instance is busy with batches of `size`."""
    return instances * size * NS_PER_S / float(service.of(size).mean())


def _query_ns(service: ServiceTimes, samples: int, max_batch: int) -> float:
    """Returns the time for one query whose batches run one after another."""
    starts = range(0, samples, max_batch)
    return sum(service.median_ns(min(max_batch, samples - start)) for start in starts)


def _tail_ns(
    service: ServiceTimes, instances: int, max_batch: int, rate_per_s: float, slo: Slo
) -> float:
    # The schedule at 1 query/s is the same for all placements.
    at_1_qps = server_schedule_ns(SIMULATED_QUERIES, 1.0, 0)
    arrivals_ns = (at_1_qps / rate_per_s).astype(np.int64)
    times = simulate(arrivals_ns, service, instances, max_batch)
    return float(percentile_ns(np.sort(times.queue_ns + times.infer_ns), slo.percentile))


def _highest_rate(
    service: ServiceTimes, instances: int, max_batch: int, most_per_s: float, slo: Slo
) -> float:
    """Returns the highest rate in queries/s that meets the bound; if none does, returns the lowest rate that was tried."""
    low, high = LEAST_UTILISATION * most_per_s, MOST_UTILISATION * most_per_s
    if _tail_ns(service, instances, max_batch, high, slo) <= slo.bound_ns:
        return high
    for _ in range(RATE_STEPS):
        middle = math.sqrt(low * high)
        passes = _tail_ns(service, instances, max_batch, middle, slo) <= slo.bound_ns
        low, high = (middle, high) if passes else (low, middle)
    return low
