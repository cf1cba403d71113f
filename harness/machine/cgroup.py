"""Reads the container's limits on processor time and memory from cgroup version 2 or 1.

A limit applies to all child groups, so this module reads the limits of the process's own group and of all its parent
groups.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from harness.machine.kernel import text

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")

_NO_LIMIT_BYTES = 1 << 60
"""A limit of at least this value means "unlimited", because cgroup version 1 writes a number near 2**63."""


def cpu_limit() -> float | None:
    """Returns the processor time that the quota allows, in cores, or None if no quota is set."""
    limits = []
    for folder in _folders("cpu"):
        quota = text(folder / "cpu.max").split()
        if not quota:
            quota = [text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
        if len(quota) == 2 and quota[0].isdigit() and quota[1].isdigit():
            limits.append(int(quota[0]) / int(quota[1]))
    return min(limits, default=None)


def memory_limit_bytes() -> int | None:
    """Returns the lowest memory limit, or None if no limit is set."""
    return min((limit for limit, _ in _memory()), default=None)


def memory_left_bytes() -> int | None:
    """Returns the amount of memory that the limits still allow, or None if no limit is set."""
    return min((limit - used for limit, used in _memory()), default=None)


def _memory() -> Iterator[tuple[int, int]]:
    """Yields each memory limit and the memory that its group uses, in bytes.

    Inactive file pages count as free, as in Kubernetes and Docker, because the kernel drops them before the limit is
    reached.
    """
    for folder in _folders("memory"):
        for limit_name, used_name, cached_name in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, used = text(folder / limit_name), text(folder / used_name)
            if limit.isdigit() and used.isdigit() and int(limit) < _NO_LIMIT_BYTES:
                cached = re.search(
                    rf"^{cached_name} (\d+)$", text(folder / "memory.stat"), re.MULTILINE
                )
                yield int(limit), max(0, int(used) - (int(cached[1]) if cached else 0))


def throttled_s() -> float | None:
    """Returns the total time during which the quota has stopped this group, or None if unknown."""
    times_s = []
    for folder in _folders("cpu"):
        stat = text(folder / "cpu.stat")
        for name, unit in (("throttled_usec", 1e6), ("throttled_time", 1e9)):
            match = re.search(rf"^{name} (\d+)$", stat, re.MULTILINE)
            if match is not None:
                times_s.append(int(match[1]) / unit)
    return max(times_s, default=None)


def _folders(controller: str) -> Iterator[Path]:
    """Yields the folders of this process's group and its parent groups in each hierarchy that may contain the
    controller.
    """
    for line in text(OWN).splitlines():
        _, names, path = line.split(":", 2)
        if not names:
            bases = [ROOT, ROOT / "unified"]
        elif controller in names.split(","):
            bases = [ROOT / controller]
        else:
            continue
        for base in bases:
            own = base / path.lstrip("/")
            yield from (f for f in (own, *own.parents) if f.is_relative_to(base))
