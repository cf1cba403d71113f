"""Limits how long a client may hold a connection to `browse`, and how many connections may be open at once."""

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

REQUEST_LIMIT_S = 5.0
"""Time limit for a complete request, counted from the opening of the connection or from the previous response."""

ANSWER_LIMIT_S = 10.0
LEAST_TAKEN_BYTES = 1 << 16
"""A client loses its connection, even on a live page, if it reads fewer than this many bytes per ANSWER_LIMIT_S."""

MOST_CONNECTIONS = 200
"""Maximum number of open connections. If one more is opened, the connection that has waited longest for a request is
closed.
"""


def bounded() -> type[asyncio.Protocol]:
    """Returns the protocol class for one server. The server's connections share the list of waiting connections."""
    waiting: dict[_Bounded, None] = {}

    class Protocol(_Bounded):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self.waiting = waiting

    return Protocol


class _Bounded(H11Protocol):
    """uvicorn's protocol with time limits. Without the limits, uvicorn waits forever for a request or for the remainder
    of a request.
    """

    waiting: "dict[_Bounded, None]"
    """Connections that wait for a complete request, oldest first."""
    _deadline: asyncio.TimerHandle | None = None
    _taking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS and self.waiting:
            next(iter(self.waiting)).hang_up()
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._has_request:
            self._stop_waiting()
        else:
            self._wait()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._has_request:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._take(self.transport.get_write_buffer_size() + LEAST_TAKEN_BYTES)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None

    def _take(self, before: int) -> None:
        """Closes the connection if the client reads too slowly. before: number of unsent bytes of the response
        ANSWER_LIMIT_S ago.
        """
        held = self.transport.get_write_buffer_size()
        if before - held < LEAST_TAKEN_BYTES:
            self.hang_up()
        else:
            self._taking = self.loop.call_later(ANSWER_LIMIT_S, self._take, held)

    @property
    def _has_request(self) -> bool:
        """Returns whether a complete request has arrived whose response is not complete yet."""
        # The cycle is None before the first request.
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is not None and not cycle.response_complete and not cycle.more_body

    def _wait(self) -> None:
        """Starts the time limit. A second call does not extend the limit."""
        if self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_LIMIT_S, self._hang_up_unless_taking)
            self.waiting[self] = None

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
            del self.waiting[self]

    def _hang_up_unless_taking(self) -> None:
        """Closes the connection, unless the client is still reading a long response and therefore cannot send a
        request.
        """
        self._stop_waiting()
        if self._taking is not None:
            self._wait()
        else:
            self.hang_up()

    def hang_up(self) -> None:
        self._stop_waiting()
        self.transport.abort()
