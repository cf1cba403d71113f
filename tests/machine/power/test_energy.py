"""The energy of a window is exact, or is missing with a reason."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.units import NS_PER_MS, NS_PER_S
from harness.machine.power.energy import Energy, NoReading, PowerLog, cut, unique, window_ns
from harness.results.pages import run_table
from harness.results.power import NOT_OFFICIAL, ON_ANOTHER_MACHINE, doubts, report
from harness.types import PowerSource
from tests.builders.result import findings, result
from tests.builders.support import evidence, golden_log

START_NS = 1_795_232_845_107_000_000
COUNTER = PowerSource("rapl:package-0", "package", "J")
POWER = PowerSource("hwmon:board", "board", "W")

steps_ms = st.lists(st.integers(10, 190), min_size=12, max_size=60)


def stamps(gaps_ms: list[int]) -> list[int]:
    ends = itertools.accumulate([0, *gaps_ms])
    return [START_NS + ms * NS_PER_MS for ms in ends]


def inside(at: list[int], low: float, high: float) -> tuple[int, int]:
    """Returns a window between two fractions of the readings' time."""
    length = at[-1] - at[0]
    return at[0] + int(low * length), at[0] + int(high * length)


@given(steps_ms, st.floats(0.1, 900.0), st.floats(0.0, 0.4), st.floats(0.6, 1.0))
def test_constant_power_gives_power_times_time_for_any_readings(
    gaps: list[int], watts: float, low: float, high: float
) -> None:
    at = stamps(gaps)
    begin, end = inside(at, low, high)
    seconds = (end - begin) / 1e9
    for source, readings in (
        (POWER, [(t, watts) for t in at]),
        (COUNTER, [(t, watts * (t - at[0]) / 1e9) for t in at]),
    ):
        found = cut(source, readings, begin, end)
        assert isinstance(found, Energy)
        assert found.joules == pytest.approx(watts * seconds, rel=1e-6)
        assert found.mean_watts == pytest.approx(watts, rel=1e-6)
        assert found.peak_watts == pytest.approx(watts, rel=1e-5)


@given(steps_ms, st.lists(st.floats(0.5, 500.0), min_size=61, max_size=61), st.floats(0.3, 0.7))
def test_the_energies_of_adjacent_windows_add_up(
    gaps: list[int], watts: list[float], middle: float
) -> None:
    at = stamps(gaps)
    begin, end = inside(at, 0.05, 0.95)
    between = begin + int(middle * (end - begin))
    total = list(itertools.accumulate(watts))
    for source, values in ((POWER, watts), (COUNTER, total)):
        readings = list(zip(at, values, strict=False))
        parts = [cut(source, readings, *w) for w in ((begin, between), (between, end))]
        whole = cut(source, readings, begin, end)
        assert isinstance(whole, Energy)
        assert all(isinstance(part, Energy) for part in parts)
        joules = sum(part.joules for part in parts if isinstance(part, Energy))
        assert whole.joules == pytest.approx(joules, rel=1e-6)
        assert whole.peak_watts >= whole.mean_watts * (1 - 1e-9)


@given(steps_ms, st.lists(st.floats(0.01, 20.0), min_size=61, max_size=61), st.integers(0, 60))
def test_a_counter_counts_on_after_it_wraps(gaps: list[int], used: list[float], start: int) -> None:
    at = stamps(gaps)
    wraps = 65.0
    total = [float(start + j) for j in itertools.accumulate(used)][: len(at)]
    wrapped = PowerSource("rapl:dram", "memory", "J", wraps_at_joules=wraps)
    begin, end = inside(at, 0.1, 0.9)
    straight = cut(COUNTER, list(zip(at, total, strict=True)), begin, end)
    again = cut(wrapped, [(t, v % wraps) for t, v in zip(at, total, strict=True)], begin, end)
    assert isinstance(straight, Energy)
    assert isinstance(again, Energy)
    assert again.joules == pytest.approx(straight.joules, rel=1e-6, abs=1e-9)


def test_a_counter_that_goes_back_without_a_wrap_gives_no_reading() -> None:
    at = stamps([100] * 20)
    found = cut(COUNTER, [(t, float(n % 7)) for n, t in enumerate(at)], *inside(at, 0.1, 0.9))
    assert found == NoReading("the counter went back, and the value at which it wraps is unknown")


@pytest.mark.parametrize("before", [20.0, 130_000.0, 250_000.0])
def test_a_reset_counter_has_not_wrapped(before: float) -> None:
    """A suspended machine resets its counter; with a wrap, the energy would equal the counter's full range."""
    at = stamps([50] * 40)
    wrapped = COUNTER._replace(wraps_at_joules=262_143.328850)
    readings = [(t, before + n if n < 20 else n - 20.0) for n, t in enumerate(at)]
    found = cut(wrapped, readings, *inside(at, 0.1, 0.9))
    assert found == NoReading("the counter was reset before it was full")


def test_the_peak_is_the_highest_mean_over_a_second() -> None:
    at = stamps([100] * 100)
    busy = range(41, 61)  # the power is 200 W for these two seconds, and 50 W before and after
    readings = [(t, 200.0 if n in busy else 50.0) for n, t in enumerate(at)]
    found = cut(POWER, readings, at[0], at[-1])
    assert isinstance(found, Energy)
    assert found.peak_watts == pytest.approx(200.0)
    assert found.mean_watts == pytest.approx(80.0)


@pytest.mark.parametrize(
    ("kept", "reason"),
    [
        ((), "the meter returned no value"),
        ((30, 100), "its readings began 1.00 s after the run began"),
        ((0, 75), "its readings ended 600 ms before the run ended"),
        ((0, 19, 23, 100), "no reading within 200 ms of the run's begin: the nearest is 210 ms away"),
        ((0, 79, 83, 100), "no reading within 200 ms of the run's end: the nearest is 210 ms away"),
        ((0, 40, 51, 100), "no reading for 1.20 s in the run; at most 1.00 s is allowed"),
    ],
)  # fmt: skip
def test_a_window_without_a_reading_has_a_reason(kept: tuple[int, ...], reason: str) -> None:
    """The window lasts from 2.0 to 8.0 s, with a reading every 0.1 s. kept: first and last reading that are kept."""
    pairs = list(zip(kept[::2], kept[1::2], strict=True))
    shift = 10 if "nearest" in reason else 0
    at = [START_NS + n * 100 * NS_PER_MS for n in range(101)]
    readings = [(t, 5.0) for n, t in enumerate(at) if any(a <= n < b for a, b in pairs)]
    begin = START_NS + 2 * NS_PER_S + shift * NS_PER_MS
    end = START_NS + 8 * NS_PER_S + shift * NS_PER_MS
    assert cut(POWER, readings, begin, end) == NoReading(reason)


@pytest.mark.parametrize("source", [COUNTER, POWER])
def test_constant_counter_gives_no_reading_instead_of_zero(source: PowerSource) -> None:
    at = stamps([100] * 20)
    value = 7.0 if source.unit == "J" else 0.0
    found = cut(source, [(t, value) for t in at], *inside(at, 0.1, 0.9))
    assert found == NoReading(
        "the counter did not change during the whole run: it does not work here"
    )


def test_a_clock_that_went_back_gives_no_reading() -> None:
    at = stamps([100] * 20)
    at[10] = at[8]
    found = cut(POWER, [(t, 5.0) for t in at], *inside(at, 0.1, 0.9))
    assert found == NoReading("the wall clock went back between readings")


def test_the_window_is_read_from_loadgens_log() -> None:
    """The window encloses the journal's time stamps of the same golden run, which are wall-clock times, too."""
    log = golden_log("server")
    found = window_ns(log.values)
    assert found is not None
    path = Path(__file__).parents[2] / "golden/server/performance/completions.npz"
    with np.load(path) as columns:
        assert found[0] - NS_PER_MS <= columns["entry_ns"].min()
        assert columns["completed_ns"].max() <= found[1] + NS_PER_MS
    assert found[1] - found[0] == 346 * NS_PER_MS


@pytest.mark.parametrize("text", ["", "11-21-2026", "11-21-2026 03:47:25.453", 7, None])
def test_log_without_valid_times_gives_no_window(text: object) -> None:
    end = "11-21-2026 03:47:25.453"
    assert window_ns({"power_begin": text, "power_end": end}) is None
    assert window_ns({"power_end": end}) is None


def test_readings_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    at = stamps([100] * 12)
    log = PowerLog(
        sources=(COUNTER._replace(wraps_at_joules=262143.328850), POWER),
        series={COUNTER.name: [(t, t / 3e9) for t in at], POWER.name: [(t, 0.1) for t in at[::2]]},
        idle_ns=(at[1], at[3]),
        faults={POWER.name: "OSError: gone"},
    )
    log.write(tmp_path / "power.csv")
    again = PowerLog.from_json(log.to_json())
    again.read(tmp_path / "power.csv")
    assert again == log


def test_a_report_has_energy_a_query_and_a_sample_and_the_missing_sources() -> None:
    at = stamps([50] * 40)
    log = PowerLog(
        sources=(COUNTER, POWER),
        series={COUNTER.name: [(t, (t - at[0]) / 1e9 * 30) for t in at], POWER.name: []},
        idle_ns=(at[0], at[10]),
        faults={POWER.name: "OSError: no such device"},
    )
    logged = {"power_begin": "11-21-2026 03:47:25.607", "power_end": "11-21-2026 03:47:26.607"}
    found: Any = report(log, logged, queries=10, samples=80)
    assert found["power_reason"] is None
    (reading,) = found["power"]["readings"]
    assert reading["joules"] == pytest.approx(30.0)
    assert reading["joules_per_query"] == pytest.approx(3.0)
    assert reading["joules_per_sample"] == pytest.approx(0.375)
    assert reading["idle_watts"] == pytest.approx(30.0)
    assert (reading["provenance"], reading["domain"]) == ("measured", "package")
    (missing,) = found["power"]["missing"]
    assert missing == {
        "source": POWER.name,
        "reason": "the meter returned no value (OSError: no such device)",
    }
    assert found["power"]["note"].startswith("not an MLPerf Power result")


def test_machines_that_no_meter_reads_are_named() -> None:
    at = [START_NS + step * 100 * NS_PER_MS for step in range(13)]
    log = PowerLog(sources=(POWER,), series={POWER.name: [(t, 30.0) for t in at]})
    logged = {"power_begin": "11-21-2026 03:47:25.207", "power_end": "11-21-2026 03:47:26.007"}
    found: Any = report(log, logged, 10, 10, elsewhere=["http://10.0.0.2:8000"])
    assert len(found["power"]["readings"]) == 1
    assert found["power"]["missing"] == [
        {"source": "http://10.0.0.2:8000", "reason": ON_ANOTHER_MACHINE}
    ]
    assert report(None, logged, 10, 10, elsewhere=["http://10.0.0.2:8000"])["power"] is None


def test_a_report_without_a_window_or_a_reading_has_a_reason() -> None:
    none = PowerLog(sources=(POWER,), series={POWER.name: []})
    logged = {"power_begin": "11-21-2026 03:47:25.607", "power_end": "11-21-2026 03:47:26.607"}
    assert report(none, {}, 10, 10)["power"] is None
    assert (report(none, {}, 10, 10)["power_reason"] or "").startswith(
        "LoadGen's log does not contain the start"
    )
    assert report(none, logged, 10, 10) == {
        "power": None,
        "power_reason": "hwmon:board: the meter returned no value",
    }


@pytest.mark.parametrize(
    ("name", "watts", "doubted"),
    [
        ("command:sh", 900e3, True),
        ("rapl:package-0", 900e3, True),
        ("command:sh", 0.001, True),
        ("command:sh#2", 0.001, True),
        ("ptdaemon:wall", 0.001, True),
        ("hwmon:nic/power1", 0.001, False),  # this meter measures only a single part of the machine
        ("command:sh", 130e3, False),  # a rack may draw 130 kW
        ("command:sh", 0.4, False),  # 0.4 W is a plausible value for the smallest board
    ],
)
def test_a_mean_power_of_no_computer_is_doubted(name: str, watts: float, doubted: bool) -> None:
    source = PowerSource(name, "board", "W")
    at = [START_NS + step * 100 * NS_PER_MS for step in range(13)]
    log = PowerLog(sources=(source,), series={name: [(t, watts) for t in at]})
    logged = {"power_begin": "11-21-2026 03:47:25.207", "power_end": "11-21-2026 03:47:26.007"}
    found = [*doubts(report(log, logged, 10, 10))]
    assert [doubt.code for doubt in found] == ["power-implausible"] * doubted
    assert all(doubt.text.startswith(f"{name} read {watts:.3g} W on average") for doubt in found)


def test_sources_with_the_same_name_are_renamed() -> None:
    names = [s.name for s in unique([POWER, COUNTER, POWER, POWER])]
    assert names == ["hwmon:board", "rapl:package-0", "hwmon:board#2", "hwmon:board#3"]


def test_the_table_names_sources_provenance_and_missing_sources() -> None:
    power = {
        "readings": [
            {"source": "estimate:cpu", "provenance": "estimated", "mean_watts": 8.0}
            | {"peak_watts": 9.0, "idle_watts": None, "joules": 16.0, "joules_per_query": 0.008}
        ],
        "missing": [{"source": "rapl:psys", "reason": "the meter returned no value"}],
        "note": NOT_OFFICIAL,
    }
    expected = [
        "power       mean 8.00 W  peak 9.00 W  16.0 J, 8.00 mJ per query  (estimate:cpu, estimated)",
        "            rapl:psys: no reading: the meter returned no value",
        f"            {NOT_OFFICIAL}",
    ]
    run = findings("server", evidence("server"))

    def table_of(**changed: object) -> list[str]:
        return list(run_table.lines({**result(run), **changed}, Path("r"), details=True))

    shown = table_of(power=power, power_reason=None)
    assert [line for line in shown if line in expected] == expected
    assert not [line for line in table_of() if line.startswith("power")]
    assert "power       not measured: it is gone" in table_of(power_reason="it is gone")


@pytest.mark.parametrize("source", [COUNTER, POWER])
def test_more_power_than_any_machine_draws_gives_no_reading(source: PowerSource) -> None:
    """Bug: a reading of 1e30 J was reported and caused no doubt."""
    at = stamps([100] * 20)

    def energy(watts: float) -> object:
        values = [watts * n / 10 if source.unit == "J" else watts for n in range(len(at))]
        return cut(source, list(zip(at, values, strict=True)), *inside(at, 0.1, 0.9))

    assert isinstance(energy(9e5), Energy)
    assert isinstance(energy(2e6), NoReading)
    told = "it read 1e+30 W over a second: one source draws at most 1e+06 W"
    assert energy(1e30) == NoReading(told)
