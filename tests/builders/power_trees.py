"""Fake folders in the kernel's layout; the code under test only reads files."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

MAX_UJ = 262_143_328_850
STATUS = "Name:\tpython\nvoluntary_ctxt_switches:\t{}\nnonvoluntary_ctxt_switches:\t{}"


def files(folder: Path, content: Mapping[str, object]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in content.items():
        (folder / name).write_text(f"{value}\n")
    return folder


def powercap(root: Path) -> Path:
    """Makes one package with cores and memory, the platform, and the control type's folder."""
    files(root / "intel-rapl", {"enabled": 1})
    for zone, name in (
        ("intel-rapl:0", "package-0"),
        ("intel-rapl:0:0", "core"),
        ("intel-rapl:0:1", "dram"),
        ("intel-rapl:1", "psys"),
    ):
        files(root / zone, {"name": name, "energy_uj": 1_000_000, "max_energy_range_uj": MAX_UJ})
    return root


def machine(root: Path) -> Path:
    """Makes two cores with frequencies, governors and throttle counts, a thermal zone, a chip that also reports power,
    and a process with two threads.
    """
    cpus = root / "sys/devices/system/cpu"
    for number, khz, governor in ((0, 2_400_000, "performance"), (1, 3_100_000, "powersave")):
        cpu = cpus / f"cpu{number}"
        files(cpu / "cpufreq", {"scaling_cur_freq": khz, "scaling_governor": governor})
        files(cpu / "thermal_throttle", {"core_throttle_count": 2, "package_throttle_count": 3})
    files(cpus / "smt", {"active": 1})
    files(cpus / "intel_pstate", {"no_turbo": 1})
    files(root / "sys/class/thermal/thermal_zone0", {"type": "x86_pkg_temp", "temp": 61_000})
    chip = {"name": "k10temp", "temp1_input": 58_500, "temp1_label": "Tctl A"}
    files(root / "sys/class/hwmon/hwmon3", {**chip, "power1_input": 35_000_000})
    before_faults = "S 1 7 7 0 -1 4194304"
    files(
        root / "proc/7",
        {"stat": f"7 (py (x) y) {before_faults} 120 0 4 0 250 50 0 0 20 0 2 0 9 1 11"},
    )
    for task, switches in ((7, (5, 1)), (8, (30, 2))):
        files(root / f"proc/7/task/{task}", {"status": STATUS.format(*switches)})
    return root


@contextmanager
def counting(counter: Path, watts: float) -> Iterator[None]:
    """Increases energy_uj as a constant power of `watts` would, with one wrap-around."""
    stop = threading.Event()

    def run() -> None:
        begin_s = time.monotonic()
        fresh = counter.with_name("fresh")
        while not stop.wait(0.02):
            counted_uj = MAX_UJ - 500_000 + int(watts * (time.monotonic() - begin_s) * 1e6)
            fresh.write_text(f"{counted_uj % MAX_UJ}\n")
            if counter.exists():
                fresh.replace(counter)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
