"""Derives which earlier calls each call of a recorded session waited for, from the times of the calls. Pure.

A call waits for every call that had ended when it began. Calls that overlapped do not wait for each other. AIPerf
0.13 (timing/replay_dependencies.py) has the same rule.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple


class Interval(NamedTuple):
    start_ns: int
    end_ns: int
    """At least `start_ns`."""


class Wait(NamedTuple):
    after: tuple[int, ...]
    """Positions of earlier calls."""
    delay_ns: int
    """Time from the last end of these calls to the start of this call; without such calls, from the first call."""


def waits(calls: Sequence[Interval]) -> list[Wait]:
    """calls: in the order of their starts. Omits waits that follow from other waits."""
    by_end = sorted(range(len(calls)), key=lambda n: (calls[n].end_ns, n))
    ends = [calls[n].end_ns for n in by_end]
    # The latest start among the calls that end first, second, ...
    latest: list[int] = []
    for n in by_end:
        latest.append(max(latest[-1], calls[n].start_ns) if latest else calls[n].start_ns)
    return [_wait(calls, n, by_end, ends, latest) for n in range(len(calls))]


def _wait(
    calls: Sequence[Interval],
    n: int,
    by_end: Sequence[int],
    ends: Sequence[int],
    latest: Sequence[int],
) -> Wait:
    start_ns = calls[n].start_ns
    earlier, ended = bisect_left(ends, start_ns), bisect_right(ends, start_ns)
    # Calls without a duration that began at the same time are not earlier calls.
    at_once = [one for one in by_end[earlier:ended] if calls[one].start_ns < start_ns]
    begins = [*latest[earlier - 1 : earlier], *(calls[one].start_ns for one in at_once)]
    if not begins:
        return Wait((), start_ns - calls[0].start_ns)
    # If a call ended before another ended call began, the other call waited for it.
    after, begun_ns, place = at_once, max(begins), earlier - 1
    while place >= 0 and ends[place] >= begun_ns:
        one = by_end[place]
        if ends[place] > begun_ns or calls[one].start_ns == begun_ns:
            after.append(one)
        place -= 1
    from_ns = max(calls[one].end_ns for one in after)
    return Wait(tuple(sorted(after)), start_ns - from_ns)
