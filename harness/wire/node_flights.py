"""Sends each request to the least loaded node. A node that fails counts as lost for the rest of the run.

The requests that a lost node held are not sent to other nodes, because a failed request must not get a second chance.
"""

from collections.abc import Callable, Sequence
from time import monotonic
from typing import NamedTuple

from harness.core.clock import wall_ns
from harness.core.units import show_ns
from harness.errors import one_line
from harness.remote import Request
from harness.wire.balance import Balance
from harness.wire.connections import Connection, Server
from harness.wire.flight import Flight
from harness.wire.flights import Flights

LOST = "node-lost"
"""Kind of the error for flights that a lost node held."""

_TICK_S = 0.1


class Loss(NamedTuple):
    """A node that was lost."""

    number: int
    how: str


class NodeFlights(Flights):
    """Flights to nodes: a reset, a closed connection or a late reply means that the node is lost."""

    def __init__(
        self,
        servers: Sequence[Server],
        requests: Sequence[int],
        speeds: Sequence[float],
        encode: Callable[[Sequence[int]], Request],
        timeout_s: float,
    ) -> None:
        """requests: number of requests that each node may hold at once. speeds: speed of each node in samples/s. For
        the other parameters, see Flights.
        """
        self.losses: list[Loss] = []
        self._lost_nodes: set[int] = set()
        super().__init__(
            servers,
            requests,
            encode,
            timeout_s,
            resend=False,
            free=Balance(requests, speeds),
        )

    def _broke(self, connection: Connection, error: Exception, done: list[Flight]) -> None:
        self._lose(connection.number, one_line(error), done, connection)

    def _discard(self, connection: Connection) -> None:
        """Opens a new connection if a reply closed the old connection; node hosts do not send such replies."""
        if self._drop(connection):
            self._replace(connection)

    def _lose(
        self, number: int, how: str, done: list[Flight], broken: Connection | None = None
    ) -> None:
        """Closes all connections to the node, and fails the requests that the node holds. broken: the broken
        connection, which may already be closed.
        """
        if number not in self._lost_nodes:
            self._lost_nodes.add(number)
            self.losses.append(Loss(number, how))
        now_ns = wall_ns()
        own = [c for c in list(self._open.values()) if c.number == number]
        if broken is not None and broken not in own:
            own.append(broken)
        for connection in own:
            # The connection is dropped first, because the sending thread checks `is_dropped` after it has set the
            # connection's flight.
            self._drop(connection)
            flight, connection.flight = connection.flight, None
            if flight is not None:
                flight.kind, flight.error = LOST, ConnectionError(how)
                flight.read_ns = now_ns
                done.append(flight)
        if not self._open:
            self.gone = ConnectionError(how)

    def _look(self, done: list[Flight]) -> None:
        """Handles timeouts. Idle connections stay open, because node hosts do not close them."""
        self._next_look_s = monotonic() + _TICK_S
        late_ns = wall_ns() - self._timeout_ns
        late = {
            connection.number
            for connection in list(self._open.values())
            if (flight := connection.flight) is not None and flight.taken_ns < late_ns
        }
        for number in late:
            self._lose(number, f"no answer for {show_ns(self._timeout_ns)}", done)
        if self.gone is not None:
            for waiting in (self._again, self._waiting):
                self._give_up(waiting, self.gone, wall_ns(), done)
