"""Finds the cores that this process may use, according to the affinity mask, SMT siblings and the cgroup's quota."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from harness.machine import cgroup, kernel

CPUS = Path("/sys/devices/system/cpu")


class Cores(NamedTuple):
    """The cores on which this process may run."""

    groups: tuple[tuple[int, ...], ...]
    """Logical processors in the affinity mask, as one tuple of SMT siblings per core."""
    quota: float | None = None
    """Processor time that the cgroup allows, in cores, or None if no quota is set."""

    @property
    def logical(self) -> int:
        return sum(map(len, self.groups))

    @property
    def threads(self) -> int:
        """Number of threads that can compute at the same time, at least 1.

        A quota is rounded down to whole cores, because one thread too many would make the kernel throttle all threads
        until the quota's next period.
        """
        return self.logical if self.quota is None else min(self.logical, max(1, int(self.quota)))

    @property
    def planned(self) -> int:
        """Default number of threads: one per core, because SMT siblings share the core's arithmetic units."""
        return min(len(self.groups), self.threads)

    @property
    def worth(self) -> float:
        """Available processor time in cores, for example 0.5 or 8."""
        return min(len(self.groups), self.quota or len(self.groups))

    def __str__(self) -> str:
        quota = "no quota" if self.quota is None else f"a quota of {self.quota:g} cores"
        return f"{self.logical} processors on {len(self.groups)} cores, {quota}"

    def assigned(self, instances: int, threads: int) -> tuple[tuple[int, ...], ...]:
        """Returns the logical processors of each instance. The last entry contains the processors that are left over.

        Each thread gets a separate core if there are enough cores. If there are too few cores, SMT siblings are used in
        order. Two instances may then share a core if the number of threads per instance is odd; `apart` detects shared
        cores.
        """
        total = instances * threads
        alone = [group[0] for group in self.groups]
        flat = alone if total <= len(alone) else [cpu for group in self.groups for cpu in group]
        own = [tuple(flat[i * threads : (i + 1) * threads]) for i in range(instances)]
        return (*own, tuple(flat[total:]))

    def apart(self, places: Sequence[Sequence[int]]) -> bool:
        """Returns whether all `places` are on separate cores."""
        owner = {cpu: n for n, cpus in enumerate(places) for cpu in cpus}
        return all(len({owner[cpu] for cpu in group if cpu in owner}) <= 1 for group in self.groups)


def available() -> Cores:
    """Returns the cores that this process may use now."""
    groups: dict[str, list[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        groups.setdefault(_siblings(cpu), []).append(cpu)
    return Cores(tuple(tuple(group) for group in groups.values()), cgroup.cpu_limit())


def _siblings(cpu: int) -> str:
    """Returns a string that is the same for all logical processors of a core.

    Linux 5.3 and newer provide the file core_cpus_list.
    """
    topology = CPUS / f"cpu{cpu}/topology"
    names = ("core_cpus_list", "thread_siblings_list")
    return next(filter(None, (kernel.text(topology / name) for name in names)), str(cpu))
