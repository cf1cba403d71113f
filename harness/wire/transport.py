"""Chooses the transport of requests (HTTP/1.1 or gRPC) from the scheme of --url."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from harness.remote import Request, StreamReader
from harness.wire.cancelling import CancellingFlights
from harness.wire.connections import Server
from harness.wire.flight import Flight
from harness.wire.flights import Flights
from harness.wire.grpc.calls import Calls


class Transport(Protocol):
    """Keeps many requests in flight: Flights over HTTP/1.1, or Calls over gRPC.

    One thread calls `submit`, and the same thread or another thread calls `turn`. Exactly one `turn` returns each
    flight, with a reply or an error.
    """

    waited: int
    waited_s: float
    resent: int
    reopened: int
    outage_s: float
    gone: Exception | None

    @property
    def closes_after(self) -> Sequence[int]: ...

    @property
    def refused(self) -> Mapping[int, Exception]: ...

    begun: list[Flight] | None

    def prepare(self, indices: Sequence[int], /) -> None: ...
    def submit(self, flight: Flight, /) -> None: ...
    def turn(self, timeout_s: float, /) -> list[Flight]: ...
    def wake(self) -> None: ...
    def forget(self) -> None: ...
    def peers(self) -> list[tuple[str, bool]]: ...
    def close(self) -> None: ...


def transport(
    servers: Sequence[Server],
    connections: int,
    encode: Callable[[Sequence[int]], Request],
    timeout_s: float,
    *,
    resend: bool = True,
    reader: Callable[[], StreamReader] | None = None,
    cancels: bool = False,
) -> Transport:
    """Returns an open transport to servers, which all have the same scheme.

    cancels: whether to cancel some requests (HTTP only). For the other parameters, see Flights.
    """
    if servers[0].address.grpc:
        return Calls(servers, connections, encode, timeout_s)
    cls = CancellingFlights if cancels else Flights
    return cls(servers, connections, encode, timeout_s, resend=resend, reader=reader)
