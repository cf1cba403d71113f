"""Reads the networks in ONNX files and in OpenVINO's IR without importing their frameworks."""

import xml.parsers.expat
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path

from harness.core.formats.onnx_tensors import initializers
from harness.core.formats.protobuf import fields, mapped, messages, packed
from harness.core.number_types import number_type
from harness.errors import ConfigError, HarnessError
from harness.models.graph.flops import graph_costs, may_multiply
from harness.models.graph.onnx_file import read
from harness.models.network.network import Structure, of_shapes

_GRAPH, _NODE = 7, 1
_OP_TYPE, _ATTRIBUTE = 4, 5
_ATTRIBUTE_NAME, _ATTRIBUTE_INTS = 1, 8
"""Field numbers of onnx.proto: ModelProto, GraphProto, NodeProto, AttributeProto."""

_WEIGHT_TYPES = ("float32", "float16", "bfloat16", "float64", "int8", "uint8")
_CONVOLUTIONS = frozenset(("Conv", "QLinearConv", "ConvInteger", "Convolution", "GroupConvolution"))


def of_onnx(path: Path) -> Structure:
    """Raises ConfigError if the file is not an ONNX file."""
    try:
        shapes = [(t.shape, t.dtype) for t in initializers(path) if t.dtype in _WEIGHT_TYPES]
        graphs = messages(mapped(path), _GRAPH)
        strides = [s for graph in graphs for m in messages(graph, _NODE) for s in _strides(m)]
    except (OSError, ValueError) as e:
        raise ConfigError(f"{path} is not an ONNX file: {e}") from None
    return of_shapes(shapes, strides)


def onnx_macs(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> int | None:
    """Returns the number of multiplications for a batch whose inputs have these shapes.

    Returns None if an operation with weights has no rule, a product has an unknown shape, the graph has a subgraph, or
    the module `onnx` is missing.
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


def _strides(node: memoryview) -> Iterator[tuple[int, ...]]:
    kinds = [bytes(v).decode(errors="replace") for v in messages(node, _OP_TYPE)]
    if not kinds or kinds[-1] not in _CONVOLUTIONS:
        return
    for attribute in messages(node, _ATTRIBUTE):
        if [bytes(v) for v in messages(attribute, _ATTRIBUTE_NAME)] != [b"strides"]:
            continue
        strides: list[int] = []
        for number, value in fields(attribute):
            if number == _ATTRIBUTE_INTS:
                strides += [value] if isinstance(value, int) else packed(value)
        yield tuple(strides)


_Shapes = Sequence[tuple[int, ...]]

_IR_RULES: Mapping[str, Callable[[_Shapes, tuple[int, ...], int], int]] = {
    # weights are (out, in, kernel...) or (group, out, in, kernel...), and (in, out, ...) for backwards convolutions
    "Convolution": lambda inputs, output, _: prod(output) * prod(inputs[1][1:]),
    "GroupConvolution": lambda inputs, output, _: prod(output) * prod(inputs[1][2:]),
    "ConvolutionBackpropData": lambda inputs, _output, _: prod(inputs[0]) * prod(inputs[1][1:]),
    "GroupConvolutionBackpropData": lambda inputs, _output, _: (
        prod(inputs[0]) * prod(inputs[1][2:])
    ),
    "MatMul": lambda inputs, output, across: prod(output) * inputs[0][across],
}
_IR_HIDDEN = frozenset(
    ("LSTMSequence", "GRUSequence", "RNNSequence", "LSTMCell", "GRUCell", "RNNCell", "If", "Loop")
) | {"TensorIterator", "Einsum", "ScaledDotProductAttention", "DeformableConvolution"}
"""Layers whose multiplications this module cannot count. If a network contains such a layer, `macs` is None."""


def of_openvino(path: Path) -> Structure:
    """Reads the .xml of an IR. Raises ConfigError if the file is not an IR or declares XML entities."""
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
        raise ConfigError(f"{path} is not an OpenVINO IR: {e}") from None
    return of_shapes(reader.shapes, reader.strides, reader.macs)


class _IrReader:
    """Handles the events of an XML parser, layer by layer."""

    def __init__(self) -> None:
        self.shapes: list[tuple[list[int], str]] = []
        self.strides: list[list[int]] = []
        self.macs: int | None = 0
        """Number of multiplications for a batch, or for one sample if the batch size is open; None if the number is
        unknown for a layer.
        """
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

    def text(self, part: str) -> None:
        self._text += part

    def end(self, name: str) -> None:
        if name == "dim" and self._side:
            self._side[-1].append(int(self._text))
        elif name == "layer":
            if self._kind == "Const":
                dtype = number_type(self._about.get("element_type", ""))
                if dtype in _WEIGHT_TYPES:
                    self.shapes.append((_numbers(self._about.get("shape", "")), dtype))
            elif self._kind in _CONVOLUTIONS:
                self.strides.append(_numbers(self._about.get("strides", "")))
            if self._kind in _IR_RULES and self.macs is not None:
                macs = self._macs()
                self.macs = self.macs + macs if macs is not None else None
            self._kind = ""

    def _macs(self) -> int | None:
        inputs, outputs = (
            [
                tuple(1 if not axis and size < 0 else size for axis, size in enumerate(shape))
                for shape in self._ports[side]
            ]
            for side in ("input", "output")
        )
        if any(size < 0 for shape in (*inputs, *outputs) for size in shape):
            return None
        across = -2 if self._about.get("transpose_a") == "true" else -1
        return _IR_RULES[self._kind](inputs, outputs[0], across)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number.strip()]
