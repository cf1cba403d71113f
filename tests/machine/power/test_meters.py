"""Meters read the kernel's files, NVML and programs; a refusal names the cause and the remedy."""

import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from types import ModuleType

import pytest

from harness.cli.main import main
from harness.errors import ConfigError, PluginUnavailable
from harness.machine import sampler as sampler_module
from harness.machine.power.energy import PowerLog
from harness.machine.power.meters import command, rapl
from harness.machine.power.meters import hwmon as hwmon_module
from harness.machine.power.meters.command import CommandMeter
from harness.machine.power.meters.estimate import EstimateMeter
from harness.machine.power.meters.hwmon import HwmonMeter
from harness.machine.power.meters.nvml import NvmlMeter
from harness.machine.power.meters.rapl import RaplMeter
from harness.machine.power.opening import availability
from harness.machine.sampler import PowerSampler
from tests.builders.power_trees import MAX_UJ, files, powercap
from tests.stand_ins.open_files import many_open_files

NOWHERE = "/nowhere/powercap"


def test_rapl_reads_every_zone_in_joules_and_describes_it(tmp_path: Path) -> None:
    root = powercap(tmp_path)
    (root / "intel-rapl:0:1/energy_uj").write_text("2500000\n")
    with RaplMeter(str(root)) as meter:
        sources = {s.name: s for s in meter.sources()}
        assert dict(zip(sources, meter.read(), strict=True)) == {
            "rapl:package-0": 1.0,
            "rapl:package-0/core": 1.0,
            "rapl:package-0/dram": 2.5,
            "rapl:psys": 1.0,
        }
    assert sources["rapl:package-0/dram"].domain == "memory of package-0"
    assert sources["rapl:psys"].domain.startswith("whole platform")
    assert {s.wraps_at_joules for s in sources.values()} == {MAX_UJ / 1e6}
    assert {(s.unit, s.provenance) for s in sources.values()} == {("J", "measured")}


def told_by(enter: Callable[[str], AbstractContextManager[object]], argument: str) -> str:
    """Returns the error of a meter that cannot be started."""
    with pytest.raises(ConfigError) as raised, enter(argument):
        pass
    return str(raised.value)


def test_rapl_without_permission_names_the_command_that_grants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = powercap(tmp_path)

    def denied(path: str) -> float:
        if path.endswith("energy_uj"):
            raise PermissionError(13, "Permission denied", path)
        return 1.0

    # The test imitates the error, because tests may run as root, which can read every file.
    monkeypatch.setattr(rapl, "micro", denied)
    assert told_by(RaplMeter, str(root)) == (
        f"meter 'rapl': only root may read {root}/intel-rapl:0/energy_uj; this allows it until the next boot: "
        f"sudo chmod a+r {root}/*/energy_uj"
    )


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (None, "has no energy counters: most"),
        ({"name": "package-0", "energy_uj": "x"}, r"has no energy counters that can be read \(.*: inv"),
    ],
)  # fmt: skip
def test_rapl_names_the_problem_of_its_folder(
    content: dict[str, str] | None, line: str, tmp_path: Path
) -> None:
    if content is not None:
        files(tmp_path / "intel-rapl:0", content)
    assert re.match(f"meter 'rapl': {tmp_path} {line}", told_by(RaplMeter, str(tmp_path)))


def test_rapl_leaves_out_a_zone_that_cannot_be_read(tmp_path: Path) -> None:
    root = powercap(tmp_path)
    files(root / "intel-rapl-mmio:0", {"name": "package-0", "energy_uj": "", "enabled": 1})
    with RaplMeter(str(root)) as meter:
        assert len(meter.sources()) == len(meter.read()) == 4


def hwmon(root: Path) -> Path:
    """Makes a board with two channels, one of them averaged, and a socket that counts energy."""
    files(root / "hwmon0", {"name": "coretemp", "temp1_input": 40_000})
    files(
        root / "hwmon1",
        {"name": "ina3221", "power1_label": "VDD_IN", "power1_input": 5_200_000}
        | {"power1_average": 5_000_000, "power1_cap": 9_000_000, "power2_average": 700_000},
    )
    files(root / "hwmon2", {"name": "amd_energy", "energy1_label": "Esocket0", "energy1_input": 7})
    return root


def test_hwmon_reads_power_in_watts_and_counters_in_joules(tmp_path: Path) -> None:
    with HwmonMeter(str(hwmon(tmp_path))) as meter:
        sources = meter.sources()
        found = {s.name: (v, s.unit) for s, v in zip(sources, meter.read(), strict=True)}
    assert found == {
        "hwmon:ina3221/VDD_IN": (5.2, "W"),
        "hwmon:ina3221/power2": (0.7, "W"),
        "hwmon:amd_energy/Esocket0": (7e-6, "J"),
    }


def test_hwmon_without_permission_names_the_command_that_grants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only root can read amd_energy's counters, because they leak secrets as RAPL's counters do."""
    path = files(tmp_path / "hwmon2", {"name": "amd_energy", "energy12_input": 7})

    def denied(path: str) -> float:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(hwmon_module, "micro", denied)
    assert told_by(HwmonMeter, str(tmp_path)) == (
        f"meter 'hwmon': only root may read {path}/energy12_input; this allows it until the next boot: "
        f"sudo chmod a+r {tmp_path}/hwmon*/energy*"
    )


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ({"name": "coretemp", "temp1_input": 4}, r"has no power or energy sensor: few boards"),
        ({"name": "acpi", "power1_average": "x"}, r"has no power or energy sensor that can be read \(.*power1_a"),
    ],
)  # fmt: skip
def test_hwmon_without_a_sensor_is_refused(
    content: dict[str, str], line: str, tmp_path: Path
) -> None:
    files(tmp_path / "hwmon0", content)
    assert re.match(f"meter 'hwmon': {tmp_path} {line}", told_by(HwmonMeter, str(tmp_path)))


class FakeNvml(ModuleType):
    """Stands in for nvidia-ml-py's functions, with two GPUs; the second GPU is too old to count energy.

    refusal: nvmlInit's error, or "" if it succeeds. joules: energy of the first GPU; None after the GPU is lost.
    """

    class NVMLError(Exception):
        pass

    def __init__(self, refusal: str = "", joules: float | None = 123.456) -> None:
        super().__init__("pynvml")
        self.refusal, self.open, self.joules = refusal, 0, joules

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's name, and so below
        if self.refusal:
            raise self.NVMLError(self.refusal)
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802
        return f"GPU-{handle}"

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:  # noqa: N802
        if handle == 1:
            raise self.NVMLError("Not Supported")
        if self.joules is None:
            raise self.NVMLError("GPU is lost")
        return int(self.joules * 1000)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:  # noqa: N802
        return 70_500


def test_nvml_reads_energy_or_power_if_no_counter_exists(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    with NvmlMeter("") as meter:
        found = [(s.name, s.unit, s.domain) for s in meter.sources()]
        assert meter.read() == [123.456, 70.5]
    assert found == [
        ("nvml:0", "J", "GPU 0, GPU-0: the board with its memory"),
        ("nvml:1", "W", "GPU 1, GPU-1: the board with its memory"),
    ]
    with NvmlMeter("1") as meter:
        assert meter.read() == [70.5]
    assert fake.open == 0


@pytest.mark.parametrize(
    ("argument", "refusal", "line"),
    [
        ("x", "", "--meter nvml=x: write GPU numbers, e.g. nvml=0,1"),
        ("1,2", "", "meter 'nvml': GPU 2 does not exist: this machine has 2 GPUs"),
        ("", "NVML Shared Library Not Found", "meter 'nvml': NVML Shared Library Not Found: it needs an NVIDIA GPU and its driver"),
        ("", "Insufficient Permissions", "meter 'nvml': Insufficient Permissions: this allows it until the next boot: sudo chmod a+rw /dev/nvidiactl /dev/nvidia[0-9]*"),
    ],
)  # fmt: skip
def test_nvml_names_the_cause_of_its_refusal(
    argument: str, refusal: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeNvml(refusal)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    assert told_by(NvmlMeter, argument) == line
    assert fake.open == 0


def test_nvml_reads_the_other_gpus_when_one_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    with NvmlMeter("") as meter:
        fake.joules = None
        lost, other = meter.read()
    assert (str(lost), other) == ("GPU is lost", 70.5)


def test_nvml_reads_power_if_the_counter_stays_at_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(joules=0))
    with NvmlMeter("0") as meter:
        assert [(s.unit, v) for s, v in zip(meter.sources(), meter.read(), strict=True)] == [
            ("W", 70.5)
        ]


def test_an_estimate_is_busy_time_times_watts_and_is_called_estimated() -> None:
    with EstimateMeter("") as meter, EstimateMeter(str(8.0 * (os.cpu_count() or 1))) as double:
        ((one,), (two,)) = meter.read(), double.read()
        (source,) = meter.sources()
    # The ratio is not exactly 2, because other programs ran between the two readings.
    assert two / one == pytest.approx(2.0, rel=1e-3)
    assert source.provenance == "estimated"
    assert source.domain.endswith("x 4 W per hardware thread; no power was measured")


@pytest.mark.parametrize("argument", ["x", "0", "-5", "nan"])
def test_estimate_refuses_an_argument_that_is_not_a_power(argument: str) -> None:
    with pytest.raises(ConfigError, match=rf"^--meter estimate={argument}: write the processor's"):
        EstimateMeter(argument)


def script(path: Path, text: str) -> str:
    path.write_text(text)
    return f"{sys.executable} {path}"


@pytest.mark.parametrize(
    ("printed", "unit", "value"),
    [("12.5 W", "W", 12.5), ("1.2e3 mW", "W", 1.2), ("3 kJ", "J", 3000.0), (" 7J", "J", 7.0)],
)
def test_a_command_that_ends_is_started_again(
    printed: str, unit: str, value: float, tmp_path: Path
) -> None:
    words = script(tmp_path / "once.py", f"print('a header', '224 Watts'); print({printed!r})")
    with CommandMeter(words) as meter:
        (source,) = meter.sources()
        assert (source.unit, source.provenance) == (unit, "measured")
        assert [meter.read() for _ in range(2)] == [[value], [value]]


def test_a_command_is_read_despite_a_thousand_open_files(tmp_path: Path) -> None:
    words = script(tmp_path / "once.py", "print('5 W')")
    with many_open_files(), CommandMeter(words) as meter:
        assert meter.read() == [5]


def test_a_command_that_keeps_running_is_read_as_it_prints(tmp_path: Path) -> None:
    words = script(
        tmp_path / "loop.py",
        "import time\nfor n in range(10**6):\n    print(n, 'J', flush=True); time.sleep(0.01)",
    )
    with CommandMeter(words) as meter:
        (first,), (second,) = meter.read(), meter.read()
        assert 0 < first < second


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("raise SystemExit(3)", "the program ended with status 3 and printed no line such as"),
        ("print('224 Watts')", "the program ended with status 0 and printed no line such as '12.3 W' or '456 J'; it printed '224 Watts'"),
    ],
)  # fmt: skip
def test_a_command_without_readings_is_refused(text: str, line: str, tmp_path: Path) -> None:
    words = script(tmp_path / "bad.py", text)
    assert told_by(CommandMeter, words).startswith(f"--meter command={sys.executable}: {line}")


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("'12,5 W\\n'", "; it printed '12,5 W'"),
        ("'12.5 w\\n'", "; it printed '12.5 w'"),
        ("'12.5\\n\\n'", "; it printed '12.5'"),
        ("'12.5 W\\r'", "; it printed '12.5 W"),
        ("''", ""),
    ],
)
def test_command_without_readings_in_time_is_refused_with_its_last_line(
    printed: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "FIRST_LIMIT_S", 1.5)
    text = f"import time\nwhile True:\n    print({printed}, end='', flush=True); time.sleep(0.05)"
    told = told_by(CommandMeter, script(tmp_path / "other.py", text))
    came = "no line such as '12.3 W' or '456 J' came within 1.5 s"
    assert told.startswith(f"--meter command={sys.executable}: {came}{shown}")


def test_a_reading_without_the_end_of_its_line_is_read(tmp_path: Path) -> None:
    words = script(tmp_path / "once.py", "print('5 W', end='')")
    with CommandMeter(words) as meter:
        assert [meter.read() for _ in range(2)] == [[5], [5]]


def test_a_command_and_its_children_end_with_a_supervisor_that_is_killed() -> None:
    """Bug: the program continued to run after its supervisor was killed with SIGKILL."""
    seconds = f"9{os.getpid()}"
    code = (
        "import sys, time; from harness.machine.power.meters.command import CommandMeter\n"
        "with CommandMeter(sys.argv[1]): print(1, flush=True); time.sleep(60)"
    )
    command = f"sh -c 'echo 5 W; sleep {seconds}; :'"
    with subprocess.Popen(
        [sys.executable, "-c", code, command], stdout=subprocess.PIPE
    ) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == b"1\n"
        assert any("sleep" in words for words in _running(seconds))
        supervisor.kill()
    deadline = time.monotonic() + 10
    while found := _running(seconds):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def _running(word: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(path.read_bytes().decode())
    return [words for words in found if word in words]


@pytest.mark.parametrize("argument", ["", "sh -c 'open", "/nosuch/program"])
def test_a_command_that_cannot_be_run_is_refused(argument: str) -> None:
    assert told_by(CommandMeter, argument).startswith("--meter command")


def test_the_sampler_reads_ten_times_a_second_and_survives_a_lost_meter(tmp_path: Path) -> None:
    root = powercap(tmp_path)
    with PowerSampler([("rapl", str(root))]) as sampler:
        sampler.idle_baseline(time.sleep)
        counts = [len(s) for s in sampler.log.series.values()]
        (root / "intel-rapl:0/energy_uj").unlink()
        while not sampler.log.faults:
            time.sleep(0.01)
        then = {name: len(s) for name, s in sampler.log.series.items()}
        time.sleep(0.3)
    assert sampler.log.idle_ns is not None
    assert min(counts) >= 10
    (fault,) = sampler.log.faults.items()
    assert fault[0] == "rapl:package-0"
    assert fault[1].startswith("FileNotFoundError")
    grown = {name for name, s in sampler.log.series.items() if len(s) > then[name]}
    assert grown == {"rapl:package-0/core", "rapl:package-0/dram", "rapl:psys"}


def test_all_broken_meters_are_reported_at_once(tmp_path: Path) -> None:
    specs = [("rapl", str(tmp_path)), ("command", "/nosuch/program")]
    with pytest.raises(ConfigError) as raised, PowerSampler(specs):
        pass
    assert [line.partition(":")[0] for line in str(raised.value).splitlines()] == [
        "meter 'rapl'",
        "--meter command=/nosuch/program",
    ]


@pytest.mark.parametrize(
    ("meters", "status", "expected"),
    [
        ((f"rapl={NOWHERE}", "nosuch", "other", "nosuch"), 2, [f"meter 'rapl': {NOWHERE}", "no meter named 'nosuch'", "no meter named 'other'"]),
        (("nvml", f"rapl={NOWHERE}", "rouge.py:X"), 2, ["meter 'nvml' needs the module 'pynvml'", f"meter 'rapl': {NOWHERE}", "meter 'rouge.py:X': the file rouge.py does not exist"]),
        (("nvml", f"rapl={NOWHERE}"), 3, ["meter 'nvml' needs the module 'pynvml'", f"meter 'rapl': {NOWHERE}"]),
    ],
)  # fmt: skip
def test_wrong_names_missing_extras_and_silent_meters_are_reported_at_once(
    meters: tuple[str, ...],
    status: int,
    expected: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Bug: a mistake of one kind hid mistakes of the next kind."""
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == "pynvml" else real(n))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    words = [word for meter in meters for word in ("--meter", meter)]
    assert main(["--scenario", "offline", *words]) == status
    lines = capsys.readouterr().err.splitlines()
    assert [line for line, start in zip(lines, expected, strict=True) if start not in line] == []


def test_list_shows_whether_each_meter_works_on_this_machine() -> None:
    reasons = dict(availability())
    assert reasons["command"] == ""
    assert reasons["ptdaemon"].startswith("not here: it needs a checkout of MLCommons' power-dev")
    assert "rapl" in reasons


PLUG_IN = """
import threading
from harness.types import PowerSource

class Odd:
    def __init__(self, argument):
        self.argument, self.reads = argument, 0
    def __enter__(self):
        if self.argument == "raises":
            raise RuntimeError("no device")
        return self
    def __exit__(self, *exc):
        if self.argument == "gone":
            raise RuntimeError("the device is gone")
    def sources(self):
        if self.argument == "unsure":
            raise RuntimeError("no list")
        if self.argument == "empty":
            return []
        return [PowerSource("odd:a", "a", "W"), PowerSource("odd:b", "b", "W")]
    def read(self):
        self.reads += 1
        if self.argument == "blocks" and self.reads > 2:
            threading.Event().wait()
        second = {"nan": float("nan"), "text": "1 W", "error": OSError("no such device")}
        return [1.0] if self.argument == "short" else [1.0, second.get(self.argument)]
"""


def sampled(tmp_path: Path, argument: str, sleep_s: float = 0.2) -> PowerLog:
    (tmp_path / "odd.py").write_text(PLUG_IN)
    with PowerSampler([(f"{tmp_path}/odd.py:Odd", argument)]) as sampler:
        time.sleep(sleep_s)
    return sampler.log


@pytest.mark.parametrize(
    ("argument", "counted", "fault"),
    [
        ("", (True, False), None),
        ("short", (False, False), "ValueError: zip() argument 2 is shorter"),
        ("nan", (True, False), "ValueError: it read nan W"),
        ("text", (True, False), "TypeError: must be real number, not str"),
        ("error", (True, False), "OSError: no such device"),
    ],
)
def test_odd_readings_of_a_users_meter_do_not_end_the_run(
    argument: str, counted: tuple[bool, bool], fault: str | None, tmp_path: Path
) -> None:
    log = sampled(tmp_path, argument)
    assert (bool(log.series["odd:a"]), bool(log.series["odd:b"])) == counted
    if fault is None:
        assert log.faults == {}
    else:
        assert log.faults["odd:b"].startswith(fault)


def test_a_meter_that_raises_on_entering_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(PluginUnavailable, match=r"odd\.py:Odd' raised RuntimeError: no device$"):
        sampled(tmp_path, "raises")


def test_a_meter_whose_sources_raise_or_are_empty_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PluginUnavailable, match=r"odd\.py:Odd' raised RuntimeError: no list$"):
        sampled(tmp_path, "unsure")
    with pytest.raises(ConfigError, match=r"odd\.py:Odd' has nothing to read here$"):
        sampled(tmp_path, "empty")


def test_an_error_on_leaving_a_meter_keeps_its_readings(tmp_path: Path) -> None:
    assert len(sampled(tmp_path, "gone").series["odd:a"]) >= 2


def test_a_blocking_meter_does_not_block_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler_module, "END_LIMIT_S", 0.1)
    log = sampled(tmp_path, "blocks", sleep_s=0.3)
    assert len(log.series["odd:a"]) == 2
