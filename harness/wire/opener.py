"""Opens connections in the place of broken ones, on a thread of its own."""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic

from harness.wire.connections import Connection, Server, connect

CONNECT_TIMEOUT_S = 5.0
RETRY_S = 0.1

GIVE_UP_S = 5.0
"""A server that refuses all connections for so long is gone."""


class Opener(threading.Thread):
    """Opens connections in the place of broken ones, beside the run."""

    def __init__(
        self,
        servers: Sequence[Server],
        opened: Callable[[Connection], None],
        refused: Callable[[Exception], None],
    ) -> None:
        super().__init__(name="opener", daemon=True)
        self._servers = servers
        self._opened = opened
        self._refused = refused
        self._wanted: SimpleQueue[int | None] = SimpleQueue()

    def open(self, number: int) -> None:
        self._wanted.put(number)

    def run(self) -> None:
        refused_since_s: float | None = None
        while (number := self._wanted.get()) is not None:
            try:
                connection = connect(self._servers[number], CONNECT_TIMEOUT_S, number)
            except Exception as e:  # noqa: BLE001 - tried again, until the server is given up
                now_s = monotonic()
                refused_since_s = refused_since_s or now_s
                if now_s - refused_since_s >= GIVE_UP_S:
                    self._refused(e)
                self._wanted.put(number)
                threading.Event().wait(RETRY_S)
            else:
                refused_since_s = None
                self._opened(connection)

    def stop(self) -> None:
        with suppress(Empty):
            while True:
                self._wanted.get_nowait()
        self._wanted.put(None)
        if self.is_alive():
            self.join(CONNECT_TIMEOUT_S + 1)
