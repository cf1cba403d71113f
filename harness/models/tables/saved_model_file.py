"""Reads the tables that a SavedModel indexes. Uses the project's protobuf reader and does not need TensorFlow."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.core.formats.protobuf import fields, mapped, messages
from harness.models.tables.flow import Copy, Flow, Lookup, Operation, Operators

# Field numbers of TensorFlow's saved_model.proto, meta_graph.proto, graph.proto, function.proto,
# node_def.proto, attr_value.proto, tensor.proto and tensor_shape.proto.
_META_GRAPH = 2
_META_GRAPH_DEF, _META_SIGNATURE = 2, 5
_SIGNATURE_INPUT, _INFO_NAME = 1, 1
_GRAPH_NODE, _GRAPH_LIBRARY, _LIBRARY_FUNCTION = 1, 2, 1
_FUNCTION_SIGNATURE, _FUNCTION_NODE, _FUNCTION_RETURN = 1, 3, 4
_OP_NAME, _OP_INPUT, _OP_OUTPUT, _ARGUMENT_NAME = 1, 2, 3, 1
_NODE_NAME, _NODE_OP, _NODE_INPUT, _NODE_ATTRIBUTE = 1, 2, 3, 5
_KEY, _VALUE = 1, 2
_ATTRIBUTE_SHAPE, _ATTRIBUTE_TENSOR, _ATTRIBUTE_FUNCTION = 7, 8, 10
_FUNCTION_NAME = 1
_TENSOR_SHAPE, _TENSOR_CONTENT, _TENSOR_INTS = 2, 4, (7, 10)
_SHAPE_DIM, _DIM_SIZE = 2, 1

_SERVING = "serving_default"
"""The signature that the backend calls if the model contains several signatures."""

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_MOST_NODES = 1_000_000
"""A larger graph is refused, because functions that call each other would otherwise be copied endlessly.
"""

_OPERATORS = Operators(
    first=frozenset((
        "BroadcastTo", "Cast", "ExpandDims", "GatherNd", "GatherV2", "Identity", "IdentityN", "Max", "Min",
        "Pad", "PadV2", "PreventGradient", "Reshape", "ReverseV2", "Roll", "Slice", "Snapshot", "SplitV", "Squeeze",
        "StopGradient", "StridedSlice", "Tile", "TopKV2", "Transpose", "Unpack",
    )),
    several={
        "ClipByValue": (0,), "ConcatV2": (), "Maximum": (), "Minimum": (), "Pack": (), "Split": (1,),
    },
    arithmetic=frozenset((
        "Abs", "Add", "AddN", "AddV2", "Cumsum", "FloorDiv", "Mean", "Mul", "Neg", "Pow", "Prod", "RealDiv",
        "Square", "Sub", "Sum",
    )),
    choice=("Select", "SelectV2"),
    less="Less",
    add="AddV2",
)  # fmt: skip

_LOOKUPS = frozenset((
    "Gather", "GatherNd", "GatherV2", "ResourceGather", "ResourceGatherNd", "SparseSegmentMean",
    "SparseSegmentSqrtN", "SparseSegmentSum",
))  # fmt: skip
"""Operators whose first input is the table and whose second input contains the indices."""

_OF_UNKNOWN = (
    "Case",
    "If",
    "PyFunc",
    "ScatterNd",
    "StatelessCase",
    "StatelessIf",
    "StatelessWhile",
    "While",
)
"""Operators that may select rows, but for which this module has no rule."""

_SAME_SHAPE = ("Cast", "Identity", "ReadVariableOp")
"""Operators that do not change a table's shape. An operator that selects rows may directly follow these operators."""


class _Node(NamedTuple):
    name: str
    kind: str
    inputs: Sequence[str]
    attributes: Mapping[str, memoryview]


class _Function(NamedTuple):
    arguments: Sequence[str]
    results: Sequence[str]
    """Tensors in the function's body, in the order of the outputs."""
    nodes: Sequence[_Node]


def read(path: Path) -> Flow:
    """path: the SavedModel's folder. Raises OSError, and ValueError if the folder's file is not a SavedModel."""
    graphs = list(messages(mapped(path / "saved_model.pb"), _META_GRAPH))
    if not graphs:
        raise ValueError("it has no graph")
    reader = _Reader(graphs[0])
    reader.take_graph()
    copies = (*reader.crossings, *_OPERATORS.copies(reader.operations))
    return Flow(reader.inputs(), copies, [*reader.lookups()])


class _Reader:
    """Collects the nodes of the graph and of the functions that the graph calls. Tensors of each call get unique names."""

    def __init__(self, meta_graph: memoryview) -> None:
        self._meta_graph = meta_graph
        (self._graph,) = messages(meta_graph, _META_GRAPH_DEF)
        library = (
            function
            for part in messages(self._graph, _GRAPH_LIBRARY)
            for function in messages(part, _LIBRARY_FUNCTION)
        )
        self._functions = dict(map(_function, library))
        self.operations: list[Operation] = []
        self.crossings: list[Copy] = []
        self._shapes: dict[str, Sequence[int]] = {}
        """Shapes of variables and constants."""
        self._numbers: dict[str, int] = {}
        """Values of the constants that consist of one integer."""
        self._origins: dict[str, str] = {}
        """Maps a tensor to the tensor with the same content, or to the variable that it was read from."""
        self._calls: set[str] = set()
        """Nodes that call functions. Each output of such a node is a separate tensor; any other node stands for one
        tensor.
        """

    def inputs(self) -> dict[str, str]:
        signatures = {
            _text(entry, _KEY): value
            for entry in messages(self._meta_graph, _META_SIGNATURE)
            for value in messages(entry, _VALUE)
        }
        signature = signatures.get(_SERVING) or next(iter(signatures.values()), memoryview(b""))
        return {
            _text(entry, _KEY): self._tensor("", _text(info, _INFO_NAME))
            for entry in messages(signature, _SIGNATURE_INPUT)
            for info in messages(entry, _VALUE)
        }

    def take_graph(self) -> None:
        self._take([_node(message) for message in messages(self._graph, _GRAPH_NODE)], "")

    def _take(self, nodes: Sequence[_Node], prefix: str) -> None:
        """prefix: text before the names of the nodes' tensors."""
        self._calls |= {prefix + n.name for n in nodes if self._called(n) is not None}
        for node in nodes:
            inputs = [self._tensor(prefix, text) for text in node.inputs if text[:1] != "^"]
            output = prefix + node.name
            if len(self.operations) > _MOST_NODES:
                raise ValueError("it has too many nodes")
            function = self._called(node)
            if function is not None:
                self._take_call(function, inputs, output)
                continue
            self._note(node, output)
            if node.kind in _SAME_SHAPE and inputs:
                self._origins[output] = inputs[0]
            self.operations.append(Operation(node.kind, inputs, [output]))

    def _take_call(self, function: _Function, inputs: Sequence[str], output: str) -> None:
        prefix = output + "/"
        for source, name in zip(inputs, function.arguments, strict=False):
            self._join(source, prefix + name)
        self._take(function.nodes, prefix)
        for number, text in enumerate(function.results):
            self._join(self._tensor(prefix, text), f"{output}:{number}")

    def _join(self, source: str, target: str) -> None:
        self._origins[target] = source
        self.crossings.append(Copy(source, target, is_exact=True))

    def _called(self, node: _Node) -> _Function | None:
        name = node.kind
        if name in _CALLS and "f" in node.attributes:
            (attribute,) = messages(node.attributes["f"], _ATTRIBUTE_FUNCTION)
            name = _text(attribute, _FUNCTION_NAME)
        return self._functions.get(name)

    def _note(self, node: _Node, output: str) -> None:
        """Records the shape of a variable or of a constant."""
        if node.kind in ("VarHandleOp", "VariableV2"):
            shapes = messages(node.attributes.get("shape", memoryview(b"")), _ATTRIBUTE_SHAPE)
            self._shapes.update((output, _sizes(shape)) for shape in shapes)
        elif node.kind == "Const":
            for tensor in messages(
                node.attributes.get("value", memoryview(b"")), _ATTRIBUTE_TENSOR
            ):
                self._shapes.update((output, _sizes(s)) for s in messages(tensor, _TENSOR_SHAPE))
                number = _integer(tensor)
                if number is not None:
                    self._numbers[output] = number

    def _tensor(self, prefix: str, text: str) -> str:
        """text: 'node', 'node:1', or 'node:output:1' in a function."""
        name, *_, number = text.split(":") if ":" in text else [text, "0"]
        return f"{prefix}{name}:{number}" if prefix + name in self._calls else prefix + name

    def lookups(self) -> Iterator[Lookup]:
        for kind, inputs, _ in self.operations:
            if kind in _OF_UNKNOWN:
                yield from (Lookup(name, kind, None) for name in inputs)
            elif kind in _LOOKUPS and len(inputs) > 1:
                shape = self._shapes.get(self._origin(inputs[0]), ())
                axis = 0
                if kind == "GatherV2" and len(inputs) > 2:
                    axis = self._numbers.get(self._origin(inputs[2]), len(shape))
                rows = shape[axis] if -len(shape) <= axis < len(shape) else None
                yield Lookup(inputs[1], kind, min(shape, default=None) if "Nd" in kind else rows)

    def _origin(self, tensor: str) -> str:
        passed = set()
        while tensor in self._origins and tensor not in passed:
            passed.add(tensor)
            tensor = self._origins[tensor]
        return tensor


def _function(message: memoryview) -> tuple[str, _Function]:
    (signature,) = messages(message, _FUNCTION_SIGNATURE)
    returned = {
        _text(entry, _KEY): _text(entry, _VALUE) for entry in messages(message, _FUNCTION_RETURN)
    }
    outputs = (_text(argument, _ARGUMENT_NAME) for argument in messages(signature, _OP_OUTPUT))
    return _text(signature, _OP_NAME), _Function(
        arguments=[_text(a, _ARGUMENT_NAME) for a in messages(signature, _OP_INPUT)],
        results=[returned.get(name, "") for name in outputs],
        nodes=[_node(node) for node in messages(message, _FUNCTION_NODE)],
    )


def _node(message: memoryview) -> _Node:
    attributes = {
        _text(entry, _KEY): value
        for entry in messages(message, _NODE_ATTRIBUTE)
        for value in messages(entry, _VALUE)
    }
    inputs = [str(text, "utf-8") for text in messages(message, _NODE_INPUT)]
    return _Node(_text(message, _NODE_NAME), _text(message, _NODE_OP), inputs, attributes)


def _sizes(shape: memoryview) -> list[int]:
    """-1 stands for an unknown size."""
    sizes = []
    for dim in messages(shape, _SHAPE_DIM):
        size = dict(fields(dim)).get(_DIM_SIZE, 0)
        sizes.append(size - (size >> 63 << 64) if isinstance(size, int) else -1)
    return sizes


def _integer(tensor: memoryview) -> int | None:
    """Returns the number in a constant that consists of one integer, or None for any other tensor."""
    values = dict(fields(tensor))
    content = values.get(_TENSOR_CONTENT)
    if isinstance(content, memoryview) and len(content) in (4, 8):
        return int.from_bytes(content, "little", signed=True)
    for number in _TENSOR_INTS:
        value = values.get(number)
        # A packed field of one byte contains a number from 0 to 127.
        if isinstance(value, memoryview) and len(value) == 1:
            return value[0] if value[0] < 128 else None
        if isinstance(value, int):
            return value - (value >> 63 << 64)
    return None


def _text(message: memoryview, number: int) -> str:
    return next((str(text, "utf-8") for text in messages(message, number)), "")
