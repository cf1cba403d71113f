"""Tracks the peers that a loop waits for, and reports the peers whose time limit has passed. Does not use sockets."""

import time
from typing import Generic, TypeVar

WAIT_NS = 30_000_000_000
"""A peer is late if sending a request or receiving a reply takes longer than this, plus BYTE_NS per byte. The limit
applies to a complete message, so that a slow peer cannot hold its connection forever.
"""

BYTE_NS = 10_000
"""Additional time per byte. A peer that sends or reads at least 100 kB/s is never late."""

SILENT_NS = 10_000_000_000
"""After this time without a request, a connection may be closed if a new connection needs its descriptor."""

TICK_NS = 500_000_000
"""If the loop works longer than this between two checks of the sockets, the excess does not count as waiting for peers,
because the peers' bytes may already wait in the sockets. TICK_NS is also the interval between checks for late peers.
"""

Peer = TypeVar("Peer")


class Patience(Generic[Peer]):
    """Stores a deadline for the message of each peer that a loop waits for. The deadlines refer to a clock that stops
    while the loop does long work.
    """

    def __init__(self) -> None:
        self.now_ns = 0
        """Time that the loop has spent waiting, plus its work between waits (at most TICK_NS each time)."""
        self._due_ns: dict[Peer, int] = {}
        self._looked_ns = time.monotonic_ns()
        self._next_ns = 0

    def __bool__(self) -> bool:
        return bool(self._due_ns)

    def begin_wait(self) -> None:
        """Adds the loop's work since the last wait to `now_ns`."""
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
        """Extends a peer's time limit after `count` more bytes were sent or received."""
        if peer in self._due_ns:
            self._due_ns[peer] += count * BYTE_NS

    def settle(self, peer: Peer) -> None:
        """Removes a peer that has completed its message or closed its connection."""
        self._due_ns.pop(peer, None)

    def is_time_to_look(self) -> bool:
        """Returns True once per TICK_NS."""
        if self.now_ns < self._next_ns:
            return False
        self._next_ns = self.now_ns + TICK_NS
        return True

    def late(self) -> list[Peer]:
        """Returns the peers whose time limit has passed."""
        return [peer for peer, due_ns in self._due_ns.items() if due_ns <= self.now_ns]
