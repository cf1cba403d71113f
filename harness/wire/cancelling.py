"""Closes the connections of chosen requests after a delay, like clients that give up waiting."""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from os import eventfd_write

from harness.core.clock import wall_ns
from harness.core.units import NS_PER_S
from harness.remote import Request, StreamReader
from harness.wire.connections import Connection, Server
from harness.wire.flight import Flight
from harness.wire.flights import Flights

CANCELLED = "cancelled"
"""Kind of the flights that the client ended."""


class CancellingFlights(Flights):
    """Flights that the client may cancel. `turn` returns a cancelled flight without a reply."""

    def __init__(
        self,
        servers: Sequence[Server],
        connections: int,
        encode: Callable[[Sequence[int]], Request],
        timeout_s: float,
        *,
        resend: bool = True,
        reader: Callable[[], StreamReader] | None = None,
    ) -> None:
        self._chosen: Sequence[int] = b""
        self._after_ns = 0
        # passed from the sending thread to the receiving thread: (due time, connection, flight)
        self._launched: deque[tuple[int, Connection, Flight]] = deque()
        self._due: list[
            tuple[int, int, Connection, Flight]
        ] = []  # a heap, in which the launch number breaks ties
        self._tie = 0
        super().__init__(servers, connections, encode, timeout_s, resend=resend, reader=reader)

    def choose(self, chosen: Sequence[int], after_ns: int) -> None:
        """Sets which flights are cancelled after a delay. chosen: indexed by the issue order of a flight's first
        sample, 1 if the flight is cancelled, otherwise 0; empty if no flight is cancelled.
        """
        self._chosen, self._after_ns = chosen, after_ns

    def _launch(self, connection: Connection, flight: Flight) -> None:
        super()._launch(connection, flight)
        if self._chosen and self._chosen[flight.first]:
            self._launched.append((flight.taken_ns + self._after_ns, connection, flight))
            # This write wakes the receiving thread, which might otherwise wait past this deadline.
            eventfd_write(self._wake, 1)

    def turn(self, timeout_s: float) -> list[Flight]:
        self._take_launched()
        if self._due:
            left_s = max(0, self._due[0][0] - wall_ns()) / NS_PER_S
            timeout_s = min(timeout_s, left_s)
        done = super().turn(timeout_s)
        self._take_launched()
        while self._due and self._due[0][0] <= wall_ns():
            _, _, connection, flight = heapq.heappop(self._due)
            if connection.flight is flight:
                self._cancel(connection, flight, done)
        return done

    def _take_launched(self) -> None:
        while self._launched:
            due_ns, connection, flight = self._launched.popleft()
            self._tie += 1
            heapq.heappush(self._due, (due_ns, self._tie, connection, flight))

    def _cancel(self, connection: Connection, flight: Flight, done: list[Flight]) -> None:
        connection.flight = None
        flight.kind = CANCELLED
        self._discard(connection)
        flight.read_ns = wall_ns()
        done.append(flight)
