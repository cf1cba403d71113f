"""Computes a model's memory: weights, inputs, activations, and their growth with the input.

Pure, of a graph's shapes. Activations are counted alive from the node that makes them to the last
one that takes them, nodes in the file's order: the least that any runtime can do without computing
a tensor twice or in place. What was measured stands beside it in the table.
"""

from collections.abc import Mapping
from typing import NamedTuple

from harness.models.graph.graph import Graph


class Footprint(NamedTuple):
    """In bytes.
    activations: most alive at once, including inputs and outputs of the model.
    unknown: tensors whose size depends on data; excluded from all numbers.
    """

    weights: int
    inputs: int
    activations: int
    unknown: int


def footprint(graph: Graph) -> Footprint:
    weights = sum(c.tensor.size_bytes or 0 for c in graph.constants.values())
    sizes = _activations(graph)
    known = {name: size for name, size in sizes.items() if size is not None}
    return Footprint(
        weights=weights,
        inputs=sum(known.get(name, 0) for name in graph.inputs),
        activations=_most_alive(graph, known),
        unknown=len(sizes) - len(known),
    )


def _activations(graph: Graph) -> Mapping[str, int | None]:
    """Tensor -> bytes, for all tensors that depend on the model's input."""
    outputs = [name for node in graph.layers for name in node.outputs if name]
    tensors = {name: graph.tensors.get(name) for name in (*graph.inputs, *outputs)}
    return {name: tensor.size_bytes if tensor else None for name, tensor in tensors.items()}


def _most_alive(graph: Graph, sizes: Mapping[str, int]) -> int:
    last = {name: len(graph.nodes) for name in graph.outputs}
    for i, node in enumerate(graph.nodes):
        for name in node.inputs:
            last[name] = max(last.get(name, i), i)
    ends: dict[int, list[str]] = {}
    for name, i in last.items():
        ends.setdefault(i, []).append(name)
    alive = most = sum(sizes.get(name, 0) for name in graph.inputs)
    for i, node in enumerate(graph.nodes):
        alive += sum(sizes.get(name, 0) for name in node.outputs if name)
        most = max(most, alive)
        alive -= sum(sizes.get(name, 0) for name in ends.get(i, ()))
    return most


def slope(points: Mapping[float, float]) -> float:
    """Slope of log(bytes) over log(size): 1 for linear growth, 2 for quadratic."""
    import numpy as np

    x, y = (np.log(np.array(list(v), float)) for v in (points.keys(), points.values()))
    return float(np.polyfit(x, y, 1)[0])
