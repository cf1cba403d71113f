"""Records the machine's state in host.csv once per second during the performance run, and summarises it.

A column is missing if the machine does not report its value. Most virtual machines do not report frequencies and
temperatures. Counters are cumulative, as in the kernel's files.
"""

import csv
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from harness.core.clock import wall_ns
from harness.core.shown.cells import write_rows
from harness.machine import cgroup, gpus, host
from harness.machine.family import (
    ANONYMOUS,
    CONFINED,
    LOWERED,
    STOPPED,
    Family,
    Row,
    added,
)
from harness.machine.gpus import Gpus
from harness.machine.kernel import text

HOST_CSV = "host.csv"
HOST_PERIOD_S = 1.0
"""Time between two rows; a shorter interval would disturb the run, because some processors must interrupt a core to
read its frequency.
"""

ROOT = Path("/")
_CPU_MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_SETTINGS = ("governor_", "smt_active", "turbo", "cgroup_cpu_cores", "cores_online")
"""Prefixes of columns that change only when an administrator or a daemon changes a setting."""

FEWEST_ROWS = 9
"""If there are fewer rows, changes over the run are not reported, because each third of the run needs three rows.
"""


@dataclass(slots=True)
class HostLog:
    """The rows of host.csv."""

    rows: list[Row] = field(default_factory=list)
    """Values by column; every row contains `wall_ns`."""

    def write(self, path: Path) -> None:
        columns = list(dict.fromkeys(name for row in self.rows for name in row)) or ["wall_ns"]
        with path.open("w", newline="", encoding="utf-8") as file:
            write_rows(
                file, columns, ([row.get(name, "") for name in columns] for row in self.rows)
            )

    @classmethod
    def read(cls, path: Path) -> "HostLog":
        """Reads host.csv. Raises OSError, csv.Error, or a ValueError that names the line."""
        with path.open(newline="", encoding="utf-8") as file:
            table = csv.DictReader(file)
            return cls([_row(row, table.line_num) for row in table])

    def within(self, window_ns: tuple[int, int]) -> list[Row]:
        begin, end = window_ns
        return [row for row in self.rows if begin <= row["wall_ns"] <= end]


def _row(cells: Mapping[str | None, Any], line: int) -> Row:
    """Parses a row. cells: a row of csv.DictReader, which keeps extra cells under None. line: the row's line number."""
    if None in cells:
        raise ValueError(f"line {line} has more cells than the first line has columns")
    row: dict[str, float] = {}
    for column, cell in cells.items():
        try:
            if column and cell:
                row[column] = int(cell) if column == "wall_ns" else float(cell)
        except ValueError:
            raise ValueError(f"line {line}: {column} is {cell!r:.60}, not a number") from None
    if "wall_ns" not in row:
        raise ValueError(f"line {line} has no wall_ns")
    return row


class HostReader:
    """Adds a row to `log` each time `look` is called."""

    def __init__(self, root: Path = ROOT, device: str = "cpu") -> None:
        """root: the folder that contains proc and sys, from which all files are read. device: the run's --device."""
        self.gpus = Gpus(device)
        self.log = HostLog()
        self.pids: Sequence[int] = ()  # IDs of the measured processes while they run
        self._root = root
        self._cpus = root / "sys/devices/system/cpu"
        self._files = dict(_scaled_files(root))
        self._families: list[Family] = []
        self._throttles = sorted(self._cpus.glob("cpu[0-9]*/thermal_throttle/*_throttle_count"))
        self._governors = sorted(self._cpus.glob("cpu[0-9]*/cpufreq/scaling_governor"))
        self._online = sorted(
            self._cpus.glob("cpu[0-9]*/online")
        )  # the first core is always online, so the kernel has no file for it

    def look(self) -> None:
        row: dict[str, float] = {"wall_ns": wall_ns()}
        times = psutil.cpu_times()
        row |= {f"cpu_{mode}_s": getattr(times, mode) for mode in _CPU_MODES}
        for column, (path, factor) in self._files.items():
            with suppress(OSError, ValueError):  # a sensor may have no value at the moment
                row[column] = int(path.read_text()) * factor
        with suppress(OSError, ValueError):
            if self._throttles:
                row["thermal_throttles"] = sum(int(p.read_text()) for p in self._throttles)
        row["memory_available_bytes"] = host.available_memory_bytes()
        throttled_s = cgroup.throttled_s()
        if throttled_s is not None:
            row["cgroup_throttled_s"] = throttled_s
        row |= self._settings()
        with suppress(OSError, ValueError, IndexError):  # the process may have ended
            row |= self._measured()
        row |= self.gpus.row(self.pids)
        self.log.rows.append(row)

    def _settings(self) -> Row:
        """Returns the number of cores under each governor, smt_active and turbo as 1 or 0, and the CPU quota in cores."""
        cores = Counter(text(path) for path in self._governors)
        settings: dict[str, float] = {f"governor_{name}": n for name, n in cores.items() if name}
        others: dict[str, str | float | None] = {
            "smt_active": text(self._cpus / "smt/active"),
            "turbo": host.turbo(self._cpus),
            "cgroup_cpu_cores": cgroup.cpu_limit(),
            "cores_online": sum(text(path) == "1" for path in self._online) + 1
            if self._online
            else None,
        }
        for name, value in others.items():
            with suppress(ValueError):  # `value` is '' if the file does not exist
                if value is not None:
                    settings[name] = float(value)
        return settings

    def _measured(self) -> Row:
        """Returns sums over all threads of the measured processes and their descendants, or {} before these processes
        start.
        """
        if [family.pid for family in self._families] != [*self.pids]:
            self._families = [Family(pid, self._root / "proc") for pid in self.pids]
        return added(family.read() for family in self._families)


def _scaled_files(root: Path) -> Iterator[tuple[str, tuple[Path, float]]]:
    """Yields each column with its file, and a factor for the number in the file."""
    frequencies = root.glob("sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq")
    for path in sorted(frequencies, key=lambda p: int(p.parts[-3].removeprefix("cpu"))):
        yield f"mhz_{path.parts[-3]}", (path, 1e-3)  # kHz
    for path in sorted(root.glob("sys/class/thermal/thermal_zone*/temp")):
        yield f"celsius_{path.parent.name}_{text(path.with_name('type'))}", (path, 1e-3)
    for path in sorted(root.glob("sys/class/hwmon/hwmon*/temp*_input")):
        sensor = path.name.removesuffix("_input")
        label = text(path.with_name(f"{sensor}_label")) or sensor
        chip = f"{path.parent.name}_{text(path.with_name('name'))}"
        yield f"celsius_{chip}_{label.replace(' ', '_')}", (path, 1e-3)


def summary(log: HostLog | None, window_ns: tuple[int, int] | None) -> dict[str, Any] | None:
    """Returns the entry `host` of result.json, which covers LoadGen's window. A value is None if the machine does not
    report it.
    """
    rows = log.within(window_ns) if log is not None and window_ns is not None else []
    if not rows:
        return None
    counters = (
        "thermal_throttles",
        "cgroup_throttled_s",
        "measured_minor_faults",
        "measured_major_faults",
        "measured_voluntary_switches",
        "measured_involuntary_switches",
        "measured_cpu_s",
        CONFINED,
        LOWERED,
        STOPPED,
    )
    of_gpus = gpus.summary(rows)
    fastest = [f for f in (_highest(row, "mhz_") for row in rows) if f is not None]
    thirds = len(fastest) // 3 if len(fastest) >= FEWEST_ROWS else 0
    return {
        "rows": len(rows),
        "cpu_shares": _cpu_shares(rows),
        "fastest_core_mhz": {
            "first_third": statistics.median(fastest[:thirds]) if thirds else None,
            "last_third": statistics.median(fastest[-thirds:]) if thirds else None,
        },
        "hottest_celsius": max(
            (c for c in (_highest(row, "celsius_") for row in rows) if c is not None), default=None
        ),
        **{name: _grown(rows, name) for name in counters},
        "memory_available_bytes": min(_values(rows, "memory_available_bytes"), default=None),
        "measured_rss_bytes": max(_values(rows, "measured_rss_bytes"), default=None),
        ANONYMOUS: _quarters(_values(rows, ANONYMOUS)),
        "settings": {n: v for n, v in rows[-1].items() if n.startswith(_SETTINGS)},
        "settings_changed": _changed(rows),
        **({"gpus": of_gpus} if of_gpus else {}),
    }


def _quarters(values: Sequence[float]) -> Sequence[float] | None:
    """Returns the first value and the value after each quarter, or None if there are fewer than FEWEST_ROWS values."""
    last = len(values) - 1
    return [values[last * n // 4] for n in range(5)] if len(values) >= FEWEST_ROWS else None


def _changed(rows: Sequence[Row]) -> Mapping[str, Sequence[float]]:
    """Returns the lowest and the highest value of each setting that changed between rows."""
    changed = {}
    for name in dict.fromkeys(n for row in rows for n in row if n.startswith(_SETTINGS)):
        values = [v for v in (_setting(row, name) for row in rows) if v is not None]
        if min(values) < max(values):
            changed[name] = [min(values), max(values)]
    return changed


def _setting(row: Row, name: str) -> float | None:
    """Returns the setting's value, or None if it is missing in the row. If a governor has no column in the row, the
    setting counts as 0, because no core uses this governor.
    """
    governed = name.startswith("governor_") and any(n.startswith("governor_") for n in row)
    return row.get(name, 0.0 if governed else None)


def _highest(row: Row, prefix: str) -> float | None:
    return max((v for name, v in row.items() if name.startswith(prefix)), default=None)


def _values(rows: Sequence[Row], column: str) -> list[float]:
    return [row[column] for row in rows if column in row]


def _grown(rows: Sequence[Row], column: str) -> float | None:
    values = _values(rows, column)
    return values[-1] - values[0] if len(values) > 1 else None


def _cpu_shares(rows: Sequence[Row]) -> Mapping[str, float] | None:
    """Returns the share of all cores' time that each mode took, from the first to the last row."""
    spent = {mode: _grown(rows, f"cpu_{mode}_s") or 0.0 for mode in _CPU_MODES}
    total = sum(spent.values())
    return {mode: value / total for mode, value in spent.items()} if total > 0 else None
