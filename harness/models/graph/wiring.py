"""Reads the connections between the nodes of an ONNX file: the names of nodes and tensors, without weights and shapes.

The project's protobuf reader works on a memory-mapped file, so this module does not need another package, and needs
little memory even for large files.
"""

from collections.abc import Iterator
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from harness.core.formats import protobuf
from harness.errors import ConfigError
from harness.profiler import WiredNode, Wiring

# Field numbers of onnx.proto.
_MODEL_GRAPH = 7
_GRAPH_NODE, _GRAPH_INITIALIZER, _GRAPH_INPUT, _GRAPH_OUTPUT, _GRAPH_SPARSE = 1, 5, 11, 12, 15
_NODE_INPUT, _NODE_OUTPUT, _NODE_NAME, _NODE_OP_TYPE = 1, 2, 3, 4
_NODE_ATTRIBUTE, _NODE_DOMAIN = 5, 7
_NODE_TEXTS = frozenset({_NODE_INPUT, _NODE_OUTPUT, _NODE_NAME, _NODE_OP_TYPE, _NODE_DOMAIN})
"""Fields of a node that are strings. Other fields are messages (metadata_props) or are not read."""
_ATTRIBUTE_GRAPH, _ATTRIBUTE_GRAPHS = 6, 11
_TENSOR_NAME, _VALUE_NAME, _SPARSE_VALUES = 8, 1, 1


def read_wiring(path: Path, *, may_be_empty: bool = False) -> Wiring:
    """Reads the nodes and their connections. Raises ConfigError if the file is not an ONNX model. may_be_empty: whether
    to accept a graph without nodes.
    """
    try:
        graphs = [_graph(m) for m in protobuf.messages(protobuf.mapped(path), _MODEL_GRAPH)]
    except OSError as e:
        raise ConfigError(f"{path} cannot be read: {e.strerror or e}") from None
    except ValueError as e:  # UnicodeDecodeError is a subclass of ValueError
        raise ConfigError(f"{path} is not an ONNX model: {e}") from None
    if not graphs or not (graphs[-1].nodes or may_be_empty):
        raise ConfigError(f"{path} is not an ONNX model, or has no node: nothing to profile")
    return _in_order(graphs[-1])


def _in_order(wiring: Wiring) -> Wiring:
    """Sorts the nodes topologically. Converters write nodes in various orders, and runtimes accept every order."""
    needs = {
        i: [wiring.producers[t] for t in node.inputs if t in wiring.producers]
        for i, node in enumerate(wiring.nodes)
    }
    if all(before < i for i, all_before in needs.items() for before in all_before):
        return wiring
    try:
        order = list(TopologicalSorter(needs).static_order())
    # The nodes of a cyclic graph keep the file's order, because every runtime refuses such a file and explains why.
    except CycleError:
        return wiring
    return replace(wiring, nodes=[wiring.nodes[i] for i in order])


def _graph(message: memoryview) -> Wiring:
    nodes: list[WiredNode] = []
    initializers: set[str] = set()
    inputs: list[str] = []
    outputs: list[str] = []
    for number, value in protobuf.fields(message):
        if not isinstance(value, memoryview):
            continue
        if number == _GRAPH_NODE:
            nodes.append(_node(value))
        elif number == _GRAPH_INITIALIZER:
            initializers.add(_text(value, _TENSOR_NAME))
        elif number == _GRAPH_SPARSE:
            initializers.update(
                _text(v, _TENSOR_NAME) for v in protobuf.messages(value, _SPARSE_VALUES)
            )
        elif number == _GRAPH_INPUT:
            inputs.append(_text(value, _VALUE_NAME))
        elif number == _GRAPH_OUTPUT:
            outputs.append(_text(value, _VALUE_NAME))
    free = tuple(name for name in inputs if name not in initializers)
    return Wiring(nodes, free, tuple(outputs), frozenset(initializers))


def _node(message: memoryview) -> WiredNode:
    texts: dict[int, list[str]] = {}
    outer: list[str] = []
    for number, value in protobuf.fields(message):
        if not isinstance(value, memoryview):
            continue
        if number == _NODE_ATTRIBUTE:
            outer += _taken_from_outside(value)
        elif number in _NODE_TEXTS:
            texts.setdefault(number, []).append(str(value, "utf-8"))

    def one(number: int) -> str:
        return texts.get(number, [""])[-1]

    return WiredNode(
        one(_NODE_NAME),
        one(_NODE_OP_TYPE),
        one(_NODE_DOMAIN),
        (*texts.get(_NODE_INPUT, ()), *outer),
        tuple(texts.get(_NODE_OUTPUT, ())),
    )


def _taken_from_outside(attribute: memoryview) -> Iterator[str]:
    for number in (_ATTRIBUTE_GRAPH, _ATTRIBUTE_GRAPHS):
        for message in protobuf.messages(attribute, number):
            inner = _graph(message)
            own = {*inner.initializers, *inner.inputs, *inner.producers}
            used = (t for node in inner.nodes for t in node.inputs)
            yield from (t for t in (*used, *inner.outputs) if t and t not in own)


def _text(message: memoryview, number: int) -> str:
    return next((str(text, "utf-8") for text in protobuf.messages(message, number)), "")
