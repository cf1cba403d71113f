"""Metrics of the machine and its meters: real meter code reads fake kernel trees."""

import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.clock import wall_ns
from harness.core.units import NS_PER_MS, NS_PER_S
from harness.machine.host_log import HostReader
from harness.machine.power.energy import PowerLog
from harness.machine.sampler import PowerSampler
from harness.run.supervisor.metrics.exporter import Exporter
from harness.run.supervisor.metrics.machine_series import HostSeries, PowerSeries, watts_now
from harness.types import PowerSource
from tests.builders.power_trees import counting, machine, powercap
from tests.run.supervisor.test_endpoint import LABELS, Samples, parsed
from tests.stand_ins.nvml import H100, FakeNvml

BOARD = PowerSource("hwmon:board", "board", "W")
COUNTER = PowerSource("rapl:package-0", "package", "J", wraps_at_joules=100.0)


def samples(source: HostSeries | PowerSeries) -> Samples:
    exporter = Exporter()
    exporter.describe_run(LABELS, {})
    exporter.sources.append(source)
    page = parsed(exporter.page().decode())
    return {key: value for key, value in page.items() if not key[0].startswith("harness_run_")}


def of(page: Samples, name: str) -> dict[tuple[str, ...], float]:
    """Returns the samples with one name, by the values of their labels."""
    return {
        tuple(v for _, v in sorted(labels)): value
        for (known, labels), value in page.items()
        if known == name
    }


def test_readings_of_the_machine_are_served(tmp_path: Path) -> None:
    reader = HostReader(machine(tmp_path))
    reader.pids = [7]
    reader.look()
    page = samples(HostSeries(reader.log))
    assert of(page, "harness_host_cpu_frequency_hertz") == {("0",): 2.4e9, ("1",): 3.1e9}
    assert of(page, "harness_host_temperature_celsius") == {
        ("thermal_zone0_x86_pkg_temp",): 61.0,
        ("hwmon3_k10temp_Tctl_A",): 58.5,
    }
    modes = {mode for (mode,) in of(page, "harness_host_cpu_seconds_total")}
    assert modes == {"user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"}
    assert of(page, "harness_host_memory_available_bytes")[()] > 10**6
    assert of(page, "harness_measured_cpu_seconds_total")[()] > 0


def test_readings_of_the_gpus_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(H100, H100))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    reader = HostReader(device="cuda:0,1")
    reader.look()
    page = samples(HostSeries(reader.log))
    for name, value in {
        "harness_gpu_busy_ratio": 0.97,
        "harness_gpu_sm_clock_hertz": 1.98e9,
        "harness_gpu_temperature_celsius": 38.0,
        "harness_gpu_memory_used_bytes": 503316480.0,
        "harness_gpu_power_watts": 123.742,
    }.items():
        assert of(page, name) == {("0",): value, ("1",): value}


def test_missing_sensor_is_absent_and_not_zero(tmp_path: Path) -> None:
    reader = HostReader(tmp_path)
    reader.look()
    page = samples(HostSeries(reader.log))
    assert of(page, "harness_host_cpu_frequency_hertz") == {}
    assert of(page, "harness_host_temperature_celsius") == {}
    assert of(page, "harness_measured_cpu_seconds_total") == {}
    assert of(page, "harness_host_cpu_seconds_total")


def test_machine_that_is_no_longer_read_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = HostReader()
    series = HostSeries(reader.log)
    assert samples(series) == {}
    reader.look()
    assert samples(series)
    at_ns = wall_ns() + 3 * NS_PER_S
    monkeypatch.setattr("harness.run.supervisor.metrics.machine_series.wall_ns", lambda: at_ns)
    assert samples(series) == {}
    reader.look()
    reader.log.rows[-1] = {**reader.log.rows[-1], "wall_ns": at_ns - NS_PER_S}
    assert samples(series)


def test_meters_are_served_while_they_read_and_their_joules_stay(tmp_path: Path) -> None:
    root, chips = powercap(tmp_path / "powercap"), machine(tmp_path / "m") / "sys/class/hwmon"
    sampler = PowerSampler([("rapl", str(root)), ("hwmon", str(chips))])
    series = PowerSeries(sampler.log)
    assert samples(series) == {}
    with counting(root / "intel-rapl:0/energy_uj", watts=80.0), sampler:
        time.sleep(0.7)
        page = samples(series)
        time.sleep(0.5)
        later = samples(series)
    package, board = ("measured", "rapl:package-0"), ("measured", "hwmon:k10temp/power1")
    watts = of(page, "harness_power_watts")
    assert watts.keys() == {package, board}, "zones whose counters stand still are absent"
    # 80 W are expected if the counting thread gets enough CPU time.
    assert 10 < watts[package] < 100
    assert watts[board] == 35.0
    joules = [of(page, "harness_energy_joules_total") for page in (page, later)]
    assert joules[0].keys() == watts.keys()
    assert all(joules[1][key] > joules[0][key] > 0 for key in watts)
    time.sleep(1.1)
    ended = samples(series)
    assert of(ended, "harness_power_watts") == {}
    assert of(ended, "harness_energy_joules_total").keys() == watts.keys()


def energy(log: PowerLog, series: PowerSeries, source: PowerSource) -> float | None:
    return of(samples(series), "harness_energy_joules_total").get((source.provenance, source.name))


@given(st.lists(st.floats(0.1, 90.0), min_size=1, max_size=40), st.sets(st.integers(0, 40)))
def test_joules_do_not_depend_on_when_they_are_scraped(used: list[float], looks: set[int]) -> None:
    log = PowerLog((COUNTER,), {COUNTER.name: []})
    often, once = PowerSeries(log), PowerSeries(log)
    total = 30.0
    for n, joules in enumerate([0.0, *used]):
        total += joules
        log.series[COUNTER.name].append((n * NS_PER_S, total % 100.0))
        if n in looks:
            samples(often)
    counted = energy(log, often, COUNTER)
    assert counted == energy(log, once, COUNTER) == pytest.approx(sum(used))


def test_powers_are_not_carried_over_a_gap() -> None:
    at = [n * 100 * NS_PER_MS for n in (0, 5, 10, 40, 45)]
    log = PowerLog((BOARD,), {BOARD.name: [(t, 20.0) for t in at]})
    assert energy(log, PowerSeries(log), BOARD) == pytest.approx(20.0 * 1.5)


def test_a_counter_that_decreases_without_a_reason_is_no_longer_served() -> None:
    plain = COUNTER._replace(wraps_at_joules=None)
    log = PowerLog((plain,), {plain.name: [(0, 50.0), (NS_PER_S, 60.0)]})
    series = PowerSeries(log)
    assert energy(log, series, plain) == 10.0
    log.series[plain.name] += [(2 * NS_PER_S, 5.0), (3 * NS_PER_S, 9.0)]
    assert energy(log, series, plain) is None
    log.series[plain.name].append((4 * NS_PER_S, 12.0))
    assert energy(log, series, plain) is None


def test_a_counter_that_was_set_back_has_not_wrapped() -> None:
    """Like the result, the metrics do not count the 262 kJ up to the wrap-around as used."""
    counter = COUNTER._replace(wraps_at_joules=262_144.0)
    log = PowerLog((counter,), {counter.name: [(0, 50.0), (NS_PER_S, 60.0), (2 * NS_PER_S, 5.0)]})
    assert energy(log, PowerSeries(log), counter) is None
    now_ns = wall_ns()
    assert watts_now(counter, [(now_ns - NS_PER_MS, 60.0), (now_ns, 5.0)], now_ns) is None


@pytest.mark.parametrize(
    ("source", "readings_ms", "watts"),
    [
        (BOARD, [(-1500, 90.0), (-900, 10.0), (-100, 30.0)], 20.0),
        (BOARD, [(-1500, 90.0)], None),
        (BOARD, [], None),
        (COUNTER, [(-1500, 1.0), (-900, 95.0), (-400, 5.0)], 20.0),
        (COUNTER, [(-900, 5.0)], None),
        (COUNTER._replace(wraps_at_joules=None), [(-900, 95.0), (-400, 5.0)], None),
        # The clock was set back between the readings, so their mean is unknown.
        (BOARD, [(5000, 7.0)], None),
    ],
)
def test_watts_are_of_the_last_second(
    source: PowerSource, readings_ms: list[tuple[int, float]], watts: float | None
) -> None:
    now_ns = wall_ns()
    readings = [(now_ns + ms * NS_PER_MS, value) for ms, value in readings_ms]
    power = watts_now(source, readings, now_ns)
    assert power == (None if watts is None else pytest.approx(watts))
