"""Replaces broken connections on a separate thread."""

import errno
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic

from harness.wire.connections import Connection, Server, connect

CONNECT_TIMEOUT_S = 5.0
RETRY_S = 0.1

GIVE_UP_S = 5.0
"""A server that refuses all connections for this long counts as gone."""

UNHEARD_S = 0.9
"""If a connect takes longer than this, the server did not respond to the first attempt, because the kernel tries again
after 1 s.
"""

_LACKS = (errno.EADDRNOTAVAIL, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors of `connect` that mean that this machine lacks ports, descriptors or memory."""


def _is_of_server(error: Exception) -> bool:
    """Returns whether the server caused the error. Returns False if the server's name cannot be resolved, because that
    error is a ConfigError.
    """
    return isinstance(error, OSError) and error.errno not in _LACKS


class Opener(threading.Thread):
    """Replaces broken connections to one server during a run.

    Each server needs a separate Opener, because a server that does not respond blocks a thread for CONNECT_TIMEOUT_S.
    If the server's replicas shared this thread, they would lose their connections during this time.
    """

    def __init__(
        self,
        server: Server,
        number: int,
        opened: Callable[[Connection], None],
        refused: Callable[[int, Exception], None],
        returned: Callable[[float], None],
    ) -> None:
        """number: the server's number, for its connections. refused: called while the client gives up on the server.
        returned: called when the server accepts a connection again, with the number of seconds in which the server
        accepted no connection.
        """
        super().__init__(name="opener", daemon=True)
        self._server = server
        self._number = number
        self._opened = opened
        self._refused = refused
        self._returned = returned
        self._wanted: SimpleQueue[bool] = SimpleQueue()

    def open(self) -> None:
        """Requests one more connection. Only one thread may call this method."""
        if not self.is_alive():
            self.start()
        self._wanted.put(True)

    def run(self) -> None:
        refused_since_s: float | None = None
        is_away = False  # whether the server caused the last refusal
        while self._wanted.get():
            began_s = monotonic()
            try:
                connection = connect(self._server, CONNECT_TIMEOUT_S, self._number)
            except Exception as e:  # noqa: BLE001 - retried until the server's time limit
                # The time counts from the start of the attempt, because a single attempt that times out already takes
                # GIVE_UP_S.
                refused_since_s = refused_since_s or began_s
                is_away = _is_of_server(e)
                if monotonic() - refused_since_s >= GIVE_UP_S:
                    self._refused(self._number, e)
                self._wanted.put(True)
                threading.Event().wait(RETRY_S)
            else:
                if refused_since_s is not None and is_away:
                    self._returned(monotonic() - refused_since_s)
                elif connection.connect_s > UNHEARD_S:
                    self._returned(connection.connect_s)
                refused_since_s = None
                self._opened(connection)

    def stop(self) -> None:
        """Stops the thread after its current attempt; `join` waits until the thread ends."""
        with suppress(Empty):
            while True:
                self._wanted.get_nowait()
        self._wanted.put(False)
