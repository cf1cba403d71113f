"""Times one operation with a warm-up and several repetitions of a minimum length, and computes how much the repetitions
differ.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import repeat
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from harness.machine.characterise.energy import Counter
from harness.machine.threads import TASKS
from harness.types import Ready

ALONE_NS = 20_000
"""Shorter calls are timed in groups that take at least this time, unless other work must run between two calls. Reading
the clock twice takes less than 1 % of this time.
"""

LEAST_CALLS = 5
"""Each repetition makes at least this many calls, even if the calls or the work between the calls are slow."""


LEAST_REPEATS, STEADY = 3, 0.01
"""A point ends early if the coefficient of variation is at most STEADY after at least LEAST_REPEATS repetitions.
"""


class Plan(NamedTuple):
    """Number of repetitions and total time per point."""

    repeats: int = 5
    """Maximum number of repetitions."""
    point_ns: int = 250_000_000
    """Minimum total time of a point's repetitions."""
    thorough: bool = False
    """Whether every point makes all repetitions, even if the point could end early."""

    @property
    def repetition_ns(self) -> float:
        return self.point_ns / self.repeats

    def is_enough(self, repetitions_ns: Sequence[float]) -> bool:
        count = len(repetitions_ns)
        if count >= self.repeats or count < LEAST_REPEATS or self.thorough:
            return count >= self.repeats
        return stdev(repetitions_ns) <= STEADY * fmean(repetitions_ns)


def timed(ready: Ready, plan: Plan, counter: Callable[[], Counter] | None = None) -> dict[str, Any]:
    """Measures a point and returns its times, as JSON.

    repetitions_ns: the median time per call in each repetition. fastest_ns: time of the fastest call. calls: number of
    calls. cpu_share: processor time of this process divided by wall time, which exceeds 1 with parallel threads.
    waited_share: time in which threads of this process waited for a processor, divided by wall time, or None if the
    kernel does not report it. joules: energy per call, only if `counter` starts a meter and nothing runs between the
    calls.
    """
    group = 1 if ready.between is not None else _group(ready.call)
    _repetition(ready, group, plan.repetition_ns / 4)  # warm-up
    energy = counter() if counter is not None and ready.between is None else None
    waited, cpu, wall = _waited_ns(), time.process_time_ns(), time.perf_counter_ns()
    repetitions_ns: list[float] = []
    fastest_ns, timings = math.inf, 0
    while not plan.is_enough(repetitions_ns):
        times = sorted(_repetition(ready, group, plan.repetition_ns))
        repetitions_ns.append(times[len(times) // 2])
        fastest_ns, timings = min(fastest_ns, times[0]), timings + len(times)
    wall, cpu = time.perf_counter_ns() - wall, time.process_time_ns() - cpu
    waited_after = _waited_ns()
    calls = group * timings
    return {
        "repetitions_ns": repetitions_ns,
        "fastest_ns": fastest_ns,
        "calls": calls,
        "joules": None if energy is None else energy.joules() / calls,
        "cpu_share": cpu / wall,
        "waited_share": None
        if waited is None or waited_after is None
        else max(0, waited_after - waited) / wall,
    }


def _group(call: Callable[[], object]) -> int:
    """Returns how many calls are timed as one group, based on the times of the second and third call."""
    call()
    call_ns = min(_call_ns(call, 1) for _ in range(2))
    return max(1, math.ceil(ALONE_NS / max(call_ns, 20)))


def _repetition(ready: Ready, group: int, least_ns: float) -> list[float]:
    """Returns the time per call in ns for each group of calls, until `least_ns` have passed."""
    call, between = ready.call, ready.between
    end = time.perf_counter_ns() + least_ns
    times: list[float] = []
    while time.perf_counter_ns() < end or len(times) < LEAST_CALLS:
        if between is not None:
            between()
        times.append(_call_ns(call, group))
    return times


def _call_ns(call: Callable[[], object], group: int) -> float:
    begin = time.perf_counter_ns()
    for _ in repeat(None, group):
        call()
    return (time.perf_counter_ns() - begin) / group


def _waited_ns(tasks: Path = TASKS) -> int | None:
    """Returns the total time that this process's threads have waited for a processor (proc(5), schedstat)."""
    total = None
    for task in tasks.iterdir():
        with suppress(OSError, ValueError, IndexError):
            total = (total or 0) + int((task / "schedstat").read_text().split()[1])
    return total
