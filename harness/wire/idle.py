"""Spreads the replacement of idle connections over time, so that a burst of new connections does not delay a query. The
module has no side effects.
"""

from collections.abc import Sequence

IDLE_S = 4.0
"""A connection that has been idle for longer than this is not used, because a server may close it after 5 s."""

IDLE_FROM_S = 1.0
"""A connection that has been unused for less than this is not idle, and is never replaced."""

TOGETHER = 4
"""At most this many connections are replaced at once, if they become due one after another."""


class IdlePace:
    """Decides how many idle connections to replace now, the longest idle first."""

    def __init__(self) -> None:
        self._owed = 0.0
        self.per_s = 0.0
        """Rate at which connections are to be replaced, in connections/s, as computed in the last call."""

    def due(self, idle_s: Sequence[float], passed_s: float) -> int:
        """Returns the number of connections to replace now, at the lowest steady rate at which no connection is idle
        for more than IDLE_S.

        idle_s: seconds since each free connection was last used, the longest first. passed_s: seconds since the last
        call.
        """
        per_s = 0.0
        for before, idle in enumerate(idle_s):
            if idle < IDLE_FROM_S:
                break
            per_s = max(per_s, (before + 1) / max(IDLE_S - idle, passed_s))
        self.per_s = per_s
        self._owed = self._owed + per_s * passed_s if per_s else 0.0
        now = min(int(self._owed), len(idle_s))
        self._owed -= now
        return now
