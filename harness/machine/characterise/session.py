"""Measures points of benchmarks, each group in a process of its own, and yields them one by one."""

import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from harness.core import registry
from harness.core.child import Channel, connect
from harness.machine import cores
from harness.machine.characterise import process
from harness.machine.characterise.timing import Plan
from harness.types import Point

LIMIT_S = 120
"""A point that takes longer is given up: a library hangs, or the machine is far too slow for it."""

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Libraries read these when they are loaded."""


class Planned(NamedTuple):
    """A point that is to be measured."""

    name: str
    benchmark: str
    """As the user names it."""
    point: Point

    @property
    def head(self) -> Mapping[str, Any]:
        """What is known before it is measured, as JSON."""
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
    """A point begins (result None), or has been measured."""

    planned: Planned
    result: Mapping[str, Any] | None = None


def planned(benchmarks: Sequence[str], most_threads: int) -> Iterator[Planned]:
    """Every point of the benchmarks. Raises PluginUnavailable where one cannot be imported."""
    for benchmark in benchmarks:
        for name, point in process.points_of(benchmark, most_threads).items():
            yield Planned(name, benchmark, point)


def measure(points: Sequence[Planned], plan: Plan, log: Path) -> Iterator[Event]:
    """Two events for each point, in groups of one library and number of threads.

    log: file that the processes' output is appended to. A point whose process dies is absent with that
    reason, and the next point gets a new process.
    """
    groups: dict[tuple[str, int], list[Planned]] = {}
    for one in points:
        groups.setdefault((one.library, one.point.threads), []).append(one)
    for left in groups.values():
        while left:
            yield from _in_one_process(left, plan, log)


def _in_one_process(left: list[Planned], plan: Plan, log: Path) -> Iterator[Event]:
    """Takes each point that was measured, or that ended the process, off the list."""
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
                while left:
                    why = yield from _next_point(channel, left)
                    if why:
                        child.kill()
                        died = f"{why}, status {child.wait()}: see {log.name}"
                        yield _finished(left.pop(0), {"missing": died})
                        return
            except BaseException:
                child.kill()
                raise


def _next_point(channel: Channel, left: list[Planned]) -> Generator[Event, None, str]:
    """Yields the events of a point; returns why there will be no more of them, or ''."""
    try:
        while (message := channel.receive(LIMIT_S)) is not None:
            if message["event"] == "begin":
                yield Event(left[0])
            elif message["event"] == "point":
                yield _finished(left.pop(0), message["result"])
                return ""
            else:
                return str(message["text"])
    except TimeoutError:
        return f"no result after {LIMIT_S} s"
    return "the process died"


def _finished(one: Planned, result: Mapping[str, Any]) -> Event:
    return Event(one, {**one.head, "facts": {}, **result})
