"""Cuts a graph into units, the nodes that one kernel computes, each runnable alone.

A convolution with its normalisation, activation and sum is one such unit: measured node by node, a
model looks slower than it is, since what can be fused is not. Units with the same key take the same
time, whatever their weights are.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

import numpy as np

from harness.models.graph.graph import Graph, Node
from harness.types import Array

_SEED = 0


class Unit(NamedTuple):
    """nodes: indices in Graph.nodes, ascending.
    key: digest of what it computes, without names and weights.
    needs: positions of the units whose output it reads.
    """

    nodes: tuple[int, ...]
    key: str
    needs: tuple[int, ...]


def units(graph: Graph, fused: Iterable[Sequence[int]]) -> list[Unit]:
    """Returns units in topological order. fused: groups of nodes that one kernel computes. Groups
    that share a node are joined; a node without a kernel is a unit of its own unless it is
    computed once at load time.
    """
    groups = _joined(graph, fused)
    try:
        ordered, needs = _ordered(graph, groups)
    except CycleError:  # not to be cut so: what is between two of a group's nodes is outside
        ordered, needs = _ordered(graph, [[node.index] for node in graph.layers])
    keys = [unit_key(graph, [graph.nodes[i] for i in group]) for group in ordered]
    return [Unit(*one) for one in zip(map(tuple, ordered), keys, needs, strict=True)]


def _joined(graph: Graph, fused: Iterable[Sequence[int]]) -> list[list[int]]:
    parent = {node.index: node.index for node in graph.layers}

    def root(i: int) -> int:
        while parent[i] != i:
            i = parent[i]
        return i

    for nodes in fused:
        inside = [i for i in nodes if i in parent]
        for i in inside[1:]:
            parent[root(i)] = root(inside[0])
    groups: dict[int, list[int]] = {}
    for i in parent:
        groups.setdefault(root(i), []).append(i)
    return [sorted(group) for group in groups.values()]


def _ordered(
    graph: Graph, groups: Sequence[Sequence[int]]
) -> tuple[list[Sequence[int]], list[tuple[int, ...]]]:
    """Returns the groups in topological order, and for each the positions of those it needs."""
    group_of = {i: g for g, group in enumerate(groups) for i in group}
    needs: dict[int, set[int]] = {g: set() for g in range(len(groups))}
    for i, g in group_of.items():
        makers = (graph.producer.get(name) for name in graph.nodes[i].inputs)
        makers_groups = {group_of.get(maker.index, g) for maker in makers if maker is not None}
        needs[g] |= makers_groups - {g}
    order = list(TopologicalSorter(needs).static_order())
    position = {g: p for p, g in enumerate(order)}
    return [groups[g] for g in order], [tuple(sorted(position[n] for n in needs[g])) for g in order]


def unit_key(graph: Graph, nodes: Sequence[Node]) -> str:
    """A digest of the nodes and their wiring; equal across models."""
    names: dict[str, str] = {}
    described = []
    for node in nodes:
        for name in node.inputs:
            if name and name not in names:
                names[name] = "constant" if _is_constant(graph, name) else f"input {len(names)}"
        names |= {name: f"made {len(names)}.{i}" for i, name in enumerate(node.outputs) if name}
        described.append([graph.key(node), [names.get(name, "") for name in node.inputs]])
    outputs = [names[name] for name in _outputs(graph, nodes)]
    text = json.dumps([described, outputs], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _is_constant(graph: Graph, name: str) -> bool:
    maker = graph.producer.get(name)
    return name in graph.constants or (maker is not None and maker.from_constants)


def _outputs(graph: Graph, nodes: Sequence[Node]) -> list[str]:
    """The outputs read by other nodes or by the model's user; the last output where there is
    none.
    """
    inside = {node.index for node in nodes}
    outputs = [name for node in nodes for name in node.outputs if name]
    taken = [
        name
        for name in outputs
        if name in graph.outputs
        or any(user.index not in inside for user in graph.consumers.get(name, ()))
    ]
    return taken or outputs[-1:]


def inputs_of(graph: Graph, nodes: Sequence[Node]) -> list[str]:
    """Activations that these nodes read from outside, in order."""
    outputs = {name for node in nodes for name in node.outputs}
    taken = dict.fromkeys(n for node in nodes for n in node.inputs if n and n not in outputs)
    return [name for name in taken if not _is_constant(graph, name)]


def cut(graph: Graph, nodes: Sequence[Node]) -> Any:
    """An onnx.ModelProto of these nodes alone. Weights are seeded random numbers, except constants
    small enough for the graph to keep.
    Raises ValueError where a tensor at its ends has no known shape.
    """
    import onnx
    from onnx import helper

    protos = _protos(graph)
    outputs = {name for node in nodes for name in node.outputs}
    taken = dict.fromkeys(n for node in nodes for n in node.inputs if n and n not in outputs)
    constants = [name for name in taken if _is_constant(graph, name)]
    random = np.random.default_rng(_SEED)
    body = helper.make_graph(
        [protos[node.outputs[0]] for node in nodes],
        "unit",
        [_value(graph, name) for name in inputs_of(graph, nodes)],
        [_value(graph, name) for name in _outputs(graph, nodes)],
        [_filled(graph, name, random) for name in constants],
    )
    opsets = [helper.make_opsetid(domain, version) for domain, version in graph.opsets.items()]
    ir_version = max(int(graph.proto.ir_version), 4)
    model = helper.make_model(body, opset_imports=opsets, ir_version=ir_version)
    assert isinstance(model, onnx.ModelProto)
    return model


def _protos(graph: Graph) -> Mapping[str, Any]:
    """By the name of the first output."""
    return {proto.output[0]: proto for proto in graph.proto.graph.node}


def _value(graph: Graph, name: str) -> Any:
    from onnx import helper

    tensor = graph.tensors.get(name)
    if tensor is None or None in tensor.shape:
        raise ValueError(f"the shape of {name!r} is not known")
    return helper.make_tensor_value_info(name, _code(tensor.dtype), list(tensor.shape))


def _filled(graph: Graph, name: str, random: np.random.Generator) -> Any:
    """A constant: its own value where the graph keeps it, else random numbers of its type."""
    from onnx import numpy_helper

    constant = graph.constants.get(name)
    tensor = graph.tensors.get(name)
    if constant is not None and constant.value is not None:
        return numpy_helper.from_array(constant.value, name)
    if tensor is None or None in tensor.shape:
        raise ValueError(f"the shape of {name!r} is not known")
    shape = tuple(n or 0 for n in tensor.shape)
    return numpy_helper.from_array(noise(shape, tensor.dtype, random), name)


def noise(shape: tuple[int, ...], dtype: str, random: np.random.Generator) -> Array:
    """Numbers that neither vanish nor overflow: one axis near 1 (variances, scales), several axes
    scaled by the summed elements (He), integers small. Raises ValueError for any other type.
    """
    try:
        kind = np.dtype(dtype)
    except TypeError:
        raise ValueError(f"no random numbers of type {dtype}") from None
    if kind.kind in "iu":
        return random.integers(0, 3, shape).astype(kind)
    if kind.kind == "b":
        return np.ones(shape, kind)
    if kind.kind != "f":
        raise ValueError(f"no random numbers of type {dtype}")
    if len(shape) < 2:
        return random.uniform(0.5, 1.5, shape).astype(kind)
    values = random.standard_normal(shape, np.float32)
    summed = max(int(np.prod(shape[1:])), 1)
    return np.asarray(values * np.float32((2.0 / summed) ** 0.5), kind)


def _code(dtype: str) -> int:
    from onnx import helper

    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
