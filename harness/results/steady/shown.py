"""Describes the steady state in one line, for a screen or a page. Has no side effects."""

from collections.abc import Mapping
from typing import Any

from harness.core.units import show_bytes, show_percent, show_rate, show_wait

_NAMES = {"tail": "the share of slow samples", "failures": "the share of failures"}
_FORMS = {"step": "in a step", "ramp": "gradually", "wave": "in waves", "phase": "for a time"}


_MOST = 1000
"""A factor above this is printed as `more than 1,000 times`."""

_LEAST_S = 0.05
"""A shorter warm-up than this is not mentioned, because it would be printed as 0.0 s."""

NOT_STEADY = "not steady"

ALONGSIDE = "; at the same time "
"""Separates a change from the numbers that changed with it."""


def verdict_of(result: Mapping[str, Any]) -> str | None:
    """Returns the verdict; None without a verdict. result: the content of result.json."""
    steady = result.get("steady")
    return steady["verdict"] if steady else None


def shown(result: Mapping[str, Any]) -> str | None:
    """Returns the steady state in one line; None without a verdict. result: the content of result.json."""
    steady = result.get("steady")
    if not steady:
        return None
    text = _verdict(steady)
    if steady["warm_up_s"] >= _LEAST_S:
        text += f"; the first {_seconds(steady['warm_up_s'])} were left out as warm-up"
    difference = (steady.get("official") or {}).get("difference")
    return f"{text}; {difference}" if difference else text


def _verdict(steady: Mapping[str, Any]) -> str:
    if steady["verdict"] == "steady":
        names = ", ".join(n for n in steady["series"] if n not in _NAMES)
        return f"yes: no change of 10 % or more in {names}"
    if steady["change"] is not None:
        return f"no: {change_text(steady['change'])}"
    return f"undecided: a run of about {show_wait(steady['needed_s'])} would decide"


def change_text(change: Mapping[str, Any]) -> str:
    """Returns a clause that states the change, its time and the columns of host.csv that changed with it."""
    name = _NAMES.get(change["series"], change["series"])
    verb = "rose" if change["size"] > 0 else "fell"
    verb = "changed" if change["shape"] == "wave" else verb
    at = f"{_seconds(max(change['after_s'], 0.0))} after the start ({change['at'][11:19]} UTC)"
    text = f"{name} {verb} {_size(change['size'])} {_FORMS[change['shape']]}, from {at}"
    host = change["host"]
    if host is None or not host["changed"]:
        return text
    columns = ", ".join(
        f"{_said(column)} {'rose' if after > before else 'fell'} from {_level(column, before)} to {_level(column, after)}"
        for column, (before, after) in host["changed"].items()
    )
    return f"{text}{ALONGSIDE}{columns} (host.csv, line {host['lines'][1]})"


_COLUMNS = {
    "cpu_user_s": "CPU time of programs",
    "cpu_system_s": "CPU time of the kernel",
    "cpu_idle_s": "idle CPU time",
    "cpu_iowait_s": "CPU time that waits for disks",
    "cpu_softirq_s": "CPU time of interrupts",
    "cpu_steal_s": "CPU time taken by the host",
    "cgroup_throttled_s": "time throttled by the CPU limit",
    "memory_available_bytes": "available memory",
    "measured_cpu_s": "CPU time of the measured process",
    "measured_run_queue_s": "the measured process's wait for a core",
    "measured_minor_faults": "page faults of the measured process",
    "measured_major_faults": "page faults that read the disk",
    "measured_voluntary_switches": "waits of the measured process",
    "measured_involuntary_switches": "preemptions of the measured process",
    "measured_rss_bytes": "memory of the measured process",
}
"""Maps a column of host.csv to words. Other columns keep their names."""


def _said(column: str) -> str:
    kind, _, place = column.partition("_")
    kinds = {"celsius": "temperature of", "mhz": "clock of"}
    return _COLUMNS.get(column) or (f"{kinds[kind]} {place}" if kind in kinds else column)


def _level(column: str, value: float) -> str:
    """Formats the level of a column in host.csv. The column's name determines the unit."""
    if column.endswith("_bytes"):
        return show_bytes(value)
    if column.endswith("_share"):
        return show_percent(value)
    parts = (part for part in _UNITS if column.startswith(part) or column.endswith(part))
    return f"{show_rate(value)}{_UNITS.get(next(parts, ''), '')}"


_UNITS = {
    **dict.fromkeys(
        ("cpu_", "measured_cpu_s", "measured_run_queue_s", "cgroup_throttled_s"), " s/s"
    ),
    **dict.fromkeys(("_switches", "_faults", "thermal_throttles"), " per s"),
    **dict.fromkeys(("mhz_", "_mhz"), " MHz"),
    **dict.fromkeys(("celsius_", "_celsius"), " °C"),
    "_watts": " W",
}
"""Maps the beginning or the end of a column name to the column's unit."""


def _size(change: float) -> str:
    """Formats a change, given as a share. If the share of slow samples was almost 0, it can rise by any factor."""
    if change < 1:
        return f"by {show_percent(abs(change))}"
    factor = 1 + change
    return (
        f"to {factor:.3g} times its level"
        if factor <= _MOST
        else f"to more than {_MOST:,} times its level"
    )


def _seconds(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min"
