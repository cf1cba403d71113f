"""Measures the points of benchmarks, each group in a separate process, within a common time limit."""

import math
import os
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from harness.core import registry
from harness.core.child import Channel, connect
from harness.core.units import NS_PER_S
from harness.machine import cores
from harness.machine.characterise import process
from harness.machine.characterise.timing import Plan
from harness.types import Point

LIMIT_S = 60.0
"""A point that takes longer is abandoned, because its library hangs or the machine is too slow.
"""

LEAST_S = 10.0
"""Each point is allowed at least this time, even if less time is left, because a busy machine needs this time to load a
library.
"""

START_S = 4.0
"""Estimated time for starting a process and for loading a library."""

WARM_UP_FACTOR = 1.25
"""Estimated time for a point with its warm-up, relative to the time for its repetitions."""

OUT_OF_TIME = "left out: the time ran out; --missing measures the missing points, --thorough has no time limit"

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables that libraries read when they are loaded."""


class Planned(NamedTuple):
    """A point to measure."""

    name: str
    benchmark: str
    """The name that selects the benchmark."""
    point: Point

    @property
    def head(self) -> Mapping[str, Any]:
        """The point's properties that are known before the measurement, as JSON."""
        return {
            "benchmark": registry.short_name(self.benchmark),
            "settings": dict(self.point.settings),
            "work": self.point.work,
            "unit": self.point.unit,
            "threads": self.point.threads,
        }

    @property
    def library(self) -> str:
        return str(self.point.settings.get("library", ""))


class Event(NamedTuple):
    """Reports that the measurement of a point has begun (the result is None) or has finished."""

    planned: Planned
    result: Mapping[str, Any] | None = None


def planned(benchmarks: Sequence[str], most_threads: int) -> Iterator[Planned]:
    """Yields every point in the benchmarks. Raises PluginUnavailable if a benchmark cannot be imported."""
    for benchmark in benchmarks:
        for name, point in process.points_of(benchmark, most_threads).items():
            yield Planned(name, benchmark, point)


def expected_s(points: Sequence[Planned], plan: Plan) -> float:
    """Returns an estimate of the time that measuring the points takes on an idle machine."""
    return sum(_expected_s(group, plan) for group in _groups(points))


def _expected_s(group: Sequence[Planned], plan: Plan) -> float:
    return START_S + len(group) * plan.point_ns / NS_PER_S * WARM_UP_FACTOR


def _groups(points: Sequence[Planned]) -> list[list[Planned]]:
    """Groups the points by library and number of threads. Within each group, puts the largest products last."""
    groups: dict[tuple[str, int], list[Planned]] = {}
    for one in sorted(points, key=lambda one: one.point.work if one.point.unit == "FLOP" else 0.0):
        groups.setdefault((one.library, one.point.threads), []).append(one)
    return list(groups.values())


def measure(
    points: Sequence[Planned], plan: Plan, log: Path, within_s: float = math.inf
) -> Iterator[Event]:
    """Yields two events for each measured point, and one event for each skipped point.

    log: file to which the output of the processes is appended. If the process dies during a point, the point has no
    result, and the next point is measured in a new process. If the process hangs, it is killed, and the rest of the
    group is skipped. within_s: time limit for all points together. Each group is allowed a share of the remaining time.
    Points that have not begun when this share is used up are skipped.
    """
    end_s = time.monotonic() + within_s
    groups = _groups(points)
    expected = [_expected_s(group, plan) for group in groups]
    for place, left in enumerate(groups):
        share = expected[place] / sum(expected[place:])
        now_s = time.monotonic()
        limits = _Limits(now_s + share * (end_s - now_s), end_s)
        while left and not (why := limits.left_out()):
            hung = yield from _in_one_process(left, plan, log, limits)
            if hung:
                why = f"left out: {hung} hung"
                break
        for one in left:
            yield _finished(one, {"missing": why})


class _Limits(NamedTuple):
    """Time limits for a group of points and for all points, in s on the monotonic clock."""

    group_s: float
    all_s: float

    def left_out(self) -> str:
        """Returns the reason why no further point in the group may start, or '' if time is left."""
        return OUT_OF_TIME if time.monotonic() >= self.group_s else ""

    def of_a_point(self) -> float:
        """Returns the time limit, in seconds, for a point that starts now."""
        return min(LIMIT_S, max(LEAST_S, self.all_s - time.monotonic()))


def _in_one_process(
    left: list[Planned], plan: Plan, log: Path, limits: _Limits
) -> Generator[Event, None, str]:
    """Measures points in one process. Removes each measured point from `left`, and any point that ended the process.

    Returns the name of the point that hung, or ''.
    """
    threads = left[0].point.threads
    usable = cores.available()
    variables = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(threads))}
    with log.open("ab") as output:
        child, channel = connect(process.MODULE, log=output, env=variables)
        with child, closing(channel):
            try:
                channel.send(
                    "measure",
                    plan=plan._asdict(),
                    most_threads=usable.threads,
                    processors=process.bound_to(usable.groups, threads),
                    points=[(one.benchmark, one.name) for one in left],
                )
                while left and not limits.left_out():
                    limit_s = limits.of_a_point()
                    why = yield from _next_point(channel, left, limit_s)
                    if why:
                        child.kill()
                        died = f"{why}, status {child.wait()}: see {log.name}"
                        yield _finished(ended := left.pop(0), {"missing": died})
                        return ended.name if why == _no_result(limit_s) else ""
                if left:
                    child.kill()
            except BaseException:
                child.kill()
                raise
    return ""


def _no_result(limit_s: float) -> str:
    return f"no result after {limit_s:.0f} s"


def _next_point(
    channel: Channel, left: list[Planned], limit_s: float
) -> Generator[Event, None, str]:
    """Yields the events for one point. Returns the reason why the process sends no more events, or ''."""
    try:
        while (message := channel.receive(limit_s)) is not None:
            if message["event"] == "begin":
                yield Event(left[0])
            elif message["event"] == "point":
                yield _finished(left.pop(0), message["result"])
                return ""
            else:
                return str(message["text"])
    except TimeoutError:
        return _no_result(limit_s)
    return "the process died"


def _finished(one: Planned, result: Mapping[str, Any]) -> Event:
    return Event(one, {**one.head, "facts": {}, **result})
