"""Uses pings to estimate how far another machine's clock is ahead, and the maximum error of the estimate.

Source: NTP's four time stamps (RFC 5905, section 8). A ping does not show whether both directions take equally long, so
the maximum error is half of the shortest round trip.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from harness.core.clock import MAX_SLEW_PPM
from harness.core.units import NS_PER_S
from harness.types import Array

PINGS = 200


class Ping(NamedTuple):
    """One round trip. All stamps are wall-clock times in ns; the middle two come from the other machine."""

    sent_ns: int
    arrived_ns: int
    answered_ns: int
    received_ns: int

    @property
    def round_trip_ns(self) -> int:
        """Round-trip time, excluding the time spent on the other machine."""
        return (self.received_ns - self.sent_ns) - (self.answered_ns - self.arrived_ns)

    @property
    def offset_ns(self) -> int:
        return ((self.arrived_ns - self.sent_ns) + (self.answered_ns - self.received_ns)) // 2


class ClockOffset(NamedTuple):
    """Estimate of how far the other clock is ahead."""

    at_ns: int
    """Time of the estimate on this machine's wall clock."""
    offset_ns: int
    """Offset computed from the ping with the shortest round trip."""
    error_ns: int
    """Maximum error of the offset in either direction, which is half of the shortest round trip."""


def clock_offset(ping: Callable[[], Ping], pings: int = PINGS) -> ClockOffset:
    """Returns the offset from `pings` successive pings. Propagates errors from `ping`."""
    return best_offset([ping() for _ in range(pings)])


def best_offset(pings: Iterable[Ping]) -> ClockOffset:
    """Returns the offset from the ping with the shortest round trip."""
    best = min(pings, key=lambda each: each.round_trip_ns)
    return ClockOffset(best.received_ns, best.offset_ns, max(0, -(-best.round_trip_ns // 2)))


def offsets_of(pings: Array, window_ns: int = NS_PER_S) -> list[ClockOffset]:
    """Returns the offset from the best ping of each time window, in chronological order.

    pings: (n, 4) the four stamps of each Ping. Ignores a ping with a negative round trip, which occurs if a clock was
    set.
    """
    sent_ns, arrived_ns, answered_ns, received_ns = pings.astype(np.int64).T
    round_trip_ns = (received_ns - sent_ns) - (answered_ns - arrived_ns)
    whole = round_trip_ns >= 0
    window = received_ns // window_ns
    order = np.lexsort((round_trip_ns, window))
    order = order[whole[order]]
    _, first = np.unique(window[order], return_index=True)
    return [best_offset([Ping(*pings[at].tolist())]) for at in order[first]]


def step_ns(clocks: Sequence[ClockOffset]) -> int:
    """Returns the largest change between successive estimates that slewing and errors cannot explain, or 0 if they
    explain all changes.

    The slewing allowance is doubled, because both clocks may be slewed.
    """
    largest = 0
    for before, after in pairwise(clocks):
        moved_ns = after.offset_ns - before.offset_ns
        # The allowance is doubled, because both clocks may be slewed.
        slewed_ns = abs(after.at_ns - before.at_ns) * 2 * MAX_SLEW_PPM / 1e6
        explained_ns = before.error_ns + after.error_ns + slewed_ns
        if abs(moved_ns) > max(explained_ns, abs(largest)):
            largest = moved_ns
    return largest


def drift_ppm(before: ClockOffset, after: ClockOffset) -> tuple[float, float]:
    """Returns the drift of the other clock relative to this machine's clock, and the error of the drift, in parts per
    million.
    """
    between_ns = max(1, after.at_ns - before.at_ns)
    per_ns = 1e6 / between_ns
    error_ns = before.error_ns + after.error_ns
    return (after.offset_ns - before.offset_ns) * per_ns, error_ns * per_ns
