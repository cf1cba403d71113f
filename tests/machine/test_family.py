"""The resource use of a process and its descendants is summed from the real /proc."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.machine.family import ANONYMOUS, CONFINED, LOWERED, RUN_QUEUE, STOPPED, Family
from tests.builders.power_trees import STATUS, files
from tests.builders.support import present

STAT = "1 (a b) S " + "0 " * 15 + "{} 0"
"""Format of the line in `stat` for a thread with a given nice value."""

COMPUTES = "print(1, flush=True)\nwhile True: pass"
FAMILY = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel has no schedstat")
def test_computing_and_waiting_for_a_core_differ_from_sleeping() -> None:
    """Bug: a backend that shared its core seemed to have waited, because only CPU time was compared."""
    one_core = ("taskset", "-c", "0", sys.executable, "-c")
    programs = [COMPUTES, FAMILY, "import time; print(1, flush=True); time.sleep(60)"]
    processes = [
        subprocess.Popen([*one_core, program, COMPUTES], stdout=subprocess.PIPE)
        for program in programs
    ]
    families = [Family(process.pid) for process in processes]
    try:
        for process in processes:
            present(process.stdout).readline()
        before, start = [family.read() for family in families], time.monotonic()
        time.sleep(1.0)
        after, took_s = [family.read() for family in families], time.monotonic() - start
    finally:
        for family, process in zip(families, processes, strict=True):
            subprocess.run(["kill", "-9", *map(str, family._alive())], check=True)
            process.communicate()
    cpu_s, queue_s = (
        [end[column] - begin[column] for begin, end in zip(before, after, strict=True)]
        for column in ("measured_cpu_s", RUN_QUEUE)
    )
    assert max(cpu_s[:2]) < 0.75 * took_s
    for computed_s, waited_s in zip(cpu_s[:2], queue_s[:2], strict=True):
        # The limit is 0.7, because some time passes between the readings on a busy machine.
        assert computed_s + waited_s > 0.7 * took_s
        assert waited_s > 0.1 * took_s
    assert cpu_s[2] + queue_s[2] < 0.3 * took_s


def test_anonymous_memory_leaves_files_and_shared_pages_out() -> None:
    maps = "import mmap, sys, time; m = mmap.mmap(-1, 10**8); m.write(bytes(10**8)); "
    holds = "held = bytearray(5 * 10**7); print(1, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", maps + holds], stdout=subprocess.PIPE) as process:
        present(process.stdout).readline()
        row = Family(process.pid).read()
        process.kill()
    assert row["measured_rss_bytes"] > 1.5e8
    assert 5e7 < row[ANONYMOUS] < 1e8


def test_the_wait_of_ended_threads_stays_in_the_sum(tmp_path: Path) -> None:
    folder = files(tmp_path / "1", {"stat": "1 (a b) S " + "0 " * 20 + "1"})
    for thread, waited_ns in ((1, 2_000_000_000), (2, 3_000_000_000)):
        task = {"status": STATUS.format(1, 1), "schedstat": f"7 {waited_ns} 9"}
        files(folder / f"task/{thread}", task)
    family = Family(1, tmp_path)
    assert family.read()[RUN_QUEUE] == 5.0
    # A new thread reuses the id of thread 2.
    files(folder / "task/2", {"schedstat": "1 500000000 1"})
    assert family.read()[RUN_QUEUE] == 5.5


def test_this_process_is_read_by_default() -> None:
    assert Family().read()["measured_rss_bytes"] > 10**7


SPINS = """
import threading, time
def spin():
    while True: pass
for _ in range(2): threading.Thread(target=spin, daemon=True).start()
print(1, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("command", "column"),
    [
        (("taskset", "--all-tasks", "--cpu-list", "--pid", "0"), CONFINED),
        (("renice", "-n", "5", "-p"), LOWERED),
        (("kill", "-STOP"), STOPPED),
    ],
)
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is no core to lose")
def test_changes_to_a_process_by_another_program_are_counted(
    command: tuple[str, ...], column: str
) -> None:
    """Bug: no file recorded that all threads were moved to one core during the run."""
    with subprocess.Popen([sys.executable, "-c", SPINS], stdout=subprocess.PIPE) as process:
        try:
            present(process.stdout).readline()
            family = Family(process.pid)
            before, again = family.read(), family.read()
            subprocess.run([*command, str(process.pid)], check=True, capture_output=True)
            # The test waits for the stop, because a busy machine delivers the signal later.
            if column == STOPPED:
                os.waitpid(process.pid, os.WUNTRACED)
            after = family.read()
        finally:
            process.kill()
    kinds = (CONFINED, LOWERED, STOPPED)
    assert {before[kind] + again[kind] for kind in kinds} == {0}
    assert {kind for kind in kinds if after[kind]} == {column}


def test_widened_core_mask_is_not_a_loss(tmp_path: Path) -> None:
    folder = files(tmp_path / "1", {"stat": "1 (a b) S " + "0 " * 20 + "1"})
    family = Family(1, tmp_path)
    seen = []
    for mask in ("1", "3", "ff,ffffffff", "ff,ffffffff", "2", "4"):
        status = f"{STATUS.format(1, 1)}\nCpus_allowed:\t{mask}"
        files(folder / "task/1", {"status": status, "stat": STAT.format(0)})
        seen.append(family.read()[CONFINED])
    assert seen == [0, 0, 0, 0, 1, 1]


def test_ended_or_reused_thread_number_is_not_a_loss(tmp_path: Path) -> None:
    """Bug: a thread with nice value -5 that ended between two readings seemed to have lost priority."""
    folder = files(tmp_path / "1", {"stat": "1 (a b) S " + "0 " * 20 + "1"})
    family = Family(1, tmp_path)
    status = f"{STATUS.format(1, 1)}\nCpus_allowed:\t{{}}"
    task = files(folder / "task/2", {"status": status.format("3"), "stat": STAT.format(-5)})
    family.read()
    (task / "stat").unlink()
    family.read()
    files(task, {"status": status.format("1"), "stat": STAT.format(5)})
    row = family.read()
    assert (row[CONFINED], row[LOWERED]) == (0, 0)
    files(task, {"stat": STAT.format(6)})
    assert family.read()[LOWERED] == 1
