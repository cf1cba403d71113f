"""Reads the tables that an ONNX file indexes, with the project's protobuf reader.

Does not read values, and therefore also finds tables in other files (external data).
"""

from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.core.formats.onnx_tensors import tensor_of
from harness.core.formats.protobuf import fields, mapped, messages
from harness.models.tables.flow import Copy, Flow, Lookup, Operation, Operators

# Field numbers of onnx.proto.
_MODEL_GRAPH = 7
_GRAPH_NODE, _GRAPH_INITIALIZER, _GRAPH_INPUT, _GRAPH_OUTPUT, _GRAPH_VALUE_INFO = 1, 5, 11, 12, 13
_NODE_INPUT, _NODE_OUTPUT, _NODE_OP_TYPE, _NODE_ATTRIBUTE, _NODE_DOMAIN = 1, 2, 4, 5, 7
_ATTRIBUTE_NAME, _ATTRIBUTE_INT, _ATTRIBUTE_TENSOR = 1, 3, 5
_ATTRIBUTE_GRAPH, _ATTRIBUTE_GRAPHS = 6, 11
_VALUE_NAME = 1
_VALUE_SIZES = (2, 1, 2, 1)
"""The field numbers on the path to the dimensions: ValueInfoProto.type.tensor_type.shape.dim."""
_DIM_VALUE = 1

_DOMAINS = ("", "ai.onnx", "com.microsoft")
"""Domains of known operators; all other operators, and functions in the file, count as unknown.
"""

_OPERATORS = Operators(
    first=frozenset((
        "Cast", "CastLike", "Clip", "Compress", "Expand", "Flatten", "Gather", "GatherElements",
        "GatherND", "Identity", "Pad", "ReduceMax", "ReduceMin", "Reshape", "ReverseSequence", "Slice",
        "Split", "Squeeze", "Tile", "TopK", "Transpose", "Trilu", "Unique", "Unsqueeze",
    )),
    several={
        "Concat": (), "Max": (), "Min": (), "ScatterElements": (0, 2), "ScatterND": (0, 2),
    },
    arithmetic=frozenset((
        "Abs", "Add", "BitShift", "BitwiseNot", "BitwiseOr", "BitwiseXor", "CumSum", "Div", "Mean",
        "Mul", "Neg", "Pow", "ReduceProd", "ReduceSum", "Sub", "Sum",
    )),
    choice=("Where",),
    less="Less",
    add="Add",
)  # fmt: skip

_LOOKUPS: Mapping[str, Sequence[tuple[int, int]]] = {
    "Gather": ((1, 0),),
    "GatherBlockQuantized": ((1, 0),),
    "GatherElements": ((1, 0),),
    "GatherND": ((1, 0),),
    "ScatterElements": ((1, 0),),
    "ScatterND": ((1, 0),),
    "EmbedLayerNormalization": ((0, 2), (1, 4), (8, 3)),
    "QEmbedLayerNormalization": ((0, 2), (1, 4)),
}
"""Maps an operator to pairs of input positions: the indices and their table."""

_OF_SEVERAL_AXES = ("GatherND", "ScatterND")
"""Operators whose index consists of several numbers, one per leading axis. The last size of the indices' shape is the
number of these axes.
"""

_SAME_SHAPE = ("Cast", "DequantizeLinear", "Identity", "QuantizeLinear")
"""Operators that do not change a table's shape. An operator that selects rows may directly follow these operators."""


class _Attribute(NamedTuple):
    name: str
    number: int
    tensors: Sequence[memoryview]
    graphs: Sequence[memoryview]


def read(path: Path) -> Flow:
    """Raises OSError, and ValueError if the file is not an ONNX file."""
    graphs = list(messages(mapped(path), _MODEL_GRAPH))
    if not graphs:
        raise ValueError("it has no graph")
    reader = _Reader()
    inputs, _ = reader.take(graphs[-1], "", ChainMap())
    copies = (*reader.crossings, *_OPERATORS.copies(reader.operations))
    return Flow({name: name for name in inputs}, copies, reader.lookups())


class _Reader:
    """Collects the nodes of a graph and of its subgraphs. Tensors of subgraphs get unique names."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.crossings: list[Copy] = []
        self._axes: list[int] = []
        """Axis of each operation, or 0 if the file does not state the axis."""
        self._shapes: dict[str, Sequence[int]] = {}
        """Shapes of constants."""
        self._about: dict[str, memoryview] = {}
        """Maps a tensor to its ValueInfoProto in the file."""
        self._origins: dict[str, str] = {}
        """Maps the output of a _SAME_SHAPE operator to the operator's input."""
        self._subgraphs = 0

    def take(
        self, graph: memoryview, prefix: str, outer: ChainMap[str, str]
    ) -> tuple[list[str], list[str]]:
        """Returns the tensors of the graph's inputs and outputs.

        prefix: text before the names of the graph's tensors. outer: maps names in the surrounding graphs to tensors.
        """
        parts: dict[int, list[memoryview]] = {}
        for number, value in fields(graph):
            if isinstance(value, memoryview):
                parts.setdefault(number, []).append(value)
        inputs = [_text(value, _VALUE_NAME) for value in parts.get(_GRAPH_INPUT, ())]
        constants = [tensor_of(value) for value in parts.get(_GRAPH_INITIALIZER, ())]
        nodes = parts.get(_GRAPH_NODE, [])
        made = (str(t, "utf-8") for node in nodes for t in messages(node, _NODE_OUTPUT))
        own = (*inputs, *(tensor.name for tensor in constants), *made)
        names = outer.new_child({name: prefix + name for name in own if name})
        self._shapes |= {prefix + tensor.name: tensor.shape for tensor in constants}
        for value in (*parts.get(_GRAPH_INPUT, ()), *parts.get(_GRAPH_VALUE_INFO, ())):
            self._about[prefix + _text(value, _VALUE_NAME)] = value
        for node in nodes:
            self._take_node(node, names)
        outputs = [_text(value, _VALUE_NAME) for value in parts.get(_GRAPH_OUTPUT, ())]
        return [names.get(n, n) for n in inputs], [names.get(n, n) for n in outputs]

    def _take_node(self, message: memoryview, names: ChainMap[str, str]) -> None:
        parts: dict[int, list[memoryview]] = {}
        for number, value in fields(message):
            if isinstance(value, memoryview):
                parts.setdefault(number, []).append(value)
        inputs, outputs = (
            [names.get(str(text, "utf-8"), "") for text in parts.get(number, ())]
            for number in (_NODE_INPUT, _NODE_OUTPUT)
        )
        attributes = [_attribute(value) for value in parts.get(_NODE_ATTRIBUTE, ())]
        domain, op_type = (
            str(parts.get(number, [b""])[-1], "utf-8") for number in (_NODE_DOMAIN, _NODE_OP_TYPE)
        )
        op_type = op_type if domain in _DOMAINS else ""
        if op_type == "Constant":
            shapes = (tensor_of(t).shape for a in attributes for t in a.tensors)
            self._shapes |= dict(zip(outputs, shapes, strict=False))
        if op_type in _SAME_SHAPE and inputs and outputs:
            self._origins[outputs[0]] = inputs[0]
        axes = (a.number for a in attributes if a.name in ("axis", "gather_axis"))
        self._axes.append(next(axes, 0))
        self.operations.append(Operation(op_type, inputs, outputs))
        for graph in (graph for attribute in attributes for graph in attribute.graphs):
            self._subgraphs += 1
            ports = self.take(graph, f"{self._subgraphs}\n", names)
            self.crossings += _crossing(op_type, inputs, outputs, *ports)

    def lookups(self) -> Iterator[Lookup]:
        for (kind, inputs, _), axis in zip(self.operations, self._axes, strict=True):
            if not kind:
                yield from (Lookup(name, "", None) for name in inputs if name)
            for indices, table in _LOOKUPS.get(kind, ()):
                if max(indices, table) < len(inputs) and inputs[indices]:
                    shape = self._shape(inputs[table])
                    if kind in _OF_SEVERAL_AXES:
                        rows = min(shape[: self._last_size(inputs[indices])], default=None)
                    else:
                        rows = shape[axis] if -len(shape) <= axis < len(shape) else None
                    yield Lookup(inputs[indices], kind, rows)

    def _shape(self, table: str) -> Sequence[int]:
        """Returns the table's shape, or () if the table is not a constant."""
        passed = set()
        while table in self._origins and table not in passed:
            passed.add(table)
            table = self._origins[table]
        return self._shapes.get(table, ())

    def _last_size(self, tensor: str) -> int | None:
        """Returns the last size of the tensor's shape, or None if the file does not record this size."""
        found = [self._about[tensor]] if tensor in self._about else []
        for number in _VALUE_SIZES:
            found = [inner for message in found for inner in messages(message, number)]
        size = dict(fields(found[-1])).get(_DIM_VALUE) if found else None
        return size if isinstance(size, int) and size > 0 else None


def _crossing(
    op_type: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    inner_inputs: Sequence[str],
    inner_outputs: Sequence[str],
) -> Iterator[Copy]:
    """Yields the copies into a subgraph, out of a subgraph, and from one iteration to the next."""
    leaves = inner_outputs[1:] if op_type == "Loop" else inner_outputs
    pairs = [*zip(leaves, outputs, strict=False)]
    if op_type == "Loop":  # (count, condition, carried...) -> (condition, carried..., collected...)
        pairs += [*zip(inputs[2:], inner_inputs[2:], strict=False)]
        pairs += [*zip(leaves, inner_inputs[2:], strict=False)]
    elif op_type != "If":
        pairs += [*zip(inputs, inner_inputs, strict=False)]
        pairs += [*zip(leaves, inner_inputs, strict=False)]
    return (Copy(source, target, is_exact=True) for source, target in pairs if source and target)


def _attribute(message: memoryview) -> _Attribute:
    name, number = "", 0
    tensors, graphs = [], []
    for key, value in fields(message):
        if isinstance(value, int):
            number = value if key == _ATTRIBUTE_INT else number
        elif key == _ATTRIBUTE_NAME:
            name = str(value, "utf-8")
        elif key == _ATTRIBUTE_TENSOR:
            tensors.append(value)
        elif key in (_ATTRIBUTE_GRAPH, _ATTRIBUTE_GRAPHS):
            graphs.append(value)
    return _Attribute(name, number - (number >> 63 << 64), tensors, graphs)


def _text(message: memoryview, number: int) -> str:
    return next((str(text, "utf-8") for text in messages(message, number)), "")
