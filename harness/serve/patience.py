"""Keeps the peers that a loop waits for, and says whose time is over. It opens no socket."""

import time
from typing import Generic, TypeVar

WAIT_NS = 30_000_000_000
"""A request must be here, and an answer taken, within this time and BYTE_NS a byte: a limit for a whole message,
so that a peer that drips does not hold its connection.
"""

BYTE_NS = 10_000
"""A peer with 100 kB/s or more is waited for however long its message is."""

SILENT_NS = 10_000_000_000
"""A connection that has asked for nothing for this time is closed if another one needs its descriptor."""

TICK_NS = 500_000_000
"""The most time that peers are charged for the loop's work between two looks at the sockets, where their bytes
wait. Late peers are looked for as often.
"""

Peer = TypeVar("Peer")


class Patience(Generic[Peer]):
    """When each peer that a loop waits for is due, on a clock that stands still while the loop itself works long."""

    def __init__(self) -> None:
        self.now_ns = 0
        """The time that the loop waited, and TICK_NS at most for its work between two waits."""
        self._due_ns: dict[Peer, int] = {}
        self._looked_ns = time.monotonic_ns()
        self._next_ns = 0

    def __bool__(self) -> bool:
        return bool(self._due_ns)

    def begin_wait(self) -> None:
        """The loop has worked since the last wait."""
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
        """The peer has sent or taken some bytes, and gets time for the next ones."""
        if peer in self._due_ns:
            self._due_ns[peer] += count * BYTE_NS

    def settle(self, peer: Peer) -> None:
        """The peer has done what it had to do, or has gone."""
        self._due_ns.pop(peer, None)

    def is_time_to_look(self) -> bool:
        """True once in TICK_NS."""
        if self.now_ns < self._next_ns:
            return False
        self._next_ns = self.now_ns + TICK_NS
        return True

    def late(self) -> list[Peer]:
        """The peers whose time is over."""
        return [peer for peer, due_ns in self._due_ns.items() if due_ns <= self.now_ns]
