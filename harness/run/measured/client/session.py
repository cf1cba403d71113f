"""The session between one run and its servers. The session opens and tests connections before the run, and summarises
the run.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter_ns
from typing import Any, NoReturn

from harness.core.config.address import parse_address
from harness.core.config.run_config import RunConfig
from harness.errors import ConfigError, one_line, type_and_text
from harness.loadgen import cancelled
from harness.loadgen.answers import AnswerRow
from harness.loadgen.binding import responder_for
from harness.loadgen.plan import LoadPlan
from harness.loadgen.scenario import scenario_named
from harness.models.opened.remote import (
    check_hosts,
    request_timeout_s,
    servers_of,
    without_token_times,
)
from harness.remote import (
    BadAnswer,
    CutOff,
    HasReader,
    Refused,
    Reply,
    Request,
    ServerTotals,
)
from harness.run.journal import Journal
from harness.run.measured.answerer import Answerer
from harness.run.measured.client import ceiling, sent, server_times
from harness.run.measured.client.dispatch import (
    Delivery,
    DirectDispatcher,
    InlineRemoteDispatcher,
    merged_samples,
    stream_reader,
)
from harness.run.measured.client.joined_samples import JoinedSamples, joins_samples
from harness.run.measured.client.nodes import Nodes
from harness.run.measured.client.probes import Probes
from harness.run.measured.client.sample_facts import SampleFacts
from harness.run.measured.client.shared_samples import SharedSamples, check_here, shares_samples
from harness.run.measured.dispatch.instance import Failures
from harness.types import HasLiveHistory
from harness.wire.cancelling import CancellingFlights
from harness.wire.connections import LateReply, Server, unreachable
from harness.wire.flight import Flight
from harness.wire.http1 import BadReply
from harness.wire.node_flights import LOST
from harness.wire.remote_backend import RemoteBackend
from harness.wire.transport import Transport, transport

_REHEARSAL_S = 0.1

_CODINGS = 20
"""The encoding time is measured with this many requests, and the decoding time with this many replies."""


class Session:
    """The connections, dispatcher and counts of one run."""

    _delivery_class: type[Delivery] = Delivery
    _delivery: Delivery

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
        self._slos = [slo for slo in config.slo if slo.of]
        reader = stream_reader(self._remote)
        if self._slos and reader is None:
            raise ConfigError(without_token_times(config, self._slos[0]))
        self._urls = config.url
        self._timeout_s = self._longest_s(config, slowest_ns)
        self._ceiling: ceiling.Ceiling | None = None
        self._no_ceiling = "not measured"
        self._json_ns: int | None = None
        self._heads: server_times.Heads | None = None
        self._totals: ServerTotals | None = None
        servers, shares = servers_of(config), shares_samples(self._remote)
        self._shared = SharedSamples(shares, dataset, servers, self._timeout_s) if shares else None
        joins = joins_samples(self._remote, qdl=config.qdl)
        self._joined = JoinedSamples(joins, dataset) if joins is not None else None
        self._encode = self._encoder()
        self._flights = self._transport(config, servers)
        self._servers = servers
        self._facts = SampleFacts(self._remote, dataset)
        self.probes: Probes | None = None
        """Sends probe requests during the load; None before `add_probes`."""
        check_hosts(config, [address for address, _ in self._flights.peers()])
        self.nodes = Nodes(config, self._remote) if config.qdl else None
        """Reads the server names for a run in MLPerf's Network division; None for any other run."""
        if self._shared is not None:
            check_here(self._flights.peers())

    def _encoder(self) -> Callable[[Sequence[int]], Request]:
        """Returns the function that makes the request for dataset indices."""
        if self._shared is not None:
            return self._shared.request
        if self._joined is not None:
            return self._joined.request
        remote, dataset = self._remote, self._answerer.dataset
        return lambda indices: remote.request(dataset.batch(indices))

    def _longest_s(self, config: RunConfig, slowest_ns: int) -> float:
        """Returns the timeout of one request."""
        return request_timeout_s(config, slowest_ns)

    def _all_connections(self) -> int:
        """Returns the number of connections to all servers together."""
        return self._connections * len(self._urls)

    def _transport(self, config: RunConfig, servers: Sequence[Server]) -> Transport:
        return transport(
            servers,
            self._connections,
            self._encode,
            self._timeout_s,
            resend=not config.no_resend,
            reader=stream_reader(self._remote),
            cancels=config.cancel is not None,
        )

    def add_probes(self, rate_per_s: float) -> None:
        """Opens connections for probes during the load. Call this before `rehearse`."""
        self.probes = Probes(self._servers, self._remote, rate_per_s, self._timeout_s)

    def rehearse(self, row: AnswerRow, loaded: Sequence[int]) -> None:
        """Sends one request on each connection, and measures the client's ceiling and floor.

        These requests also consume the kernel's first time stamps on each connection, because the first stamps may be
        stale. Raises
        ConfigError if a server does not answer with this model. loaded: dataset indices of loaded samples.
        """
        if self._shared is not None:
            self._shared.place(loaded)
        if self._joined is not None:
            self._joined.prepare(self._batch(loaded))
        refused: dict[int, Exception] = {}
        answered: set[int] = set()
        for server, reply in chain(self._rehearsed(loaded), self._rehearsed(loaded)):
            try:
                self._remote.answer(reply, self._max_batch)
            except (Refused, BadAnswer) as e:
                refused[server] = e
            else:
                answered.add(server)
                self._look_at(reply, loaded)
        self._rest()
        if self.probes is not None:
            self.probes.rehearse(self._remote, self._answerer.dataset, loaded[0])
        # A server that refuses only some requests is just busy, so the run counts such failures.
        for number in sorted(refused.keys() - answered):
            raise ConfigError(
                f"--url {self._urls[number]} cannot be used ({one_line(refused[number])}): drop it, or make that server serve "
                "the same model as the others"
            )
        try:
            self._ceiling = ceiling.measure(
                self._answerer.backend,  # type: ignore[arg-type] # checked above
                self._answerer.dataset,
                self._answerer.postprocess,
                row,
                self._batch(loaded),
                self._connections,
                self._max_batch,
                self._encode,
            )
        except Exception as e:  # noqa: BLE001 - the result reports the error, which the server did not cause
            self._no_ceiling = type_and_text(e)

    def _rehearsed(self, loaded: Sequence[int]) -> Iterator[tuple[int, Reply]]:
        """Sends one request per connection. Yields the server's number and the reply; raises the error of a request."""
        pending = self._all_connections()
        for _ in range(pending):
            self._flights.submit(Flight([0] * self._max_batch, self._batch(loaded), 0))
        while pending:
            done = self._flights.turn(_REHEARSAL_S)
            pending -= len(done)
            for flight in done:
                if flight.error is not None:
                    self._refuse(flight, flight.error)
                assert flight.reply is not None
                yield flight.server, flight.reply

    def _rest(self) -> None:
        """Waits before the run to see whether the servers close the rehearsal's connections."""
        end_s = monotonic() + _REHEARSAL_S
        while (left_s := end_s - monotonic()) > 0:
            self._flights.turn(left_s)

    def _refuse(self, flight: Flight, error: Exception) -> NoReturn:
        """Raises the error of a warm-up request. If the server caused the error, raises a ConfigError."""
        url = self._urls[max(0, flight.server)]
        if flight.kind == "timeout":
            error = LateReply(str(error))
        if isinstance(error, BadReply):
            raise ConfigError(f"--url {url}: {one_line(error)}: read the server's log") from error
        if isinstance(error, OSError) and flight.kind != LOST:
            unreachable(parse_address(url), error)
        raise error

    def _look_at(self, reply: Reply, loaded: Sequence[int]) -> None:
        """Stores what the reply reveals about the server, and checks that the requested values can be measured."""
        if server_times.tells(reply):
            self._heads = server_times.Heads()
        if self._slos:
            self._check_counts(reply)
        about = self._remote.describe()
        is_json = "json" in (about.get("encoding"), about.get("reply_encoding"))
        if is_json and self._json_ns is None:
            self._json_ns = self._time_codings(reply, loaded)

    def prepare(self, loaded: Sequence[int]) -> None:
        """Encodes the requests of the samples that LoadGen has loaded. Like loading, encoding is not timed. With --qdl,
        each request is encoded when it is due instead, because a query dispatch library must not cache queries. Raises
        ConfigError if the samples cannot be put into shared memory although an option requires shared memory.
        """
        if self._shared is not None:
            self._shared.place(loaded)
        if self._joined is not None:
            self._joined.prepare(loaded)
        self._facts.note(loaded)
        dataset = self._answerer.dataset
        is_live = isinstance(dataset, HasLiveHistory) and dataset.live_history
        if self.nodes is None and not is_live:
            self._flights.prepare(loaded)

    def _time_codings(self, reply: Reply, loaded: Sequence[int]) -> int:
        """Returns the median time in ns to encode a request and to decode its reply."""
        spent_ns = []
        for _ in range(_CODINGS):
            begun_ns = perf_counter_ns()
            self._remote.request(self._answerer.dataset.batch(self._batch(loaded)))
            self._remote.answer(reply, self._max_batch)
            spent_ns.append(perf_counter_ns() - begun_ns)
        return int(median(spent_ns))

    def _check_counts(self, reply: Reply) -> None:
        """Raises ConfigError if an SLO on token times cannot be judged, because replies lack token counts."""
        assert isinstance(self._remote, HasReader)
        reader = self._remote.reader()
        try:
            reader.answer(reply)
        except CutOff:
            # The run will count a cut-off answer as a failure. A later reply shows whether the server counts tokens.
            return
        if reader.usage.output is None:
            raise ConfigError(
                f"--slo {self._slos[0]} needs token counts, but the server does not count the tokens of its answers: drop it, or "
                "have the server send `usage` or token ids"
            )

    def _batch(self, loaded: Sequence[int]) -> list[int]:
        return [loaded[i % len(loaded)] for i in range(self._max_batch)]

    def dispatcher(
        self,
        plan: LoadPlan,
        inline: bool,
        journal: Journal,
        row: AnswerRow,
        failures: Failures,
        complete: Any,
    ) -> DirectDispatcher | InlineRemoteDispatcher:
        """Makes the dispatcher. complete: receives the responses; None if LoadGen receives them."""
        most = merged_samples(self._max_batch, row)
        self._totals = self._totals_now()
        delivery = self._delivery_class(
            self._remote,
            self._answerer.postprocess,
            responder_for(most, row, complete),
            journal.remote_writer(),
            row,
            failures,
            most,
            self._heads,
            token_latencies=plan.token_latencies,
            first_tokens=plan.token_latencies and not scenario_named(plan.scenario).all_at_once,
            itl_bound_ns=next((slo.bound_ns for slo in self._slos if slo.of == "itl"), None),
        )
        self._delivery = delivery
        self._tokens, self._journal = delivery.tokens, journal
        self._flights.forget()
        if isinstance(self._flights, CancellingFlights) and plan.cancel_share:
            self._flights.choose(cancelled.chosen(plan).tobytes(), plan.cancel_after_ns)
        if self.probes is not None:
            self.probes.begin(journal, plan.seeds.schedule)
        cls = InlineRemoteDispatcher if inline else DirectDispatcher
        self._dispatcher = cls(self._flights, delivery, self._max_batch, journal.issuer())
        return self._dispatcher

    def count_anew(self) -> None:
        """Restarts the token counts. Call this only when no request is in flight."""
        self._tokens = self._delivery.count_anew()

    def _totals_now(self) -> ServerTotals | None:
        """Returns the server's statistics if there is only one server and its replies do not report times."""
        one = self._heads is None and len(self._urls) == 1
        return self._backend.totals() if one else None

    def _server_times(self) -> Mapping[str, Any] | None:
        if self._heads is not None:
            return server_times.from_heads(self._heads)
        return server_times.from_totals(self._totals, self._totals_now())

    def write(self, outdir: Path) -> None:
        """Ends the probes after the load, and writes the data that the journal cannot hold to `outdir`."""
        if self.probes is not None:
            self.probes.end(outdir)
        self._facts.write(outdir)

    def close(self) -> None:
        self._flights.close()
        if self.probes is not None:
            self.probes.close()
        if self._shared is not None:
            self._shared.close()
        if self.nodes is not None:
            self.nodes.close()

    def _peers(self) -> Iterator[Mapping[str, Any]]:
        """Yields the servers in the order of --url, with their names if --qdl is set."""
        nodes = self.nodes.nodes if self.nodes is not None else [None] * len(self._urls)
        for url, (address, local), node in zip(
            self._urls, self._flights.peers(), nodes, strict=True
        ):
            yield {
                "url": url,
                "address": address,
                "local": local,
                "name": node.name if node is not None else "",
                "round_trip_ns": node.round_trip_ns if node is not None else None,
            }

    def summary(
        self, failures: Failures, in_order: Sequence[int] | None = None
    ) -> Mapping[str, Any]:
        """Returns `client` for the `ended` message. in_order: see `sent.summary`."""
        found = self._ceiling
        return {
            "dispatcher": "direct" if isinstance(self._dispatcher, DirectDispatcher) else "inline",
            "peers": list(self._peers()),
            "sut_name": self.nodes.given if self.nodes is not None else "",
            "connections": self._connections,
            "request_timeout_s": self._timeout_s,
            "ceiling_per_s": found.per_s if found else None,
            "floor_p50_ns": found.floor_p50_ns if found else None,
            "no_ceiling": "" if found else self._no_ceiling,
            "busy_shares": list(self._dispatcher.busy_shares),
            "waited": self._flights.waited,
            "resent": self._flights.resent,
            "reopened": self._flights.reopened,
            "outage_s": self._flights.outage_s,
            "closes_after": min(filter(None, self._flights.closes_after), default=0),
            "server_gone": self._gone(),
            "failures": dict(failures.kinds),
            "server_times": self._server_times(),
            "json_ns": self._json_ns,
            "tokens": self._token_summary(in_order),
        }

    def _gone(self) -> str:
        """Returns the reason why the run gave up its servers. Otherwise, returns the list of servers whose queries
        other servers answered, or ''.
        """
        if self._flights.gone is not None:
            return str(self._flights.gone)
        refused = sorted(self._flights.refused.items())
        return "; ".join(
            f"other servers answered the queries of {self._urls[number]}: {one_line(error)}"
            for number, error in refused
        )

    def _token_summary(self, in_order: Sequence[int] | None) -> Mapping[str, Any] | None:
        if self._tokens is None:
            return None
        remote, dataset = self._remote, self._answerer.dataset
        compared = self._tokens.compared(remote, dataset)
        issued: list[int] = self._journal.index[: self._journal.issued].tolist()
        found = sent.summary(remote, dataset, issued, in_order)
        return {**self._tokens.summary(), **compared, **found}
