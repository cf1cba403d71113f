"""Rows of host.csv come from the kernel's files, and lead to doubts."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.codes import CODES, Reason
from harness.core.units import NS_PER_S
from harness.machine import host
from harness.machine.cgroup import throttled_s
from harness.machine.family import ANONYMOUS, CONFINED, LOWERED, STOPPED, Row
from harness.machine.host_log import HostLog, HostReader, summary
from harness.machine.power.energy import window_ns
from harness.results.verdict.host_doubts import host_doubts
from tests.builders.power_trees import files, machine
from tests.builders.result import findings, result
from tests.builders.support import evidence, golden_log, present

START_NS = 1_795_232_845_107_000_000


def test_a_row_has_every_value_that_the_machine_reports(tmp_path: Path) -> None:
    reader = HostReader(machine(tmp_path))
    reader.look()
    reader.pids = [7]
    (tmp_path / "sys/class/thermal/thermal_zone0/temp").write_text("no number")
    reader.look()
    before, row = reader.log.rows
    expected = {
        "mhz_cpu0": 2400.0,
        "mhz_cpu1": 3100.0,
        "celsius_hwmon3_k10temp_Tctl_A": 58.5,
        "thermal_throttles": 10,
        "governor_performance": 1,
        "governor_powersave": 1,
        "smt_active": 1,
        "turbo": 0,
        "measured_minor_faults": 120,
        "measured_major_faults": 4,
        "measured_cpu_s": 300 / os.sysconf("SC_CLK_TCK"),
        "measured_rss_bytes": 11 * os.sysconf("SC_PAGESIZE"),
        "measured_voluntary_switches": 35,
        "measured_involuntary_switches": 3,
    }
    assert {name: row[name] for name in expected} == pytest.approx(expected)
    assert before["celsius_thermal_zone0_x86_pkg_temp"] == 61.0
    assert not any(name.startswith("measured") for name in before)
    assert "celsius_thermal_zone0_x86_pkg_temp" not in row
    assert row["cpu_user_s"] > 0
    assert row["memory_available_bytes"] > 0
    assert ("cgroup_throttled_s" in row) == (throttled_s() is not None)


def test_changed_settings_are_in_the_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.machine.cgroup.cpu_limit", iter([2.0, 1.5, 1.5]).__next__)
    reader = HostReader(machine(tmp_path))
    reader.look()
    cpus = tmp_path / "sys/devices/system/cpu"
    (cpus / "cpu0/cpufreq/scaling_governor").write_text("powersave\n")
    (cpus / "intel_pstate/no_turbo").write_text("0\n")
    (cpus / "smt/active").write_text("perhaps\n")
    reader.look()
    assert not any(name.startswith("smt") for name in reader.log.rows[-1])
    (cpus / "smt/active").write_text("1\n")
    reader.look()
    found = present(summary(reader.log, (0, 2**63)))
    assert found["settings"] == {
        "governor_powersave": 2,
        "smt_active": 1,
        "turbo": 1,
        "cgroup_cpu_cores": 1.5,
    }
    assert found["settings_changed"] == {
        "governor_performance": [0, 1],
        "governor_powersave": [1, 2],
        "turbo": [0, 1],
        "cgroup_cpu_cores": [1.5, 2.0],
    }
    doubts = {d.code: d.text for d in host_doubts(found, "server", 1000)}
    assert set(doubts) == {"governor", "settings-changed"}
    assert "'powersave' may slow down 2 of 2 cores" in doubts["governor"]
    assert "governor_performance between 0 and 1, governor_" in doubts["settings-changed"]
    assert [d.code for d in host_doubts(found, "offline", 1000)] == ["settings-changed"]


def test_this_process_is_read_from_the_real_proc() -> None:
    reader = HostReader()
    reader.pids = [os.getpid()]
    reader.look()
    (row,) = reader.log.rows
    assert row["measured_rss_bytes"] > 10**7
    assert row["measured_cpu_s"] > 0


STAT = "1 (python) S " + "0 " * 20 + "100"


def test_context_switches_of_ended_threads_still_count(tmp_path: Path) -> None:
    """Bug: the sum decreased, because the kernel forgets processes that have ended."""
    process = tmp_path / "proc/1"

    def says(thread: int, voluntary: int, involuntary: int) -> None:
        task = process / f"task/{thread}"
        task.mkdir(parents=True, exist_ok=True)
        (task / "status").write_text(
            f"Name:\tpython\nvoluntary_ctxt_switches:\t{voluntary}\n"
            f"nonvoluntary_ctxt_switches:\t{involuntary}\n"
        )

    reader = HostReader(tmp_path)
    reader.pids = [1]
    says(1, 10, 1)
    (process / "stat").write_text(STAT)
    says(2, 100, 5)
    reader.look()
    shutil.rmtree(process / "task/2")
    says(1, 12, 1)
    reader.look()
    says(2, 3, 0)  # a new thread reuses the id of thread 2
    reader.look()
    shutil.copytree(process, tmp_path / "proc/9")
    reader.pids = [9]  # the next row belongs to the accuracy run, which runs in a separate process
    reader.look()
    names = ("measured_voluntary_switches", "measured_involuntary_switches")
    counted = [tuple(row[n] for n in names) for row in reader.log.rows]
    assert counted == [(110, 6), (112, 6), (115, 6), (15, 1)]


def test_instances_in_processes_of_their_own_are_counted(tmp_path: Path) -> None:
    """Bug: the run used 2.59 s of CPU time, but only 0.05 s were recorded, because only the idle parent process was
    read.
    """

    def says(pid: int, ticks: int, pages: int, children: str = "") -> None:
        task = tmp_path / f"proc/{pid}/task/{pid}"
        task.mkdir(parents=True, exist_ok=True)
        (task / "children").write_text(children)
        (task / "status").write_text(
            "voluntary_ctxt_switches:\t2\nnonvoluntary_ctxt_switches:\t1\n"
        )
        fields = ["S", *"0" * 21]
        fields[11], fields[21] = str(ticks), str(pages)
        (tmp_path / f"proc/{pid}/stat").write_text(f"{pid} (a b) {' '.join(fields)}")

    reader = HostReader(tmp_path)
    reader.pids = [1]
    says(1, 5, 10, "2 3")
    says(2, 100, 20, "4")
    says(3, 200, 20)
    says(4, 1000, 1)
    reader.look()
    says(1, 6, 10, "3")
    shutil.rmtree(tmp_path / "proc/2")
    reader.look()
    ticks, pages = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGESIZE")
    names = ("measured_cpu_s", "measured_rss_bytes", "measured_voluntary_switches")
    assert [tuple(row[name] for name in names) for row in reader.log.rows] == [
        (1305 / ticks, 51 * pages, 8),
        (1306 / ticks, 30 * pages, 8),
    ]


def test_load_and_warm_up_of_instances_do_not_hide_others() -> None:
    """Bug: 2 s of warm-up in child processes were subtracted from the CPU time used by other programs."""
    burn = "import time; end = time.process_time() + 0.5\nwhile time.process_time() < end: pass"
    waits = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}]); "
    with subprocess.Popen(
        [sys.executable, "-c", f"{waits}print(1, flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as measured:
        present(measured.stdout).readline()
        load = host.SystemLoad(measured.pid)
        before = host._own_cpu_s()
        measured.communicate()
    after = host._own_cpu_s()
    # The CPU time of the child's children was already counted at the start.
    assert load._not_ours_s - before > 0.4
    assert after - load._not_ours_s < 0.3


def test_rows_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    log = HostLog([{"wall_ns": START_NS, "a": 0.1}, {"wall_ns": START_NS + 1, "b": 1 / 3}])
    log.write(tmp_path / "host.csv")
    assert HostLog.read(tmp_path / "host.csv") == log
    HostLog().write(tmp_path / "host.csv")
    assert HostLog.read(tmp_path / "host.csv") == HostLog()


def rows(count: int, columns: Mapping[str, tuple[float, float]]) -> HostLog:
    """Returns one row per second; each column changes linearly from the first to the second value."""
    return HostLog(
        [
            {"wall_ns": START_NS + n * NS_PER_S}
            | {name: a + (b - a) * n / (count - 1) for name, (a, b) in columns.items()}
            for n in range(count)
        ]
    )


def summarised(count: int, columns: Mapping[str, tuple[float, float]]) -> dict[str, object]:
    return present(summary(rows(count, columns), (START_NS, START_NS + count * NS_PER_S)))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("3,1,5", "line 3 has more cells than the first line has columns"),
        ("3,warm", "line 3: celsius is 'warm', not a number"),
        ("3.5,1", "line 3: wall_ns is '3.5', not a number"),
        (",1", "line 3 has no wall_ns"),
    ],
)
def test_a_wrong_row_is_named(row: str, said: str, tmp_path: Path) -> None:
    """Bug: `check` reported "TypeError: float() argument must be a string"."""
    (tmp_path / "host.csv").write_text(f"wall_ns,celsius\n1,2\n{row}\n")
    with pytest.raises(ValueError, match=f"^{said}$"):
        HostLog.read(tmp_path / "host.csv")


def test_the_summary_covers_only_the_window() -> None:
    log = rows(
        20, {"measured_minor_faults": (0, 190), "celsius_a": (30, 68), "cpu_user_s": (0, 19)}
    )
    found = present(summary(log, (START_NS + 5 * NS_PER_S, START_NS + 10 * NS_PER_S)))
    assert (found["rows"], found["measured_minor_faults"]) == (6, 50)
    assert found["hottest_celsius"] == 50
    assert found["cpu_shares"]["user"] == 1.0
    assert found["thermal_throttles"] is None
    assert summary(log, (0, 1)) is None
    assert summary(log, None) is None
    assert summary(None, (0, 1)) is None


def doubts(count: int, columns: Mapping[str, tuple[float, float]]) -> list[Reason]:
    return list(host_doubts(summarised(count, columns), "server", 1000))


def test_a_falling_frequency_is_a_doubt() -> None:
    """Only the fastest core counts, because idle cores lower their frequency."""
    idle = {"mhz_cpu0": (3000.0, 800.0), "mhz_cpu1": (3100.0, 3100.0)}
    assert doubts(12, idle) == []
    dropping = {"mhz_cpu0": (3000.0, 800.0), "mhz_cpu1": (3100.0, 2000.0)}
    (doubt,) = doubts(12, dropping)
    assert doubt.code == "frequency-dropped"
    assert "at 2,950 MHz in the first third of the run and at 2,150 in the last" in doubt.text
    assert doubts(8, dropping) == []  # a run of this length is too short to judge


def test_thermal_throttling_is_a_doubt() -> None:
    assert doubts(5, {"thermal_throttles": (40, 40)}) == []
    hot = {"thermal_throttles": (40.0, 47.0), "celsius_a": (60.0, 99.0)}
    (doubt,) = doubts(5, hot)
    assert doubt.code == "thermal-throttled"
    assert doubt.text.startswith("the CPU throttled 7 times because of heat (peak 99 °C): ")


@pytest.mark.parametrize(
    ("megabytes", "samples", "said"),
    [
        ([300, 330, 360, 390, 420], 1000, True),
        ([300, 340, 380, 390, 400], 1000, False),  # the growth slows down, so it is not a leak
        # The memory grows in a single step, which is not a leak.
        ([300, 330, 360, 360, 420], 1000, False),
        ([300, 304, 308, 312, 316], 1000, False),  # the memory grows by only a few megabytes
        ([3000, 3030, 3060, 3090, 3120], 1000, False),  # the memory grows by only a few percent
        # LoadGen's records of a million samples explain the growth.
        ([300, 330, 360, 390, 420], 10**6, False),
    ],
)
def test_memory_that_grows_to_the_end_is_a_doubt(
    megabytes: list[int], samples: int, said: bool
) -> None:
    """Bug: a backend that kept 139 MB from 264 batches caused no doubt."""
    held = [n * 1e6 for n in megabytes for _ in range(3)][:-2]
    counts: list[Row] = [
        {"wall_ns": START_NS + n * NS_PER_S, ANONYMOUS: value} for n, value in enumerate(held)
    ]
    found = _summary_of(counts)
    assert found[ANONYMOUS] == [n * 1e6 for n in megabytes]
    told = list(host_doubts(found, "server", samples))
    assert [d.code for d in told] == (["leak"] if said else [])
    assert all(
        "from 300 MB to 360 MB in the first half of the run and to 420 MB" in d.text for d in told
    )
    assert _summary_of(counts[:8])[ANONYMOUS] is None


def _summary_of(counts: list[Row]) -> dict[str, object]:
    return present(summary(HostLog(counts), (START_NS, START_NS + 60 * NS_PER_S)))


@pytest.mark.parametrize(("faults", "codes"), [(10, []), (11, ["paged"])])
def test_many_major_page_faults_are_a_doubt(faults: int, codes: list[str]) -> None:
    """A doubt follows if more than one in a hundred of the thousand samples caused a major fault."""
    columns = {"measured_major_faults": (50.0, 50.0 + faults), "memory_available_bytes": (9e9, 2e9)}
    found = doubts(5, columns)
    assert [d.code for d in found] == codes
    assert all(
        "11 times" in d.text and "with at least 2.00 GB of memory left" in d.text for d in found
    )


@pytest.mark.parametrize(
    ("switches", "cpu_s", "codes"),
    [(1000.0, 5.0, ["preempted"]), (999.0, 5.0, []), (99.0, 0.1, []), (500.0, 0.0, [])],
)
def test_many_involuntary_switches_are_a_doubt(
    switches: float, cpu_s: float, codes: list[str]
) -> None:
    columns = {
        "measured_involuntary_switches": (7.0, 7.0 + switches),
        "measured_cpu_s": (2.0, 2.0 + cpu_s),
    }
    found = doubts(5, columns)
    assert [d.code for d in found] == codes
    assert all("took the cores 1,000 times (200 per second of CPU time): " in d.text for d in found)
    assert all(
        d.text.endswith("use fewer --instances and --threads, or stop other programs")
        for d in found
    )


def test_threads_that_lose_their_cores_to_other_processes_are_not_too_many() -> None:
    """Bug: at 1 x 2 threads, with other programs on the cores, the advice was `use fewer --instances and --threads`."""
    columns = {"measured_involuntary_switches": (7.0, 1007.0), "measured_cpu_s": (2.0, 7.0)}
    busy = summarised(5, columns)
    (found,) = host_doubts(busy, "server", 100, 0.55)
    assert found.text.endswith("CPU time); other processes used 55 % of the cores: stop them")
    (alone,) = host_doubts(busy, "server", 100, 0.02)
    assert "use fewer --instances" in alone.text


def test_doubt_about_a_preempted_client_does_not_mention_instances() -> None:
    """Bug: the doubt advised fewer --instances, although the model ran on a server and not on this machine."""
    columns = {"measured_involuntary_switches": (7.0, 1007.0), "measured_cpu_s": (2.0, 7.0)}
    (found,) = host_doubts(summarised(5, columns), "server", 100, remote=True)
    assert found.code == "preempted"
    assert found.text.endswith(
        "CPU time): run the server and the client on different cores, or stop other programs"
    )
    assert "--instances" not in CODES["preempted"].advice


def test_the_doubts_of_the_host_are_in_the_result() -> None:
    run = evidence("server")
    window = present(window_ns(golden_log("server").values))
    counts: list[Row] = [
        {"wall_ns": at, "thermal_throttles": float(n)} for n, at in enumerate(window)
    ]
    found = result(replace(findings("server", run), host=HostLog(counts)))
    assert found["host"]["thermal_throttles"] == 1
    assert "thermal-throttled" in [d["code"] for d in found["doubts"]]
    assert found["verdict"] == "VALID"


@pytest.mark.parametrize(
    ("name", "text", "turbo"),
    [
        ("intel_pstate/no_turbo", "0", True),
        ("intel_pstate/no_turbo", "1", False),
        ("cpufreq/boost", "1", True),
        ("cpufreq/boost", "0", False),
        ("cpufreq/other", "1", None),
    ],
)
def test_turbo_is_read_from_either_driver(
    name: str, text: str, turbo: bool | None, tmp_path: Path
) -> None:
    folder, _, file = name.partition("/")
    files(tmp_path / folder, {file: text})
    assert host.turbo(tmp_path) is turbo


@pytest.mark.parametrize(
    ("column", "code"),
    [(CONFINED, "cores-lost"), (LOWERED, "priority-lowered"), (STOPPED, "stalled")],
)
def test_changes_to_threads_by_another_program_are_a_doubt(column: str, code: str) -> None:
    assert [doubt.code for doubt in doubts(5, {column: (2, 2)})] == []
    assert [doubt.code for doubt in doubts(5, {column: (0, 2)})] == [code]
