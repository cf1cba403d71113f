"""One run's requests to the servers: opened and proven before LoadGen starts, told about when it has ended."""

from collections.abc import Mapping, Sequence
from typing import Any

from harness.core.config.run_config import RunConfig
from harness.errors import one_line
from harness.loadgen.answers import AnswerRow
from harness.loadgen.binding import responder_for
from harness.models.opened.remote import check_hosts, request_timeout_s, servers_of
from harness.remote import ServerTotals
from harness.run.journal import Journal
from harness.run.measured.answerer import Answerer
from harness.run.measured.client import ceiling, server_times
from harness.run.measured.client.dispatch import (
    Delivery,
    DirectDispatcher,
    InlineRemoteDispatcher,
    merged_samples,
    stream_reader,
)
from harness.run.measured.dispatch.instance import Failures
from harness.wire.flights import Flight, Flights
from harness.wire.remote_backend import RemoteBackend

_REHEARSAL_S = 0.1


class Session:
    """Connections, dispatcher and counts of one run."""

    def __init__(
        self,
        config: RunConfig,
        answerer: Answerer,
        connections: int,
        max_batch: int,
        slowest_ns: int,
    ) -> None:
        backend = answerer.backend
        assert isinstance(backend, RemoteBackend)
        self._answerer = answerer
        self._backend = backend
        self._remote = backend.remote
        self._connections = connections
        self._max_batch = max_batch
        dataset = answerer.dataset
        self._urls = config.url
        self._timeout_s = request_timeout_s(config, slowest_ns)
        self._ceiling: ceiling.Ceiling | None = None
        self._no_ceiling = "not measured"
        self._heads: server_times.Heads | None = None
        self._totals: ServerTotals | None = None
        self._flights = Flights(
            servers_of(config),
            connections,
            lambda indices: self._remote.request(dataset.batch(indices)),
            self._timeout_s,
            resend=not config.no_resend,
            reader=stream_reader(self._remote),
        )

        check_hosts(config, [address for address, _ in self._flights.peers()])

    def rehearse(self, row: AnswerRow, loaded: Sequence[int]) -> None:
        """Answers one request on each connection, and measures what the client can do at most.

        loaded: dataset indices. The kernel's first stamps on a connection may be old: they are used up here.
        """
        for _ in range(2):
            pending = 0
            for _ in range(self._connections):
                self._flights.submit(Flight([0] * self._max_batch, self._batch(loaded), 0))
                pending += 1
            while pending:
                done = self._flights.turn(_REHEARSAL_S)
                pending -= len(done)
                for flight in done:
                    if flight.error is not None:
                        raise flight.error
                    if flight.reply is not None and server_times.tells(flight.reply):
                        self._heads = server_times.Heads()
        try:
            self._ceiling = ceiling.measure(
                self._answerer.backend,  # type: ignore[arg-type] # checked above
                self._answerer.dataset,
                self._answerer.postprocess,
                row,
                self._batch(loaded),
                self._connections,
                self._max_batch,
            )
        except Exception as e:  # noqa: BLE001 - told in the result, and no fault of the server's
            self._no_ceiling = f"{type(e).__name__}: {one_line(e)}"

    def _batch(self, loaded: Sequence[int]) -> list[int]:
        return [loaded[i % len(loaded)] for i in range(self._max_batch)]

    def dispatcher(
        self, inline: bool, journal: Journal, row: AnswerRow, failures: Failures, complete: Any
    ) -> DirectDispatcher | InlineRemoteDispatcher:
        """complete: takes the responses in place of LoadGen."""
        most = merged_samples(self._max_batch, row)
        self._totals = self._totals_now()
        delivery = Delivery(
            self._remote,
            self._answerer.postprocess,
            responder_for(most, row, complete),
            journal.remote_writer(),
            row,
            failures,
            most,
            self._heads,
        )
        self._tokens = delivery.tokens
        self._flights.forget()
        cls = InlineRemoteDispatcher if inline else DirectDispatcher
        self._dispatcher = cls(self._flights, delivery, self._max_batch, journal.issuer())
        return self._dispatcher

    def _totals_now(self) -> ServerTotals | None:
        """Statistics of one server whose replies do not tell; of replicas they would be those of one alone."""
        one = self._heads is None and len(self._urls) == 1
        return self._backend.totals() if one else None

    def _server_times(self) -> Mapping[str, Any] | None:
        if self._heads is not None:
            return server_times.from_heads(self._heads)
        return server_times.from_totals(self._totals, self._totals_now())

    def close(self) -> None:
        self._flights.close()

    def told(self, failures: Failures) -> Mapping[str, Any]:
        """`client` of the last message."""
        found = self._ceiling
        return {
            "dispatcher": "direct" if isinstance(self._dispatcher, DirectDispatcher) else "inline",
            "peers": [
                {"url": url, "address": address, "local": local}
                for url, (address, local) in zip(self._urls, self._flights.peers(), strict=True)
            ],
            "connections": self._connections,
            "request_timeout_s": self._timeout_s,
            "ceiling_per_s": found.per_s if found else None,
            "floor_p50_ns": found.floor_p50_ns if found else None,
            "no_ceiling": "" if found else self._no_ceiling,
            "busy_shares": list(self._dispatcher.busy_shares),
            "waited": self._flights.waited,
            "resent": self._flights.resent,
            "reopened": self._flights.reopened,
            "server_gone": str(self._flights.gone or ""),
            "failures": dict(failures.kinds),
            "server_times": self._server_times(),
            "tokens": self._tokens.told() if self._tokens is not None else None,
        }
