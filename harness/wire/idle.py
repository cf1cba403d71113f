"""Spreads the replacement of idle connections over time, so that no burst of connects meets a query. Pure."""

from collections.abc import Sequence

IDLE_S = 4.0
"""No connection is used that was idle for longer: servers close them after 5 s."""

IDLE_FROM_S = 1.0
"""A connection that was used since is not idle, and is never replaced early."""

TOGETHER = 4
"""Connections that are replaced at one time, at most, as far as they come due one after another."""


class IdlePace:
    """How many of the idle connections are replaced now, the oldest first."""

    def __init__(self) -> None:
        self._owed = 0.0
        self.per_s = 0.0
        """Connections to replace each second, as seen at the last call."""

    def due(self, idle_s: Sequence[float], passed_s: float) -> int:
        """The number to replace now: the lowest even rate at which none becomes older than IDLE_S.

        idle_s: seconds since each free connection was used, the oldest first. passed_s: since the last call.
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
