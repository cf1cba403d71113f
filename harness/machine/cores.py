"""The cores that are really there: the affinity mask, its SMT siblings, and the cgroup's quota."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from harness.machine import cgroup

CPUS = Path("/sys/devices/system/cpu")


class Cores(NamedTuple):
    """What this process may compute on.

    groups: the logical processors of the affinity mask, those of one core together (SMT siblings).
    quota: cores' worth of time that the cgroup allows, None without a quota.
    """

    groups: tuple[tuple[int, ...], ...]
    quota: float | None = None

    @property
    def logical(self) -> int:
        return sum(map(len, self.groups))

    @property
    def threads(self) -> int:
        """Threads that can compute at the same time, at least 1: a fraction of a core in the quota
        is none, since a thread too many has all of them held back until the quota's next period.
        """
        return self.logical if self.quota is None else min(self.logical, max(1, int(self.quota)))

    @property
    def planned(self) -> int:
        """Threads that a plan uses unless told otherwise: siblings share what computes."""
        return min(len(self.groups), self.threads)

    @property
    def worth(self) -> float:
        """Cores' worth of time, e.g. 0.5 or 8."""
        return min(len(self.groups), self.quota or len(self.groups))

    def __str__(self) -> str:
        quota = "no quota" if self.quota is None else f"a quota of {self.quota:g} cores"
        return f"{self.logical} processors on {len(self.groups)} cores, {quota}"

    def assigned(self, instances: int, threads: int) -> tuple[tuple[int, ...], ...]:
        """Each instance's own logical processors, and as the last entry those that are left.

        A core each where there are enough, else siblings one after another: with an odd number of
        threads two instances may share a core, which `apart` tells.
        """
        total = instances * threads
        alone = [group[0] for group in self.groups]
        flat = alone if total <= len(alone) else [cpu for group in self.groups for cpu in group]
        own = [tuple(flat[i * threads : (i + 1) * threads]) for i in range(instances)]
        return (*own, tuple(flat[total:]))

    def apart(self, places: Sequence[Sequence[int]]) -> bool:
        """No core has logical processors of two of `places`."""
        owner = {cpu: n for n, cpus in enumerate(places) for cpu in cpus}
        return all(len({owner[cpu] for cpu in group if cpu in owner}) <= 1 for group in self.groups)


def available() -> Cores:
    """Of this process, now."""
    groups: dict[str, list[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        groups.setdefault(_siblings(cpu), []).append(cpu)
    return Cores(tuple(tuple(group) for group in groups.values()), cgroup.cpu_limit())


def _siblings(cpu: int) -> str:
    """The same for all logical processors of a core; core_cpus_list since Linux 5.3."""
    for name in ("core_cpus_list", "thread_siblings_list"):
        try:
            return (CPUS / f"cpu{cpu}/topology" / name).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            continue
    return str(cpu)
