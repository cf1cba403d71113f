"""Reads the servers' Prometheus metrics once a second, and gives the metrics of known servers common names."""

from collections.abc import Sequence

from harness.core.clock import wall_ns
from harness.errors import HarnessError, type_and_text
from harness.remote import Request
from harness.wire.connections import LateReply, Server
from harness.wire.remote_backend import Link
from harness.wire.server_series import Series, added, parse

PERIOD_S = 1.0
TIMEOUT_S = 2.0
"""A reading that takes longer than this fails; the run does not wait for the reading."""

NO_PAGE = "gRPC has no metrics page: give its address with --server-metrics"

_OK = 200


class ServerMetrics:
    """Adds a row to `rows` with each `look`, on one thread.

    absent: the reason why `rows` is empty, otherwise "". If the first reading fails, the servers are not read again. If
    a later reading fails, the row of this reading is omitted.
    """

    def __init__(self, servers: Sequence[Server], wanted: Sequence[Series] = ()) -> None:
        """wanted: series to read in addition to the known series."""
        self.rows: list[dict[str, float]] = []
        self.absent = "" if servers else NO_PAGE
        self._wanted = wanted
        self._links = [Link(server, TIMEOUT_S, option="") for server in servers]

    def look(self) -> None:
        if self.absent:
            return
        found = []
        for link in self._links:
            try:
                found.append(self._read(link))
            except (HarnessError, OSError, ValueError) as e:
                if not self.rows:
                    self.absent = f"{link.server.address}: {_described(e)}"
                return
        self.rows.append({"wall_ns": wall_ns(), **added(found)})

    def _read(self, link: Link) -> dict[str, float]:
        reply = link.exchange(Request("", method="GET"))
        if reply.status != _OK:
            raise _Unusable(f"the server answered {reply.status}")
        found = parse(bytes(reply.body).decode("utf-8", "replace"), self._wanted)
        if not found:
            raise _Unusable(
                "the page has no series of a known server: name its series with --server-metric"
            )
        return found

    def close(self) -> None:
        for link in self._links:
            link.close()


def _described(error: Exception) -> str:
    if isinstance(error, LateReply):
        return f"no reply within {TIMEOUT_S:g} s"
    return str(error) if isinstance(error, _Unusable | HarnessError) else type_and_text(error)


class _Unusable(ValueError):
    """Raised if a reply does not contain the metrics."""
