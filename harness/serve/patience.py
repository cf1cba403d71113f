"""Tracks the peers that a loop waits for, and reports the peers whose time is over. Opens no socket."""

import time
from typing import Generic, TypeVar

WAIT_NS = 30_000_000_000
"""A request must arrive, and an answer be taken, within this time plus BYTE_NS per byte. The limit is for a complete
message, so that a slow peer does not keep its connection.
"""

BYTE_NS = 10_000
"""Time per byte. A peer that sends or reads at 100 kB/s or more always has enough time, even for a long message."""

SILENT_NS = 10_000_000_000
"""A connection without a request for this time is closed if a new connection needs its descriptor."""

TICK_NS = 500_000_000
"""Maximum time that counts against peers while the loop works between two checks of the sockets, because their bytes
wait in the sockets during that work. This is also the interval between checks for late peers.
"""

Peer = TypeVar("Peer")


class Patience(Generic[Peer]):
    """The due times of the peers that a loop waits for, on a clock that stops during long work of the loop."""

    def __init__(self) -> None:
        self.now_ns = 0
        """Time that the loop has waited, plus at most TICK_NS for its work between each two waits."""
        self._due_ns: dict[Peer, int] = {}
        self._looked_ns = time.monotonic_ns()
        self._next_ns = 0

    def __bool__(self) -> bool:
        return bool(self._due_ns)

    def begin_wait(self) -> None:
        """Counts the loop's work since the last wait."""
        self._look(TICK_NS)

    def end_wait(self) -> None:
        self._look(None)

    def _look(self, most_ns: int | None) -> None:
        before_ns, self._looked_ns = self._looked_ns, time.monotonic_ns()
        spent_ns = self._looked_ns - before_ns
        self.now_ns += spent_ns if most_ns is None else min(spent_ns, most_ns)

    def is_awaited(self, peer: Peer) -> bool:
        return peer in self._due_ns

    def wait_for(self, peer: Peer, wait_ns: int) -> None:
        self._due_ns[peer] = self.now_ns + wait_ns

    def add_bytes(self, peer: Peer, count: int) -> None:
        """Extends the time of a peer that has sent or taken `count` bytes."""
        if peer in self._due_ns:
            self._due_ns[peer] += count * BYTE_NS

    def settle(self, peer: Peer) -> None:
        """Removes a peer that is done or gone."""
        self._due_ns.pop(peer, None)

    def is_time_to_look(self) -> bool:
        """Returns True once per TICK_NS."""
        if self.now_ns < self._next_ns:
            return False
        self._next_ns = self.now_ns + TICK_NS
        return True

    def late(self) -> list[Peer]:
        """Returns the peers whose time is over."""
        return [peer for peer, due_ns in self._due_ns.items() if due_ns <= self.now_ns]
