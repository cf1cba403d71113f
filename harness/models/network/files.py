"""Reads the networks in ONNX files and OpenVINO's IR without their frameworks."""

import mmap
import xml.parsers.expat
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path

from harness.core.formats.protobuf import fields, messages, packed
from harness.errors import ConfigError, HarnessError
from harness.models.graph.flops import graph_costs, may_multiply
from harness.models.graph.onnx_file import read
from harness.models.network.network import Structure, of_shapes

_GRAPH, _NODE, _INITIALIZER = 7, 1, 5
_OP_TYPE, _ATTRIBUTE = 4, 5
_DIMS, _DATA_TYPE = 1, 2
_ATTRIBUTE_NAME, _ATTRIBUTE_INTS = 1, 8
"""Fields of onnx.proto: ModelProto, GraphProto, NodeProto, TensorProto, AttributeProto."""

_ONNX_TYPES = {1: "float32", 2: "uint8", 3: "int8", 10: "float16", 11: "float64", 16: "bfloat16"}
_IR_TYPES = {
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "f64": "float64",
    "i8": "int8",
    "u8": "uint8",
}
_CONVOLUTIONS = frozenset(("Conv", "QLinearConv", "ConvInteger", "Convolution", "GroupConvolution"))


def of_onnx(path: Path) -> Structure:
    """A ConfigError where it is no ONNX file."""
    try:
        with path.open("rb") as file:  # the map outlives it, and goes with its last slice
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        graphs = list(messages(content, _GRAPH))
        shapes = [t for graph in graphs for m in messages(graph, _INITIALIZER) for t in _tensor(m)]
        strides = [s for graph in graphs for m in messages(graph, _NODE) for s in _strides(m)]
    except (OSError, ValueError) as e:
        raise ConfigError(f"{path} is no ONNX file: {e}") from None
    return of_shapes(shapes, strides)


def onnx_macs(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> int | None:
    """Multiplications of a batch whose inputs have these shapes.

    None where an operation has weights without a rule, a product has an unknown shape, the graph has a
    subgraph, or the module `onnx` is missing.
    """
    try:
        graph = read(path, shapes=shapes)
    except HarnessError:
        return None
    macs = 0
    for node, cost in zip(graph.nodes, graph_costs(graph), strict=True):
        constants = [
            graph.constants[name].tensor for name in node.inputs if name in graph.constants
        ]
        has_weights = any(len(tensor.shape) > 1 for tensor in constants)
        if cost.macs is None and (has_weights or may_multiply(node.op_type, node.domain)):
            return None
        macs += 0 if node.from_constants else cost.macs or 0
    return macs


def _tensor(message: memoryview) -> Iterator[tuple[list[int], str]]:
    shape: list[int] = []
    kind = None
    for number, value in fields(message):
        if number == _DIMS:
            shape += [value] if isinstance(value, int) else packed(value)
        elif number == _DATA_TYPE and isinstance(value, int):
            kind = _ONNX_TYPES.get(value)
    if kind is not None:
        yield shape, kind


def _strides(node: memoryview) -> Iterator[tuple[int, ...]]:
    kinds = [bytes(v).decode(errors="replace") for v in messages(node, _OP_TYPE)]
    if not kinds or kinds[-1] not in _CONVOLUTIONS:
        return
    for attribute in messages(node, _ATTRIBUTE):
        if [bytes(v) for v in messages(attribute, _ATTRIBUTE_NAME)] != [b"strides"]:
            continue
        found: list[int] = []
        for number, value in fields(attribute):
            if number == _ATTRIBUTE_INTS:
                found += [value] if isinstance(value, int) else packed(value)
        yield tuple(found)


_Shapes = Sequence[tuple[int, ...]]

_IR_RULES: Mapping[str, Callable[[_Shapes, tuple[int, ...], int], int]] = {
    # weights: (out, in, kernel...), after the group where there is one; (in, out, ...) backwards
    "Convolution": lambda given, made, _: prod(made) * prod(given[1][1:]),
    "GroupConvolution": lambda given, made, _: prod(made) * prod(given[1][2:]),
    "ConvolutionBackpropData": lambda given, _made, _: prod(given[0]) * prod(given[1][1:]),
    "GroupConvolutionBackpropData": lambda given, _made, _: prod(given[0]) * prod(given[1][2:]),
    "MatMul": lambda given, made, across: prod(made) * given[0][across],
}
_IR_HIDDEN = frozenset(
    ("LSTMSequence", "GRUSequence", "RNNSequence", "LSTMCell", "GRUCell", "RNNCell", "If", "Loop")
) | {"TensorIterator", "Einsum", "ScaledDotProductAttention", "DeformableConvolution"}
"""Their products are not counted here."""


def of_openvino(path: Path) -> Structure:
    """Of an IR's .xml; a ConfigError where it is none. Its entities, if any, are refused."""
    reader = _IrReader()

    def refuse(*_: object) -> None:
        raise ValueError("it declares entities")

    parser = xml.parsers.expat.ParserCreate()
    parser.StartElementHandler = reader.begin
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    parser.EntityDeclHandler = refuse
    try:
        with path.open("rb") as file:
            parser.ParseFile(file)
    except (OSError, ValueError, IndexError, xml.parsers.expat.ExpatError) as e:
        raise ConfigError(f"{path} is no OpenVINO IR: {e}") from None
    return of_shapes(reader.shapes, reader.strides, reader.macs)


class _IrReader:
    """Layers one after the other. macs: of a batch of 1 where it is open; None once it cannot be told."""

    def __init__(self) -> None:
        self.shapes: list[tuple[list[int], str]] = []
        self.strides: list[list[int]] = []
        self.macs: int | None = 0
        self._kind = self._text = ""
        self._about: dict[str, str] = {}
        self._ports: dict[str, list[list[int]]] = {}
        self._side: list[list[int]] = []

    def begin(self, name: str, attributes: dict[str, str]) -> None:
        if name == "layer":
            self._kind, self._about = attributes.get("type", ""), {}
            self._ports = {"input": [], "output": []}
            if self._kind in _IR_HIDDEN:
                self.macs = None
        elif name == "data":
            self._about = attributes
        elif name in self._ports:
            self._side = self._ports[name]
        elif name == "port":
            self._side.append([])
        elif name == "dim":
            self._text = ""

    def text(self, found: str) -> None:
        self._text += found

    def end(self, name: str) -> None:
        if name == "dim" and self._side:
            self._side[-1].append(int(self._text))
        elif name == "layer":
            if self._kind == "Const":
                self.shapes.extend(_constant(self._about))
            elif self._kind in _CONVOLUTIONS:
                self.strides.append(_numbers(self._about.get("strides", "")))
            if self._kind in _IR_RULES and self.macs is not None:
                found = self._found()
                self.macs = self.macs + found if found is not None else None
            self._kind = ""

    def _found(self) -> int | None:
        given, made = (
            [tuple(map(_batch_of_1, enumerate(shape))) for shape in self._ports[side]]
            for side in ("input", "output")
        )
        if any(size < 0 for shape in (*given, *made) for size in shape):
            return None
        across = -2 if self._about.get("transpose_a") == "true" else -1
        return _IR_RULES[self._kind](given, made[0], across)


def _batch_of_1(size: tuple[int, int]) -> int:
    axis, count = size
    return 1 if axis == 0 and count < 0 else count


def _constant(attributes: Mapping[str, str]) -> Iterator[tuple[list[int], str]]:
    kind = _IR_TYPES.get(attributes.get("element_type", ""))
    if kind is not None:
        yield _numbers(attributes.get("shape", "")), kind


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number.strip()]
