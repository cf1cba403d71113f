"""Prepares the nodes for a run. The module starts nodes on this machine or on a Ray cluster, or checks nodes that the
user has started.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from harness.cluster.processes import NodeProcesses
from harness.core import registry
from harness.core.config.options import NODES, defaults
from harness.core.config.parse import LOCAL_NODES, RAY_NODES
from harness.core.config.run_config import RunConfig, to_plain
from harness.core.console import say
from harness.core.units import counted
from harness.machine.cores import Cores, available
from harness.models.opened.node import check_streams
from harness.run.measured.nodes.opened import open_nodes

LOOPBACK = "127.0.0.1"
NODE_MODULE = "harness.serve.node.child"
PLACER_MODULE = "harness.cluster.ray.placer"

END_LIMIT_S = 15.0
"""Time that the placer may take to end the nodes on a Ray cluster. A slower placer is killed, and then the cluster ends
the nodes.
"""


@contextmanager
def ready_nodes(config: RunConfig) -> Iterator[RunConfig]:
    """Yields the configuration with the nodes' addresses once the nodes are ready. At the end of the block, ends the
    nodes that this function started.

    Raises the error from a node that cannot be started, and ConfigError if a node that the user started does not
    respond or runs a different version.
    """
    assert config.nodes is not None
    if config.nodes.startswith(RAY_NODES):
        assert config.node_count is not None
        _check_count(config, config.node_count)
        with NodeProcesses(PLACER_MODULE, end_limit_s=END_LIMIT_S) as placer:
            say(f"placing {counted(config.node_count, 'node')} on {config.nodes}")
            setup = {"config": to_plain(of_node(config)), "count": config.node_count}
            where = {"nodes": config.nodes, "transport": config.transport, "cwd": str(Path.cwd())}
            placer.start("--nodes", {**setup, **where})
            yield _with(config, placer.addresses())
        return
    if not config.nodes.startswith(LOCAL_NODES):
        addresses = config.nodes.split(",")
        _check_count(config, len(addresses))
        asked = _with(config, addresses)
        with ExitStack() as stack:
            # This call only checks that the nodes respond, because the measured process opens the nodes again.
            open_nodes(asked, stack)
        yield asked
        return
    count = int(config.nodes.removeprefix(LOCAL_NODES))
    _check_count(config, count)
    with NodeProcesses(NODE_MODULE) as processes:
        say(f"starting {counted(count, 'node')} on this machine")
        for number, cpus in enumerate(shares(available(), count)):
            setup = {"config": to_plain(of_node(config)), "cpus": list(cpus), "host": LOOPBACK}
            processes.start(f"node-{number + 1}", setup)
        yield _with(config, processes.addresses())


def _with(config: RunConfig, addresses: Sequence[str]) -> RunConfig:
    return replace(config, node_urls=tuple(f"http://{address}" for address in addresses))


def _check_count(config: RunConfig, count: int) -> None:
    if registry.load("scenario", config.scenario).streams:
        check_streams(config.scenario, count)


def of_node(config: RunConfig) -> RunConfig:
    """Returns the configuration that the run passes to each node."""
    reset = defaults(RunConfig, lambda m: NODES in m["of"])
    return replace(config, **reset, out=None, mlperf=False, user_conf=None, audit=None)


def shares(cores: Cores, count: int) -> Sequence[Sequence[int]]:
    """Returns each node's logical processors, as whole cores. If there are more nodes than cores, several nodes share a
    core.
    """
    groups = cores.groups
    if count >= len(groups):
        return [groups[number % len(groups)] for number in range(count)]
    bounds = [number * len(groups) // count for number in range(count + 1)]
    return [
        [cpu for group in groups[begin:end] for cpu in group] for begin, end in pairwise(bounds)
    ]
