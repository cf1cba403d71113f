"""Makes the graphs inside If, Loop and Scan independent of the model, so that a brick can contain them."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from harness.models.graph.graph import KEPT_ELEMENTS
from harness.types import Array

_EXTERNAL = 1
"""Value of onnx.TensorProto.EXTERNAL."""

CONTROL_INPUTS: Mapping[str, tuple[int, ...]] = {"If": (0,), "Loop": (0, 1)}
"""Positions of inputs that determine which layers run, and how often they run."""


def subgraphs(attribute: Any) -> Iterator[Any]:
    """Yields the graphs in an attribute."""
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs


def stand_alone(onnx: Any, graph: Any, outer: Mapping[str, str], prefix: str, seed: int) -> None:
    """Renames everything in `graph` and replaces large weights with made-up numbers. Changes `graph` in place.
    outer: maps a name outside the graph to its name in the brick. prefix: put before each inner name to prevent
    collisions with names in the brick.
    """
    random = np.random.default_rng(seed)
    tensors = [*graph.initializer, *(t for node in graph.node for t in _constants(node))]
    for tensor in tensors:
        if int(np.prod(tensor.dims)) > KEPT_ELEMENTS or tensor.data_location == _EXTERNAL:
            _make_up(onnx, tensor, random)
    names = {name: f"{prefix}{i}" for i, name in enumerate(dict.fromkeys(_own_names(graph)))}
    known = {**outer, **names}
    for value in (*graph.input, *graph.output, *graph.initializer):
        value.name = known.get(value.name, value.name)
    for sparse in graph.sparse_initializer:
        sparse.values.name = known[sparse.values.name]
    for number, node in enumerate(graph.node):
        node.name = node.doc_string = ""
        for side in (node.input, node.output):
            renamed = [known.get(name, name) for name in side]
            del side[:]
            side.extend(renamed)
        for attribute in node.attribute:
            for inner in subgraphs(attribute):
                stand_alone(onnx, inner, known, f"{prefix}{number}_", seed)
    del graph.value_info[:]
    graph.doc_string = ""


def _own_names(graph: Any) -> Iterator[str]:
    yield from (value.name for value in (*graph.input, *graph.initializer))
    yield from (sparse.values.name for sparse in graph.sparse_initializer)
    yield from (name for node in graph.node for name in node.output if name)


def _constants(node: Any) -> Iterator[Any]:
    if node.op_type == "Constant":
        yield from (a.t for a in node.attribute if a.HasField("t"))


def _make_up(onnx: Any, tensor: Any, random: np.random.Generator) -> None:
    """Replaces weights with made-up numbers. Keeps integers that may be shapes or indices."""
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
    is_elsewhere = tensor.data_location == _EXTERNAL
    if dtype.kind in "iubO" and not is_elsewhere:
        return
    shape = tuple(tensor.dims)
    array: Array = np.zeros(shape, dtype)
    if dtype.kind not in "iubO":
        fan_in = max(1, int(np.prod(shape[1:])))
        array = (random.standard_normal(shape) * (2.0 / fan_in) ** 0.5).astype(dtype)
    name = tensor.name
    tensor.Clear()
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, name))
