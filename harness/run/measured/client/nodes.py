"""Reads the name of every server, which MLPerf's Network division requires of a query dispatch library (QDL).

The system's name must contain "Network SUT", the QDL must obtain the name with a round trip to each node, and each node
must have a unique name. Source: mlcommons/inference_policies ac93e89, inference_rules.adoc, "QDL Constraints".
"""

import re
from collections.abc import Sequence
from time import perf_counter_ns
from typing import NamedTuple

from harness.core.config.run_config import RunConfig
from harness.errors import ConfigError, one_line
from harness.loadgen.logs import NETWORK_SUT, SAME_MACHINE
from harness.models.opened.remote import nameless, request_timeout_s, servers_of
from harness.remote import HasName, Remote
from harness.wire.grpc.calls import CallLink
from harness.wire.remote_backend import Link, link_to

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._:@/+-]{0,99}")
"""Matches a valid node name. Other characters are not allowed, because LoadGen writes the name into JSON without
escapes, a comma separates nodes, and brackets enclose a node.
"""


class Node(NamedTuple):
    """A server, the name that it reported, and the duration of the request for the name."""

    name: str
    round_trip_ns: int


class Nodes:
    """Extra connections, one per server. Not thread-safe: only LoadGen's thread may use the connections during the run."""

    def __init__(self, config: RunConfig, remote: Remote) -> None:
        """Raises ConfigError if a server has no usable name, or if two servers share a name.

        remote: an opened plug-in.
        """
        if not isinstance(remote, HasName):
            raise ConfigError(nameless(config.backend))
        self._remote: HasName = remote
        servers = servers_of(config)
        timeout_s = request_timeout_s(config)
        self._links = [link_to(server, timeout_s) for server in servers]
        self.nodes: Sequence[Node] = ()
        """The nodes and the names that they reported before the run."""
        self.given = ""
        """The last name that LoadGen received."""
        try:
            self.nodes = [self._asked_at_start(link) for link in self._links]
            _refuse_shared([node.name for node in self.nodes], config.url)
        except BaseException:
            self.close()
            raise

    def _asked_at_start(self, link: Link | CallLink) -> Node:
        # The connection is opened before the timing starts, because the time must cover only one round trip.
        link.open_at_start()
        begun_ns = perf_counter_ns()
        name = self._remote.name(link.exchange_at_start)
        took_ns = perf_counter_ns() - begun_ns
        if not _NAME.fullmatch(name):
            has = f"the name {name!r:.120}" if name else "no name"
            raise ConfigError(
                f"--qdl: the server at {link.server.address} reports {has}: give it a name of letters, digits "
                "and spaces, e.g. `serve --name node-1` or `tritonserver --id node-1`"
            )
        return Node(name, took_ns)

    def sut_name(self) -> str:
        """Asks every server for its name, and returns the SUT name for LoadGen. Never raises an error, because an error
        would crash LoadGen.

        If a server does not reply or its name has changed, the SUT name lacks the words that the rules require.
        """
        self.given = self._sut_name()
        return self.given

    def _sut_name(self) -> str:
        found = []
        for link, node in zip(self._links, self.nodes, strict=True):
            try:
                name = self._remote.name(link.exchange)
            except Exception as e:  # noqa: BLE001 - an error of the network or a plug-in
                return f"no name from {link.server.address}: {_plain(one_line(e))}"
            if name != node.name:
                return f"another name from {link.server.address}: {_plain(name)}"
            found.append(f"{name} {SAME_MACHINE}" if link.is_local() else name)
        return f"{NETWORK_SUT}: {', '.join(found)}"

    def close(self) -> None:
        for link in self._links:
            link.close()


def _refuse_shared(names: Sequence[str], urls: Sequence[str]) -> None:
    for i, name in enumerate(names):
        if name in names[:i]:
            raise ConfigError(
                f"--qdl: {urls[names.index(name)]} and {urls[i]} are both called {name!r}: give each server a "
                "different name, e.g. `serve --name node-2` or `tritonserver --id node-2`"
            )


def _plain(text: str) -> str:
    """Replaces characters that would break LoadGen's JSON."""
    return re.sub(r"[^ !#-\[\]-~]", "?", text)[:200]
