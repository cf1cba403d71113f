"""Reports properties of this machine that affect a measurement: governor, turbo, SMT, NUMA, pages, load."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from harness.machine import cgroup, cores, host
from harness.machine.kernel import text

_SYS = Path("/sys/devices/system")
_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")

UNKNOWN = "unknown"
BUSY_LOAD = 0.5
"""The machine counts as busy if at least this many processes per processor are running or waiting."""


class Fact(NamedTuple):
    """A property of the host."""

    name: str
    value: str
    """The value, or UNKNOWN if the kernel does not report it."""
    why: str = ""
    """The reason why the value is unknown."""
    warning: str = ""
    """The possible effect on the measured numbers, and advice. A warning does not stop the measurement."""


def facts(system: Path = _SYS, huge_pages: Path = _PAGES) -> list[Fact]:
    """Returns the facts. system, huge_pages: folders of the kernel's files, which tests replace."""
    usable = cores.available()
    quota = cgroup.cpu_limit()
    return [
        _governor(system / "cpu"),
        _turbo(system / "cpu"),
        _smt(system / "cpu/smt/active"),
        _numa(system / "node"),
        _huge_pages(huge_pages),
        Fact("page size", f"{os.sysconf('SC_PAGE_SIZE')} B"),
        Fact("processors", str(usable)),
        Fact("quota", "none" if quota is None else f"{quota:g} cores"),
        _hypervisor(),
        _load(),
    ]


def warnings(stated: list[Fact]) -> Iterator[str]:
    yield from (f"{fact.name}: {fact.warning}" for fact in stated if fact.warning)


def _unknown(name: str, path: Path, effect: str) -> Fact:
    return Fact(name, UNKNOWN, f"the kernel has no {path}", f"unknown: {effect}")


def _governor(cpus: Path) -> Fact:
    paths = sorted(cpus.glob("cpu[0-9]*/cpufreq/scaling_governor"))
    found = sorted({text(path) for path in paths} - {""})
    if not found:
        path = cpus / "cpu0/cpufreq/scaling_governor"
        return _unknown("governor", path, "the clock may change while a point is measured")
    slow = [name for name in found if name != "performance"]
    advice = "the clock follows the load: set the governor `performance`" if slow else ""
    return Fact("governor", ", ".join(found), warning=advice)


def _turbo(cpus: Path) -> Fact:
    on = host.turbo(cpus)
    if on is None:
        return _unknown(
            "turbo", cpus / "cpufreq/boost", "only a cool processor may reach the peaks"
        )
    warning = "on: the peaks are valid while the processor stays cool" if on else ""
    return Fact("turbo", "on" if on else "off", warning=warning)


def _smt(path: Path) -> Fact:
    active = text(path)
    if active not in ("0", "1"):
        return _unknown("SMT", path, "two processors may share one core's arithmetic units")
    warning = "on: siblings share a core; threads get separate cores first" if active == "1" else ""
    return Fact("SMT", "on" if active == "1" else "off", warning=warning)


def _numa(nodes: Path) -> Fact:
    count = len(list(nodes.glob("node[0-9]*")))
    if not count:
        return _unknown("NUMA nodes", nodes, "memory may be far from the processor")
    far = f"{count} nodes: memory belongs to the node that touches it first" if count > 1 else ""
    return Fact("NUMA nodes", str(count), warning=far)


def _huge_pages(path: Path) -> Fact:
    words = text(path).split()
    chosen = [word.strip("[]") for word in words if word.startswith("[")]
    if not chosen:
        return _unknown("huge pages", path, "the cost of the first touch depends on them")
    return Fact("huge pages", chosen[0])


def _hypervisor() -> Fact:
    flags = host.cpu_flags()
    if not flags:
        return Fact("hypervisor", UNKNOWN, "/proc/cpuinfo lists no flags")
    if "hypervisor" not in flags:
        return Fact("hypervisor", "no")
    return Fact(
        "hypervisor", "yes", warning="other guests share caches and memory: repeat and compare"
    )


def _load() -> Fact:
    load, processors = os.getloadavg()[0], os.cpu_count() or 1
    busy = load / processors > BUSY_LOAD
    warning = (
        f"{load:.1f} processes on {processors} processors: stop other programs" if busy else ""
    )
    return Fact("load", f"{load:.2f}", warning=warning)
