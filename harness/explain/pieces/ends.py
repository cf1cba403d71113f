"""Finds where a piece of a graph begins and ends: its input tensors, output tensors and known tensors."""

from collections.abc import Iterator, Sequence

from harness.models.graph.graph import Graph, Node, Tensor

DEQUANTISE, QUANTISE = "DequantizeLinear", "QuantizeLinear"

UNKNOWN = Tensor("undefined", (None,))
"""A tensor whose type and shape could not be inferred."""

NUMERIC_TYPES = frozenset([
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
    "float32", "float64", "bfloat16",
])  # fmt: skip
"""Data types for which numbers can be made up."""


def dequantisers(graph: Graph, piece: Sequence[Node]) -> list[Node]:
    """Returns the DequantizeLinear nodes outside the piece whose outputs the piece reads. The result includes nodes
    that compute weights.
    """
    inside = {node.index for node in piece}
    makers = (graph.producer.get(name) for node in piece for name in node.inputs)
    nodes = {
        maker.index: maker
        for maker in makers
        if maker is not None and maker.op_type == DEQUANTISE and maker.index not in inside
    }
    # Nodes that compute weights come first. This order is the same as for a brick that is read from a file, because the
    # file's layers already include the other nodes.
    return sorted(nodes.values(), key=lambda maker: not maker.from_constants)


def can_be_made_up(graph: Graph, name: str) -> bool:
    """Whether an activation's type and shape are known, so that a piece can begin with it."""
    tensor = graph.tensors.get(name, UNKNOWN)
    return tensor.dtype in NUMERIC_TYPES and tensor.elements is not None


def entering(graph: Graph, piece: Sequence[Node]) -> list[str]:
    """Returns the names of the activations that a piece reads from outside, in reading order."""
    outputs = {name for node in piece for name in node.outputs}
    names = dict.fromkeys(name for node in piece for name in node.inputs if name)
    return [name for name in names if name not in outputs and not is_known(graph, name)]


def leaving(graph: Graph, piece: Sequence[Node]) -> list[str]:
    """Returns the names of the piece's outputs that other layers read or that are outputs of the model. If a layer
    outside the piece reads a DequantizeLinear node, the input of that node is returned instead.
    """
    inside = {node.index for node in piece}
    return [
        name
        for node in piece
        for name in node.outputs
        if name
        and (
            name in graph.outputs
            or any(reader not in inside for reader in _readers(graph, node, name))
        )
    ]


def _readers(graph: Graph, maker: Node, name: str) -> Iterator[int]:
    for reader in graph.consumers.get(name, ()) if maker.op_type != DEQUANTISE else ():
        yield reader.index
        if reader.op_type == DEQUANTISE:
            yield from (n.index for out in reader.outputs for n in graph.consumers.get(out, ()))


def is_known(graph: Graph, name: str) -> bool:
    """Whether a tensor is a constant of the model or is computed only from constants."""
    maker = graph.producer.get(name)
    return name in graph.constants or (maker is not None and maker.from_constants)
