"""Makes the Prometheus series of the machine and of its meters. The classes of this module are sources for Exporter.

A series is absent if the machine lacks the sensor, or while a meter has no readings.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import mean
from typing import NamedTuple

import numpy as np
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from harness.core.clock import wall_ns
from harness.core.units import NS_PER_S
from harness.machine.family import Row
from harness.machine.host_log import HOST_PERIOD_S, HostLog
from harness.machine.power.energy import GAP_NS, NoReading, PowerLog, counted
from harness.results.export.openmetrics import RUN_LABELS
from harness.types import PowerSource

_FRESH_NS = round(2.5 * HOST_PERIOD_S * 1e9)
_LAST = 64
"""Power is computed from at most this many of a meter's newest readings. These readings span more than one second."""

_Readings = Sequence[tuple[int, float]]


class _Columns(NamedTuple):
    """One metric family, made from columns of host.csv."""

    family: Callable[..., CounterMetricFamily | GaugeMetricFamily]
    name: str
    text: str
    columns: re.Pattern[str]
    """Matches the whole name of a column. The group captures the value of the label."""
    label: str = ""
    factor: float = 1.0


_HOST = (
    _Columns(
        CounterMetricFamily,
        "harness_host_cpu_seconds",
        "Time of all cores",
        re.compile(r"cpu_(\w+)_s"),
        "mode",
    ),
    _Columns(
        GaugeMetricFamily,
        "harness_host_cpu_frequency_hertz",
        "Clock of each core",
        re.compile(r"mhz_cpu(\d+)"),
        "core",
        1e6,
    ),
    _Columns(
        GaugeMetricFamily,
        "harness_host_temperature_celsius",
        "Thermal zones and sensors",
        re.compile(r"celsius_(.+)"),
        "sensor",
    ),
    _Columns(
        GaugeMetricFamily,
        "harness_host_memory_available_bytes",
        "Memory that can still be allocated, within the cgroup's limit",
        re.compile("memory_available_bytes"),
    ),
    _Columns(
        CounterMetricFamily,
        "harness_measured_cpu_seconds",
        "CPU time of the phase's measured process",
        re.compile("measured_cpu_s"),
    ),
    _Columns(
        GaugeMetricFamily,
        "harness_gpu_busy_ratio",
        "Share of the time during which a kernel ran on the GPU",
        re.compile(r"gpu(\d+)_busy_share"),
        "gpu",
    ),
    _Columns(
        GaugeMetricFamily,
        "harness_gpu_sm_clock_hertz",
        "Clock of the multiprocessors",
        re.compile(r"gpu(\d+)_sm_mhz"),
        "gpu",
        1e6,
    ),
    _Columns(
        GaugeMetricFamily,
        "harness_gpu_temperature_celsius",
        "Temperature of the GPU",
        re.compile(r"gpu(\d+)_celsius"),
        "gpu",
    ),
    _Columns(
        GaugeMetricFamily,
        "harness_gpu_memory_used_bytes",
        "GPU memory in use by all processes",
        re.compile(r"gpu(\d+)_memory_used_bytes"),
        "gpu",
    ),
    _Columns(
        GaugeMetricFamily,
        "harness_gpu_power_watts",
        "Power of the board",
        re.compile(r"gpu(\d+)_watts"),
        "gpu",
    ),
)


class HostSeries:
    """Serves the newest row of the host log. A scrape cannot block, because a scrape does not read the sensors."""

    def __init__(self, log: HostLog) -> None:
        self._log = log

    def __call__(self, labels: Mapping[str, str]) -> Iterator[Metric]:
        newest: list[Row] = self._log.rows[-1:]
        fresh = [row for row in newest if abs(wall_ns() - row["wall_ns"]) < _FRESH_NS]
        row = fresh[0] if fresh else {}
        run = [labels[name] for name in RUN_LABELS]
        for family, name, text, columns, label, factor in _HOST:
            series = family(name, text, labels=[*RUN_LABELS, label] if label else RUN_LABELS)
            for column, value in row.items():
                match = columns.fullmatch(column)
                if match is not None:
                    series.add_metric([*run, *match.groups()], value * factor)
            yield series


class PowerSeries:
    """Serves the meters' readings from a growing log. Each scrape adds the joules since the previous scrape."""

    def __init__(self, log: PowerLog) -> None:
        self._log = log
        self._counted: dict[str, _Counted] = {}

    def __call__(self, labels: Mapping[str, str]) -> Iterator[Metric]:
        run = [labels[name] for name in RUN_LABELS]
        names = [*RUN_LABELS, "source", "provenance"]
        watts = GaugeMetricFamily(
            "harness_power_watts", "Mean power over the last second", labels=names
        )
        joules = CounterMetricFamily(
            "harness_energy_joules", "Energy since the meters were started", labels=names
        )
        for source in self._log.sources:
            readings = self._log.series.get(source.name, [])
            values = [*run, source.name, source.provenance]
            power = watts_now(source, readings[-_LAST:], wall_ns())
            # A counter that has not changed does not count as a reading. The run's result follows the same rule.
            if power:
                watts.add_metric(values, power)
            energy = self._counted.setdefault(source.name, _Counted(source)).joules(readings)
            if energy:
                joules.add_metric(values, energy)
        yield watts
        yield joules


class _Counted:
    """Sums the joules of one source."""

    def __init__(self, source: PowerSource) -> None:
        self._source = source
        self._joules: float | None = 0.0
        self._seen = 0

    def joules(self, readings: _Readings) -> float | None:
        """Returns the joules so far; None before the first reading, or if a counter has decreased without wrapping."""
        start = max(0, self._seen - 1)
        # A slice is a copy, to which the meter's thread does not append.
        new = readings[start:]
        self._seen = start + len(new)
        for earlier, later in pairwise(new):
            step = _joules_between(self._source, earlier, later)
            if step is None or self._joules is None:
                self._joules = None
            else:
                self._joules += step
        return self._joules if self._seen else None


def watts_now(source: PowerSource, readings: _Readings, now_ns: int) -> float | None:
    """Returns the mean power over the last second; None if there are too few readings.

    A source of watts needs one reading; a counter of joules needs two readings.
    """
    recent = [r for r in readings if abs(now_ns - r[0]) <= NS_PER_S]
    if source.unit == "W":
        return mean(value for _, value in recent) if recent else None
    if len(recent) < 2 or recent[-1][0] <= recent[0][0]:
        return None
    steps = [_joules_between(source, a, b) for a, b in pairwise(recent)]
    known = [step for step in steps if step is not None]
    took_s = (recent[-1][0] - recent[0][0]) / 1e9
    return sum(known) / took_s if len(known) == len(steps) else None


def _joules_between(
    source: PowerSource, earlier: tuple[int, float], later: tuple[int, float]
) -> float | None:
    """Returns the joules between two readings; None if a counter decreased without wrapping.

    A long gap between two readings of power counts as zero joules.
    """
    took_ns = later[0] - earlier[0]
    if source.unit == "W":
        between = 0 < took_ns <= GAP_NS
        return (earlier[1] + later[1]) / 2 * took_ns / 1e9 if between else 0.0
    joules = counted(source, np.array([earlier[1], later[1]]))
    return None if isinstance(joules, NoReading) else float(joules[-1])
