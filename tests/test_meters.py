"""Each meter against what it reads: fake trees in the kernel's format, scripted programs."""

import sys
import time
from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.meters.command import CommandMeter
from harness.meters.rapl import RaplMeter
from harness.sampler import PowerSampler, availability
from tests.power_trees import MAX_UJ, files, powercap


def test_rapl_reads_every_zone_in_joules_and_says_what_it_covers(tmp_path: Path) -> None:
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


def test_rapl_that_only_root_may_read_names_the_command_that_opens_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = powercap(tmp_path)
    read_text = Path.read_text

    def denied(path: Path) -> str:
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(path))
        return read_text(path)

    monkeypatch.setattr(Path, "read_text", denied)  # tests may run as root, who may read all
    with pytest.raises(ConfigError) as told, RaplMeter(str(root)):
        pass
    assert str(told.value) == (
        f"meter 'rapl': {root}/intel-rapl:0/energy_uj is for root only; until the next boot, this "
        f"opens it: sudo chmod a+r {root}/*/energy_uj"
    )


@pytest.mark.parametrize(
    ("content", "line"),
    [(None, "has no energy counters"), ({"name": "package-0", "energy_uj": "x"}, "cannot be read")],
)
def test_rapl_says_what_is_wrong_with_its_folder(
    content: dict[str, str] | None, line: str, tmp_path: Path
) -> None:
    if content is not None:
        files(tmp_path / "intel-rapl:0", content)
    with (
        pytest.raises(ConfigError, match=rf"^meter 'rapl': {tmp_path} {line}"),
        RaplMeter(str(tmp_path)),
    ):
        pass


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


def test_a_command_that_goes_on_is_read_as_it_prints(tmp_path: Path) -> None:
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
        ("print('224 Watts')", "the program ended with status 0 and printed no line such as"),
    ],
)
def test_a_command_without_readings_is_refused(text: str, line: str, tmp_path: Path) -> None:
    words = script(tmp_path / "bad.py", text)
    with pytest.raises(ConfigError) as told, CommandMeter(words):
        pass
    assert str(told.value).startswith(f"--meter command={words}: {line}")


@pytest.mark.parametrize("argument", ["", "sh -c 'open", "/nosuch/program"])
def test_a_command_that_cannot_be_run_is_refused(argument: str) -> None:
    with pytest.raises(ConfigError, match=r"^--meter command"), CommandMeter(argument):
        pass


def test_the_sampler_reads_ten_times_a_second_and_survives_a_meter_that_goes_away(
    tmp_path: Path,
) -> None:
    root = powercap(tmp_path)
    with PowerSampler([("rapl", str(root))]) as sampler:
        sampler.idle_baseline(time.sleep)
        counts = [len(s) for s in sampler.log.series.values()]
        (root / "intel-rapl:0/energy_uj").unlink()
        while not sampler.log.faults:
            time.sleep(0.01)
    assert sampler.log.idle_ns is not None
    assert min(counts) >= 10
    assert sampler.log.faults["rapl:psys"].startswith("FileNotFoundError")


def test_every_meter_that_does_not_work_is_told_at_once(tmp_path: Path) -> None:
    specs = [("rapl", str(tmp_path)), ("command", "/nosuch/program")]
    with pytest.raises(ConfigError) as told, PowerSampler(specs):
        pass
    assert [line.partition(":")[0] for line in str(told.value).splitlines()] == [
        "meter 'rapl'",
        "--meter command=/nosuch/program",
    ]


def test_list_says_of_each_meter_whether_it_works_here() -> None:
    told = dict(availability())
    assert told["command"] == ""
    assert "rapl" in told
