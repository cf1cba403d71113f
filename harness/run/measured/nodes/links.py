"""Sends control requests to the nodes, which report facts, clocks and journals, and load samples."""

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from secrets import token_bytes
from typing import Any, TypeVar

import numpy as np

from harness.core.clock import wall_ns
from harness.core.config.address import parse_address
from harness.errors import ConfigError, HarnessError, one_line
from harness.machine.clock_offset import ClockOffset, Ping, clock_offset
from harness.models.opened.node import IN_USE, RUN_BYTES, NodeFacts
from harness.remote import Reply, Request
from harness.types import Array
from harness.wire.connections import Server
from harness.wire.http1 import BadReply
from harness.wire.remote_backend import Link

LOAD_LIMIT_S = 600.0
"""If a node takes longer than this to load the samples of a run, loading fails."""

ASK_LIMIT_S = 10.0
LEAVE_LIMIT_S = 1.0

_STAMPS = 6
_OK = 200
_T = TypeVar("_T")


class NodeLink:
    """An extra connection to one node for control requests. Reports errors as ConfigErrors with the node's address."""

    def __init__(self, url: str) -> None:
        self.server = Server(address=parse_address(url))
        self.name = self.server.address.authority
        self._links = {
            limit: Link(self.server, limit, option="")
            for limit in (ASK_LIMIT_S, LOAD_LIMIT_S, LEAVE_LIMIT_S)
        }

    def facts(self) -> NodeFacts:
        about = self._json(Request("/harness/node", method="GET"))
        try:
            return NodeFacts.from_json(about)
        except TypeError:
            raise ConfigError(
                f"node-differs: {self.name} runs {about.get('version', 'an unknown version')} of the harness, which "
                "reports different facts: install the same version there"
            ) from None

    def load(self, run: bytes, indices: Sequence[int]) -> None:
        """Makes the node load these samples, drop its earlier samples and clear its journal.

        run: identifier of this run. A node refuses the request while another run uses the node.
        """
        body = np.asarray(indices, "<i4").tobytes()
        self._asked(Request("/harness/load", body=(run, body)), LOAD_LIMIT_S)

    def leave(self, run: bytes) -> None:
        """Releases the node, so that another run can use it immediately."""
        self._asked(Request("/harness/leave", body=(run,)), LEAVE_LIMIT_S)

    def clock(self) -> ClockOffset:
        """Measures how far the node's clock is ahead of this machine's clock."""
        return clock_offset(self._ping)

    def _ping(self) -> Ping:
        sent_ns = wall_ns()
        answer = self._json(Request("/harness/clock", method="GET"))
        return Ping(sent_ns, answer["arrived_ns"], answer["now_ns"], wall_ns())

    def journal(self) -> Array:
        """Returns (rows, 6) int64 times in ns on the node's clock.

        Columns: received, taken, gathered, inferred, postprocessed, sent.
        """
        reply = self._asked(Request("/harness/journal", method="GET"), ASK_LIMIT_S)
        rows: Array = np.frombuffer(bytes(reply.body), "<i8")
        if rows.size % _STAMPS:
            raise ConfigError(f"the journal of {self.name} is not complete")
        return rows.reshape(-1, _STAMPS)

    def host(self) -> dict[str, Any]:
        """Returns the machine data that the node has recorded since it loaded the samples, in the format of `host` in
        result.json.
        """
        return self._json(Request("/harness/host", method="GET"))

    def _json(self, request: Request) -> dict[str, Any]:
        reply = self._asked(request, ASK_LIMIT_S)
        try:
            content = json.loads(bytes(reply.body))
        except ValueError:
            content = None
        if not isinstance(content, dict):
            raise ConfigError(
                f"--nodes: {self.name} answers, but is not a node: start it with `serve --node`"
            )
        return content

    def _asked(self, request: Request, limit_s: float) -> Reply:
        try:
            reply = self._links[limit_s].exchange(request)
        except (OSError, BadReply) as e:
            raise ConfigError(
                f"--nodes: {self.name} does not answer ({one_line(e)}): check that `serve --node` runs there"
            ) from e
        if reply.status == IN_USE:
            raise ConfigError(
                f"--nodes: {self.name} is in use by another run: wait until it ends, or list another node"
            )
        if reply.status != _OK:
            said = one_line(bytes(reply.body[:300]).decode("utf-8", "replace"))
            raise ConfigError(
                f"--nodes: {self.name} answered {reply.status} to {request.path} ({said}): it must be a `serve --node` "
                "of this version"
            )
        return reply

    def close(self) -> None:
        for link in self._links.values():
            link.close()


class NodeLinks:
    """Links to all nodes of a run, in the order of --nodes. Requests go to all nodes at the same time."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.links = [NodeLink(url) for url in urls]
        self._run = token_bytes(RUN_BYTES)
        self._loaded = False
        self.lost: set[int] = set()
        """Numbers of the lost nodes, which get no further requests."""

    @property
    def names(self) -> Sequence[str]:
        return [link.name for link in self.links]

    def facts(self) -> Mapping[str, NodeFacts]:
        """Returns the nodes' facts by address. Raises one ConfigError that lists every node that did not answer."""
        found = self._each(NodeLink.facts)
        names: dict[str, str] = {}
        for number, facts in found.items():
            name = self.links[number].name
            other = names.setdefault(facts.process, name)
            if other != name:
                raise ConfigError(
                    f"--nodes: {other} and {name} are the same node: drop one of them"
                )
        return {self.links[number].name: facts for number, facts in found.items()}

    def load(self, indices: Sequence[int]) -> None:
        self._loaded = True
        self._each(lambda link: link.load(self._run, indices))

    def clocks(self) -> dict[int, ClockOffset]:
        """Returns clock offsets by node number. Measures one node at a time, because simultaneous measurements would
        disturb each other.
        """
        return {
            number: link.clock()
            for number, link in enumerate(self.links)
            if number not in self.lost
        }

    def _each(self, ask: Callable[[NodeLink], _T]) -> dict[int, _T]:
        """Calls `ask` for each node, and returns the results by node number. Skips lost nodes."""
        here = [number for number in range(len(self.links)) if number not in self.lost]
        problems: list[str] = []
        found: dict[int, _T] = {}
        with ThreadPoolExecutor(max(1, min(64, len(here)))) as threads:
            asked = {number: threads.submit(ask, self.links[number]) for number in here}
            for number, one in asked.items():
                try:
                    found[number] = one.result()
                except HarnessError as e:
                    problems.append(str(e))
        if problems:
            raise ConfigError("\n".join(problems))
        return found

    def close(self) -> None:
        if self._loaded:
            with suppress(HarnessError):
                self._each(lambda link: link.leave(self._run))
        for link in self.links:
            link.close()
