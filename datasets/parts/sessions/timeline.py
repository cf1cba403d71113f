"""Derives, from the times of calls in a recorded session, which earlier calls each call waited for.

A call waits for all calls that had ended when the waiting call began. Calls that overlapped do not wait for each other.
AIPerf 0.13 uses the same rule (timing/replay_dependencies.py).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple


class Interval(NamedTuple):
    start_ns: int
    end_ns: int
    """End of the call, at least `start_ns`."""


class Wait(NamedTuple):
    after: tuple[int, ...]
    """Positions of the earlier calls that the call waits for."""
    delay_ns: int
    """Time between the end of all these calls and the start of this call. If the call waits for no other call, the time
    from the start of the session's first call.
    """


def waits(calls: Sequence[Interval]) -> list[Wait]:
    """Returns the waits of each call. Omits a wait that already follows from the other waits. calls: in the order in
    which they start.
    """
    by_end = sorted(range(len(calls)), key=lambda n: (calls[n].end_ns, n))
    ends = [calls[n].end_ns for n in by_end]
    # Entry n is the latest start among the n + 1 calls that end first.
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
    # Calls without a duration that begin at the same time do not count as earlier calls.
    at_once = [one for one in by_end[earlier:ended] if calls[one].start_ns < start_ns]
    begins = [*latest[earlier - 1 : earlier], *(calls[one].start_ns for one in at_once)]
    if not begins:
        return Wait((), start_ns - calls[0].start_ns)
    # If one of the ended calls was over before another of them began, it is enough to wait for the later call.
    after, begun_ns, place = at_once, max(begins), earlier - 1
    while place >= 0 and ends[place] >= begun_ns:
        one = by_end[place]
        if ends[place] > begun_ns or calls[one].start_ns == begun_ns:
            after.append(one)
        place -= 1
    from_ns = max(calls[one].end_ns for one in after)
    return Wait(tuple(sorted(after)), start_ns - from_ns)
