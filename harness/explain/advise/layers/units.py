"""Groups a graph's nodes into units: the nodes that one kernel computes.

For example, a convolution with its normalisation, activation and sum is one unit. The nodes are not timed one by one,
because separate nodes are not fused and the model would look slower than it is.
"""

from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

from harness.explain.pieces.cut import Cut
from harness.models.graph.graph import Graph


class Unit(NamedTuple):
    """Nodes that one kernel computes. needs: positions of the units whose output this unit reads."""

    cut: Cut
    needs: tuple[int, ...]

    @property
    def key(self) -> str:
        """The unit's key. Units with the same key take the same time, even with different weights."""
        return self.cut.brick.digest

    def to_json(self) -> dict[str, Any]:
        """Returns the unit as JSON. nodes: indices in Graph.nodes, ascending."""
        nodes = [node.index for node in self.cut.nodes]
        return {"nodes": nodes, "key": self.key, "needs": self.needs}


def units(graph: Graph, fused: Iterable[Sequence[int]]) -> list[Unit]:
    """Returns units in topological order.

    fused: groups of nodes that one kernel computes. Groups that share a node are joined. A node without a kernel
    becomes a separate unit unless it is computed at load time.
    """
    try:
        return _units_in_order(graph, _groups(graph, fused))
    except CycleError:  # because a node between two nodes of a group may not belong to it
        return _units_in_order(graph, [[node.index] for node in graph.layers])


def _groups(graph: Graph, fused: Iterable[Sequence[int]]) -> list[list[int]]:
    group_of = {node.index: {node.index} for node in graph.layers}
    for nodes in fused:
        joined = set[int]().union(*(group_of[i] for i in nodes if i in group_of))
        group_of |= dict.fromkeys(joined, joined)
    return [sorted(group) for i, group in group_of.items() if i == min(group)]


def _units_in_order(graph: Graph, groups: Sequence[Sequence[int]]) -> list[Unit]:
    group_of = {i: g for g, group in enumerate(groups) for i in group}
    needs: dict[int, set[int]] = {g: set() for g in range(len(groups))}
    for i, g in group_of.items():
        makers = (graph.producer.get(name) for name in graph.nodes[i].inputs)
        makers_groups = {group_of.get(maker.index, g) for maker in makers if maker is not None}
        needs[g] |= makers_groups - {g}
    order = list(TopologicalSorter(needs).static_order())
    position = {g: p for p, g in enumerate(order)}
    return [
        Unit(
            Cut(graph, tuple(graph.nodes[i] for i in groups[g])),
            tuple(sorted(position[n] for n in needs[g])),
        )
        for g in order
    ]
