"""Runs the process that measures points with one library and one number of threads, pinned to logical processors."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness.core import registry
from harness.core.child import Channel, serve
from harness.errors import HarnessError, one_line
from harness.machine import threads
from harness.machine.characterise import energy
from harness.machine.characterise.energy import Counter
from harness.machine.characterise.measured import point_name
from harness.machine.characterise.timing import Plan, timed
from harness.types import Point

MODULE = __name__


def points_of(benchmark: str, most_threads: int) -> Mapping[str, Point]:
    """Returns a benchmark's points by name."""
    with registry.plugin(f"benchmark {benchmark!r}"):
        made = registry.load("benchmark", benchmark)()
        short = registry.short_name(benchmark)
        return {point_name(short, p.settings): p for p in made.points(most_threads)}


def main() -> None:
    serve(_measure)


def _measure(channel: Channel) -> None:
    """Receives one message with the points to measure. Sends the message `begin` before each point and `point` after
    it.
    """
    task = channel.receive()
    if task is None:
        return
    # This call must come before a library starts threads, because threads inherit the pinning.
    threads.run_on(task["processors"])
    plan, most = Plan(**task["plan"]), task["most_threads"]
    known: dict[str, Mapping[str, Point]] = {}
    with energy.counting() as counter:
        for benchmark, name in task["points"]:
            if benchmark not in known:
                known[benchmark] = points_of(benchmark, most)
            channel.send("begin", name=name)
            result = _result(known[benchmark][name], plan, counter)
            channel.send("point", name=name, result=result)


def _result(point: Point, plan: Plan, counter: Callable[[], Counter] | None) -> Mapping[str, Any]:
    try:
        with point.open() as ready:
            return {**timed(ready, plan, counter), "facts": dict(ready.facts)}
    except ModuleNotFoundError as e:
        return {"missing": f"needs the module {e.name!r}"}
    except HarnessError as e:
        return {"missing": one_line(e)}
    except Exception as e:  # noqa: BLE001 - of a framework, which cannot do this operation
        return {"missing": f"{type(e).__name__}: {one_line(e)}"}


def bound_to(groups: Sequence[Sequence[int]], count: int) -> list[int]:
    """Returns `count` processors, one per core. Takes the last cores first, because the first core serves interrupts.

    groups: logical processors of each core. Uses SMT siblings only if there are too few cores.
    """
    first = [group[0] for group in reversed(groups)]
    more = [cpu for group in reversed(groups) for cpu in group[1:]]
    return [*first, *more][:count]
