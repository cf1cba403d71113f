"""Opens the nodes of a run in the measured process, which then treats them as servers."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from harness.core import registry
from harness.core.config.options import MACHINE, NODES, defaults
from harness.core.config.run_config import RunConfig
from harness.models.manifest.model import Model
from harness.models.opened.node import (
    BACKEND,
    NodeFacts,
    by_indices,
    own_code,
    refuse_differences,
)
from harness.models.opened.remote import REQUEST_TIMEOUT_S
from harness.run.measured.nodes.data import NodeData
from harness.run.measured.nodes.links import NodeLinks
from harness.types import Backend, BackendSetup, Dataset, TensorSpec
from harness.wire.remote_backend import remote_backend

_CLIENT = "kserve"

BATCHES_AN_INSTANCE = 2
"""Number of batches that a node holds per instance: one is being computed, and one is waiting."""

MOST_CONNECTIONS = 4096
"""All nodes together get at most this many connections. Each connection takes a file descriptor."""

MOST_BLOCKING = 64
"""At most this many connections warm up and calibrate at the same time. Each connection takes one thread."""


def as_client(config: RunConfig) -> RunConfig:
    """Returns the configuration of the measured process, which treats nodes as servers."""
    return replace(
        config,
        **defaults(RunConfig, lambda m: MACHINE in m["of"] or m["of"] == (NODES,)),
        backend=_CLIENT,
        backend_option=(),
        url=config.node_urls,
        no_resend=True,
        # Whoever started a node has already agreed to load the node's host.
        yes_load_this_host=True,
        hook=config.hook if config.inputs_on_wire else None,
        plugin_sha256=(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenNodes:
    """The nodes of a run."""

    links: NodeLinks
    facts: Sequence[NodeFacts]
    """Facts of the nodes, in the order of --nodes."""
    config: RunConfig
    """The run's configuration before `as_client` changes it."""

    @property
    def first(self) -> NodeFacts:
        return self.facts[0]

    @property
    def requests(self) -> Sequence[int]:
        """Returns the number of requests that each node may hold at once.

        Per instance, one batch is being computed and one batch is waiting. In Server, however, a request contains only
        the samples that arrived together (usually one), and the node forms the batches.
        """
        scenario = registry.load("scenario", self.config.scenario)
        # A stream needs only one connection, because a stream issues a query only after the previous answer.
        if scenario.streams:
            return [facts.instances for facts in self.facts]
        of_a_batch = 1 if scenario.all_at_once else self.max_batch
        most = max(BATCHES_AN_INSTANCE, MOST_CONNECTIONS // len(self.facts))
        return [
            min(most, BATCHES_AN_INSTANCE * facts.instances * of_a_batch) for facts in self.facts
        ]

    @property
    def speeds(self) -> Sequence[float]:
        return [facts.rate_per_s for facts in self.facts]

    @property
    def max_batch(self) -> int:
        return min(facts.max_batch for facts in self.facts)

    def backends(self, model: Model, stack: ExitStack) -> list[Backend]:
        """Returns one blocking connection per batch that a node may hold, up to MOST_BLOCKING."""
        on_wire = self.config.inputs_on_wire
        options = {} if on_wire else {"served": by_indices(model.name)}
        # Sample 0 is loaded, because the backend uses this sample to find out the shape and type of an answer.
        self.links.load([0])
        setup = BackendSetup(
            model=None,
            model_name=model.name,
            inputs=model.inputs if on_wire else (),
            threads=1,
            instances=1,
            max_batch=self.max_batch,
            owns_cores=False,
            options=options,
        )
        remote = registry.load("backend", _CLIENT)(setup)
        timeout_s = self.timeout_s(0)
        made: list[Backend] = []
        for turn in range(max(self.requests)):
            for link, requests in zip(self.links.links, self.requests, strict=True):
                if turn < requests and len(made) < max(MOST_BLOCKING, len(self.facts)):
                    each = remote_backend(remote, link.server, timeout_s, is_open=bool(made))
                    made.append(stack.enter_context(each))
        return made

    def data(self, dataset: Dataset) -> Dataset:
        """Returns the driver's dataset. The batches of this dataset contain either the samples or only their indices.

        Raises ConfigError if the driver's data differ from the nodes' data.
        """
        digest = dataset.describe().get("digest")
        nodes = dict(zip(self.links.names, self.facts, strict=True))
        refuse_differences(nodes, {"the data": digest, "the number of samples": len(dataset)})
        return dataset if self.config.inputs_on_wire else NodeData(dataset, self.links.load)

    def timeout_s(self, slowest_ns: int) -> float:
        """Returns the time after which a node with an unanswered batch counts as lost."""
        asked_ns = self.config.request_timeout_ns
        asked_s = REQUEST_TIMEOUT_S if asked_ns is None else asked_ns / 1e9
        slowest_ns = max(slowest_ns, *(facts.slowest_batch_ns for facts in self.facts))
        return max(asked_s, 20 * slowest_ns / 1e9)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self.first.specs


def open_nodes(config: RunConfig, stack: ExitStack) -> OpenNodes:
    """Opens all nodes; `stack` closes the connections. Raises a ConfigError that lists every difference."""
    links = NodeLinks(config.node_urls)
    stack.callback(links.close)
    facts = links.facts()
    refuse_differences(facts, {**own_code(), BACKEND: registry.short_name(config.backend)})
    return OpenNodes(links=links, facts=list(facts.values()), config=config)
