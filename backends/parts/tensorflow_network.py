"""Reads the weights, strides and number of multiplications of a TensorFlow function from its graph."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from harness.types import Array, Network

_WEIGHTS = ("float16", "bfloat16", "float32", "float64", "int8", "uint8")
_CONVOLUTIONS = ("Conv2D", "Conv3D", "DepthwiseConv2dNative")
_HIDDEN = frozenset(
    ("While", "StatelessWhile", "If", "StatelessIf", "PartitionedCall", "StatefulPartitionedCall")
) | {"BlockLSTM", "BlockLSTMV2", "LSTMBlockCell", "GRUBlockCell", "CudnnRNNV3", "XlaCallModule"}
"""Operations whose multiplications this module cannot count; if a function contains one, its number of multiplications
is unknown.
"""

Shapes = Sequence[Sequence[int]]


def weights_of(function: Any) -> list[tuple[Sequence[int], str]]:
    """Returns the shape and number type of each variable and constant of a concrete function."""
    variables = [(tuple(v.shape), tf.as_dtype(v.dtype).name) for v in function.variables]
    graph = function.graph.as_graph_def()
    nodes = [*graph.node, *(node for each in graph.library.function for node in each.node_def)]
    tensors = [node.attr["value"].tensor for node in nodes if node.op == "Const"]
    constants = [([d.size for d in t.tensor_shape.dim], tf.as_dtype(t.dtype).name) for t in tensors]
    return [*variables, *constants]


def network_of(call: Callable[..., Sequence[Any]], arrays: Sequence[Array]) -> Network:
    """Returns the network of a function. call: takes and returns flat lists of tensors. arrays: example inputs."""
    specs = [tf.TensorSpec(array.shape, array.dtype) for array in arrays]
    traced = tf.function(lambda *tensors: list(call(*tensors)), autograph=False)
    operations = convert_variables_to_constants_v2(
        traced.get_concrete_function(*specs)
    ).graph.get_operations()
    return Network(
        [
            (tuple(op.outputs[0].shape), op.outputs[0].dtype.name)
            for op in operations
            if op.type == "Const" and op.outputs[0].dtype.name in _WEIGHTS
        ],
        [tuple(op.get_attr("strides")) for op in operations if op.type in _CONVOLUTIONS],
        _total([_macs(op) for op in operations]),
    )


def _total(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _macs(op: Any) -> int | None:
    """Returns the number of multiplications; 0 for an operation without weights, None if the number is unknown."""
    if op.type in _HIDDEN:
        return None
    if op.type not in _RULES:
        return 0
    try:
        inputs = [tensor.shape.as_list() for tensor in op.inputs]
        return _RULES[op.type](op, inputs, op.outputs[0].shape.as_list())
    # The size is unknown, or an Einsum contains an ellipsis.
    except (TypeError, ValueError, KeyError):
        return None


def _product(op: Any, inputs: Shapes, output: Sequence[int]) -> int:
    transposed = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
    return prod(output) * inputs[0][-2 if transposed else -1]


def _einsum(op: Any, inputs: Shapes, _output: Sequence[int]) -> int:
    terms = op.get_attr("equation").decode().partition("->")[0].split(",")
    sizes = {
        letter: size
        for term, shape in zip(terms, inputs, strict=True)
        for letter, size in zip(term, shape, strict=True)
    }
    return prod(sizes.values())


_RULES: Mapping[str, Callable[[Any, Shapes, Sequence[int]], int]] = {
    # Shape of weights: (kernel..., in, out); for depthwise convolutions (kernel..., in, multiplier).
    "Conv2D": lambda _, inputs, output: prod(output) * prod(inputs[1][:-1]),
    "Conv3D": lambda _, inputs, output: prod(output) * prod(inputs[1][:-1]),
    "DepthwiseConv2dNative": lambda _, inputs, output: prod(output) * prod(inputs[1][:2]),
    "Conv2DBackpropInput": lambda _, inputs, _output: prod(inputs[2]) * prod(inputs[1][:-1]),
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _product),
    "Einsum": _einsum,
}
