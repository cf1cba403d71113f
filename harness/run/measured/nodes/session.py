"""The session between one run and its nodes: their connections, journal rows and clocks."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from harness.core.config.run_config import RunConfig
from harness.errors import HarnessError
from harness.loadgen.answers import AnswerRow
from harness.machine.clock_offset import ClockOffset, drift_ppm, offsets_of, step_ns
from harness.machine.kernel import boot_id
from harness.run.measured.answerer import Answerer
from harness.run.measured.client.dispatch import (
    Delivery,
    DirectDispatcher,
    InlineRemoteDispatcher,
)
from harness.run.measured.client.session import Session
from harness.run.measured.dispatch.instance import Failures
from harness.run.measured.nodes.links import NodeLink
from harness.run.measured.nodes.opened import OpenNodes
from harness.types import Array
from harness.wire.connections import Server
from harness.wire.flight import Flight
from harness.wire.node_flights import LOST, NodeFlights

_ROW = re.compile(rb"\r\nserver-timing: row;desc=(\d{1,18}),", re.IGNORECASE)
"""Matches the part of a reply head that contains the number of the batch's row in the node's journal."""

_STAMPS = ("received_ns", "taken_ns", "gathered_ns", "inferred_ns", "postprocessed_ns", "sent_ns")
"""Columns of a node's journal, in order."""

Answered = tuple[int, int, bytes, int, int]
"""A tuple: position of the first sample in issue order, node number, reply head, time stamp before the request was
sent, and time stamp of the reply's arrival.
"""


class NodeDelivery(Delivery):
    """A Delivery that also records which row of a node's journal belongs to each answered batch."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.answered: list[Answered] = []
        self.lost: dict[int, int] = {}
        """Maps the number of a lost node to the number of samples that the node held."""

    def deliver(self, done: Sequence[Flight]) -> None:
        keep = self.answered.append
        for flight in done:
            if flight.reply is not None:
                arrived_ns = flight.arrived_ns or flight.read_ns
                keep((flight.first, flight.server, flight.reply.head, flight.taken_ns, arrived_ns))
            elif flight.kind == LOST:
                self.lost[flight.server] = self.lost.get(flight.server, 0) + len(flight.ids)
        super().deliver(done)


class NodeSession(Session):
    """A Session whose servers are nodes."""

    _delivery_class = NodeDelivery
    _flights: NodeFlights
    _delivery: NodeDelivery

    def __init__(
        self,
        config: RunConfig,
        opened: OpenNodes,
        answerer: Answerer,
        max_batch: int,
        slowest_ns: int,
    ) -> None:
        """config: the result of `as_client`."""
        self._opened = opened
        super().__init__(config, answerer, sum(opened.requests), max_batch, slowest_ns)
        self._before: Mapping[int, ClockOffset] = {}

    def _longest_s(self, _config: RunConfig, slowest_ns: int) -> float:
        return self._opened.timeout_s(slowest_ns)

    def _all_connections(self) -> int:
        return self._connections

    def _transport(self, _config: RunConfig, servers: Sequence[Server]) -> NodeFlights:
        opened = self._opened
        return NodeFlights(servers, opened.requests, opened.speeds, self._encode, self._timeout_s)

    def rehearse(self, row: AnswerRow, loaded: Sequence[int]) -> None:
        super().rehearse(row, loaded)
        self._before = self._opened.links.clocks()

    def dispatcher(self, *args: Any) -> DirectDispatcher | InlineRemoteDispatcher:
        made = super().dispatcher(*args)
        if isinstance(made, DirectDispatcher):
            made.sharers = sum(facts.instances for facts in self._opened.facts)
        return made

    def rows(self) -> Mapping[str, Array]:
        """Returns columns with one entry, in any order, for each batch whose row a node reported. Call this after the
        run.

        first: issue order of the batch's first sample. node: node number. asked_ns, arrived_ns: times on this
        machine's clock. Columns in _STAMPS: times on the node's clock.
        """
        links = self._opened.links
        links.lost |= {loss.number for loss in self._flights.losses}
        self._journals, self._no_journal = _journals(links.links, links.lost)
        self._hosts = [self._host(number) for number in range(len(links.links))]
        self._after = self._clocks_after()
        columns = joined(self._delivery.answered, self._journals)
        self._batches = [exchanges(columns, number) for number in range(len(links.links))]
        return columns

    def _host(self, number: int) -> Mapping[str, Any]:
        """Returns a node's machine report, or the reason why the report is missing."""
        links = self._opened.links
        if number in links.lost:
            return {"host": None, "no_host": "the node was lost"}
        try:
            return {"host": links.links[number].host(), "no_host": ""}
        except HarnessError as e:
            return {"host": None, "no_host": str(e)}

    def _clocks_after(self) -> Mapping[int, ClockOffset]:
        try:
            return self._opened.links.clocks()
        except HarnessError:
            return {}

    def summary(
        self, failures: Failures, in_order: Sequence[int] | None = None
    ) -> Mapping[str, Any]:
        return {
            **super().summary(failures, in_order),
            "connections": max(self._opened.requests),
            "nodes": [*map(self._node, range(len(self._urls)))],
        }

    def _peers(self) -> Iterator[Mapping[str, Any]]:
        """Yields the nodes as peers. A node with a local address is not necessarily local: the address may belong to a
        tunnel of Ray or SSH.
        """
        for peer, facts in zip(super()._peers(), self._opened.facts, strict=True):
            yield {**peer, "local": peer["local"] and facts.boot == boot_id()}

    def _node(self, number: int) -> Mapping[str, Any]:
        """Returns the node's entry in `nodes` of the `ended` message."""
        facts = self._opened.facts[number]
        before, after = self._before.get(number), self._after.get(number)
        loss = next((loss for loss in self._flights.losses if loss.number == number), None)
        drift = drift_ppm(before, after) if before and after else None
        batches = self._batches[number]
        clocks = [before, *offsets_of(batches), after]
        longest_ns = int((batches[:, 2] - batches[:, 1]).max(initial=0))
        stepped_ns = step_ns([clock for clock in clocks if clock is not None])
        drifted_ns = longest_ns * (abs(drift[0]) + drift[1]) / 1e6 if drift else 0.0
        return {
            "node": self._opened.links.names[number],
            "facts": facts.to_json(),
            "transport": self._opened.config.transport,
            "clock": after._asdict() if after else before._asdict() if before else None,
            "drift_ppm": drift[0] if drift else None,
            "drift_error_ppm": drift[1] if drift else None,
            "step_ns": stepped_ns,
            "stage_error_ns": None if drift is None else abs(stepped_ns) or round(drifted_ns),
            "lost": loss.how if loss else "",
            "lost_samples": self._delivery.lost.get(number, 0),
            "no_journal": self._no_journal.get(number, ""),
            **self._hosts[number],
        }


def _journals(
    links: Sequence[NodeLink], lost: set[int]
) -> tuple[Mapping[int, Array], Mapping[int, str]]:
    """Returns each node's journal, or the reason why the journal is missing, as two dictionaries keyed by node number."""
    found, reasons = {}, {}
    for number, link in enumerate(links):
        if number in lost:
            reasons[number] = "the node was lost"
            continue
        try:
            found[number] = link.journal()
        except HarnessError as e:
            reasons[number] = str(e)
    return found, reasons


def joined(answered: Sequence[Answered], journals: Mapping[int, Array]) -> Mapping[str, Array]:
    """Returns one column per field, with one entry per batch. Skips batches without a row in a node's journal."""
    first, node, rows, ways = [], [], [], []
    for order, number, head, asked_ns, arrived_ns in answered:
        match, journal = _ROW.search(head), journals.get(number)
        if match is None or journal is None or int(match[1]) >= len(journal):
            continue
        first.append(order)
        node.append(number)
        rows.append(int(match[1]))
        ways.append((asked_ns, arrived_ns))
    columns: dict[str, Array] = {
        "first": np.array(first, np.int64),
        "node": np.array(node, np.int64),
    }
    columns["asked_ns"], columns["arrived_ns"] = np.array(ways, np.int64).reshape(-1, 2).T.copy()
    stamps = np.zeros((len(first), len(_STAMPS)), np.int64)
    for number, journal in journals.items():
        mine = columns["node"] == number
        stamps[mine] = journal[np.array(rows, np.int64)[mine]]
    return {**columns, **{name: stamps[:, i].copy() for i, name in enumerate(_STAMPS)}}


def exchanges(columns: Mapping[str, Array], number: int) -> Array:
    """Returns (batches, 4) time stamps of the batches that a node answered: asked, received, sent, arrived.

    `received` and `sent` are on the node's clock, `asked` and `arrived` on this machine's clock. Each batch serves as a
    ping: the time that the batch spent outside the node is network time, and the error of the clock offset is at most
    half of this time.
    """
    mine = columns["node"] == number
    names = ("asked_ns", "received_ns", "sent_ns", "arrived_ns")
    found: Array = np.stack([columns[name][mine] for name in names], axis=1)
    return found
