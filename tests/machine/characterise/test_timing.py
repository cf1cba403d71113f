"""Each point is timed for long enough and often enough, without the time between its calls."""

import time
from pathlib import Path
from typing import Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.machine.characterise import buffers, energy, hygiene, process
from harness.machine.characterise.database import Database, Key
from harness.machine.characterise.energy import Counter
from harness.machine.characterise.measured import Measured, from_json
from harness.machine.characterise.timing import LEAST_CALLS, Plan, timed
from harness.machine.power.meters.base import HoldsNothing
from harness.machine.power.opening import Opened
from harness.types import PowerSource, Ready

QUICK = Plan(repeats=3, point_ns=6_000_000)


def test_energy_is_that_of_a_call_and_absent_without_a_meter() -> None:
    """Checks requirement TP5."""

    class Meter(HoldsNothing):
        """A meter whose counter grows by ten joules per reading and wraps at 100."""

        joules = 85.0

        def __enter__(self) -> Self:
            return self

        def sources(self) -> list[PowerSource]:
            package = PowerSource("rapl:package-0", "package", "J", wraps_at_joules=100.0)
            return [package, PowerSource("rapl:package-0/core", "cores", "J")]

        def read(self) -> list[float | Exception]:
            self.joules = (self.joules + 10.0) % 100.0
            return [self.joules, 0.0]

    meter = Meter()
    result = timed(
        Ready(lambda: time.sleep(0.002)), QUICK, lambda: Counter(Opened(meter, meter.sources()))
    )
    assert result["joules"] == pytest.approx(10.0 / result["calls"])
    assert timed(Ready(lambda: None), QUICK)["joules"] is None
    if not list(Path("/sys/class/powercap").glob("*rapl*:*")):
        assert energy.missing().startswith(
            "meter 'rapl': /sys/class/powercap has no energy counters"
        )


def measured(**more: object) -> Measured:
    (point,) = from_json({"p": {"benchmark": "b", "settings": {}, "facts": {}, **more}})
    return point


def test_a_point_lasts_its_least_time_in_all_its_repetitions() -> None:
    begin = time.perf_counter_ns()
    result = timed(Ready(lambda: None), QUICK)
    assert time.perf_counter_ns() - begin >= QUICK.point_ns
    assert len(result["repetitions_ns"]) == QUICK.repeats
    assert result["fastest_ns"] <= min(result["repetitions_ns"])


def test_point_ends_early_if_repetitions_agree_unless_thorough() -> None:
    plan = Plan(repeats=5)
    # Two repetitions are not enough to judge their spread.
    assert not plan.is_enough([100.0, 100.0])
    assert plan.is_enough([100.0, 100.5, 99.5])
    assert not plan.is_enough([100.0, 110.0, 99.5, 100.0])
    assert plan.is_enough([100.0, 110.0, 99.5, 100.0, 90.0])
    assert not plan._replace(thorough=True).is_enough([100.0] * 4)
    assert Plan(repeats=2).is_enough([1.0, 9.0])


def test_a_slow_call_is_made_often_enough_for_a_median() -> None:
    result = timed(Ready(lambda: time.sleep(0.004)), QUICK)
    assert result["calls"] == QUICK.repeats * LEAST_CALLS
    assert all(4_000_000 <= ns < 400_000_000 for ns in result["repetitions_ns"])


def test_work_between_calls_runs_before_each_call_and_is_not_timed() -> None:
    order: list[str] = []

    def between() -> None:
        time.sleep(0.001)
        order.append("between")

    ready = Ready(lambda: order.append("call"), between)
    result = timed(ready, QUICK)
    timed_part = order[order.index("between") :]
    assert timed_part[::2] == ["between"] * (len(timed_part) // 2)
    assert timed_part[1::2] == ["call"] * (len(timed_part) // 2)
    # The measured time does not include the sleep of 1,000,000 ns.
    assert min(result["repetitions_ns"]) < 500_000


def test_the_spread_is_that_of_the_repetitions() -> None:
    point = measured(repetitions_ns=[10.0, 20.0, 30.0], fastest_ns=5.0, work=100.0, unit="B")
    assert (point.median_ns, point.std_ns, point.variation) == (20.0, 10.0, 0.5)
    assert (point.per_s, point.peak_per_s) == (5e9, 2e10)


def test_unmeasured_value_is_absent_and_not_zero() -> None:
    point = measured(missing="needs the module 'x'", work=100.0)
    assert point.median_ns is point.std_ns is point.per_s is point.peak_per_s is None


@given(st.lists(st.floats(1.0, 1e9), min_size=2, max_size=9), st.floats(1.0, 1e12))
def test_the_rate_is_that_of_a_measured_time(times: list[float], work: float) -> None:
    point = measured(repetitions_ns=times, fastest_ns=min(times), work=work)
    assert point.per_s is not None
    assert point.peak_per_s is not None
    assert work / max(times) * 1e9 * (1 - 1e-9) <= point.per_s <= point.peak_per_s * (1 + 1e-9)


@pytest.mark.parametrize("size", [4096, 3 * 4096 + 5])
def test_buffers_begin_on_a_page(size: int) -> None:
    array = buffers.touched(size)
    assert array.ctypes.data % 4096 == 0
    assert array.shape == (size,)
    assert int(array.sum()) == size


def test_sizes_of_caches_are_read_as_the_kernel_writes_them() -> None:
    sizes = [buffers.parse_size(text) for text in ("32K", "2M", "512", "", "x")]
    assert sizes == [32768, 2 << 20, 512, None, None]


def test_threads_get_a_core_each_before_they_share_one() -> None:
    groups = ((0, 4), (1, 5), (2, 6), (3, 7))
    assert process.bound_to(groups, 2) == [3, 2]
    assert sorted(process.bound_to(groups, 4)) == [0, 1, 2, 3]
    assert len(set(process.bound_to(groups, 8))) == 8


def test_fact_that_the_kernel_does_not_report_is_unknown_with_a_reason(tmp_path: Path) -> None:
    """Checks requirement CS5: missing files are not an error."""
    facts = {fact.name: fact for fact in hygiene.facts(tmp_path, tmp_path / "enabled")}
    for name in ("governor", "turbo", "SMT", "NUMA nodes", "huge pages"):
        assert facts[name].value == hygiene.UNKNOWN
        assert str(tmp_path) in facts[name].why
        assert facts[name].warning.startswith("unknown")


def test_facts_that_the_kernel_reports_are_stated(tmp_path: Path) -> None:
    for path, text in {
        "cpu/cpu0/cpufreq/scaling_governor": "powersave",
        "cpu/cpu1/cpufreq/scaling_governor": "performance",
        "cpu/intel_pstate/no_turbo": "1",
        "cpu/smt/active": "1",
        "node/node0/cpulist": "0",
        "node/node1/cpulist": "1",
        "enabled": "always [madvise] never",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text + "\n")
    facts = {fact.name: fact for fact in hygiene.facts(tmp_path, tmp_path / "enabled")}
    found = [facts[n].value for n in ("governor", "turbo", "SMT", "NUMA nodes", "huge pages")]
    assert found == ["performance, powersave", "off", "on", "2", "madvise"]
    assert "set the governor" in facts["governor"].warning
    assert facts["turbo"].warning == ""


def test_times_of_another_machine_version_or_setting_are_not_read(tmp_path: Path) -> None:
    database = Database(tmp_path / "new/machine.sqlite")
    key = Key("m", "numpy 2", "repeats=5")
    database.add([(key, "p", {"fastest_ns": 1.0}), (key, "q", {"fastest_ns": 2.0})])
    database.add([(key, "p", {"fastest_ns": 3.0})])
    assert database.read({"p": key, "x": key}) == {"p": {"fastest_ns": 3.0}}
    for other in (key._replace(machine="n"), key._replace(versions="numpy 3")):
        assert database.read({"p": other}) == {}
    assert database.read({"p": key._replace(settings="repeats=6")}) == {}
    newest = database.newest("m", ["numpy 2"])
    assert sorted(one["fastest_ns"] for one in newest) == [2.0, 3.0]
    assert database.newest("m", ["numpy 3"]) == database.newest("n", ["numpy 2"]) == []
