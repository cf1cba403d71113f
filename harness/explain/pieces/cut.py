"""Cuts pieces of a graph out as bricks: models of their own, without any weight of the original.

A brick keeps types, attributes, shapes, and those constants that define the work (integers, limits
of Clip). Names are numbers, weights are random and follow from the brick's digest.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from harness.explain.pieces.subgraphs import CONTROL_INPUTS, stand_alone, subgraphs
from harness.models.graph.graph import KEPT_ELEMENTS, Graph, Node, Tensor
from harness.models.opened.ort_session import SessionSetup, open_session
from harness.types import Array

_PARAMETERS: Mapping[str, tuple[int, ...]] = {
    "Clip": (1, 2),
    "DequantizeLinear": (1, 2),
    "Dropout": (1, 2),
    "Gather": (1,),
    "Pad": (2,),
    "Pow": (1,),
    "QuantizeLinear": (1, 2),
    "Range": (0, 1, 2),
    "Resize": (1, 2),
    "Slice": (1, 2, 3, 4),
    "Upsample": (1,),
}
"""Inputs that define the work and were not trained, by operator; int64 inputs always do.

Scale and zero point of an activation decide what ONNX Runtime fuses: it drops a Relu before a zero
point of 0, and pools integers where both ends have the same scale.
"""

DEQUANTISE, QUANTISE = "DequantizeLinear", "QuantizeLinear"

WEIGHT_SCALE = 2.0**-10
"""Scale of made-up integer weights; a power of 2, so that its product with another scale is
exact.
"""

_NUMERIC_TYPES = frozenset([
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
    "float32", "float64", "bfloat16",
])  # fmt: skip
"""Types for which numbers can be made up."""

_INT, _FLOAT, _STRING, _TENSOR, _FLOATS, _INTS, _STRINGS = 2, 1, 3, 4, 6, 7, 8
"""Types of onnx.AttributeProto, except graphs and sparse tensors."""


@dataclass(frozen=True)
class Brick:
    """A piece without its names.
    digest: of everything that defines it.
    layers: its operators.
    inputs, outputs: tensors at its ends, in the order of Cut.inputs and Cut.outputs.
    weight_bytes: bytes of its constants.
    why_not: why it cannot be built or run.
    why_private: why it may hold trained numbers, so that it runs here but is not published.
    """

    digest: str
    layers: tuple[str, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    weight_bytes: int
    why_not: str | None
    why_private: str | None


@dataclass(frozen=True)
class Cut:
    """A piece of one graph, to be built as a brick."""

    graph: Graph
    nodes: tuple[Node, ...]

    @cached_property
    def all_nodes(self) -> tuple[Node, ...]:
        """The piece's nodes with the DequantizeLinear nodes outside of it that its layers read.
        Each reader has its own, as in the graph that ONNX Runtime executes, so that integers
        cross the ends of the piece.
        """
        return (*dequantisers(self.graph, self.nodes), *self.nodes)

    @cached_property
    def inputs(self) -> list[str]:
        return entering(self.graph, self.all_nodes)

    @cached_property
    def outputs(self) -> list[str]:
        """The tensors that leave the piece; where none does, the last layer's output."""
        return leaving(self.graph, self.nodes) or [self.nodes[-1].outputs[0]]

    @cached_property
    def constants(self) -> list[str]:
        outputs = {name for node in self.all_nodes for name in node.outputs}
        names = dict.fromkeys(name for node in self.all_nodes for name in node.inputs if name)
        return [name for name in names if name not in outputs and is_known(self.graph, name)]

    @property
    def decided_by(self) -> list[str]:
        """Inputs that decide which layers run inside the piece, and how often."""
        deciding = {
            name
            for node in self.nodes
            for i, name in enumerate(node.inputs)
            if i in CONTROL_INPUTS.get(node.op_type, ())
        }
        return [name for name in self.inputs if name in deciding]

    def tensors(self, names: Iterable[str]) -> tuple[Tensor, ...]:
        return tuple(self.graph.tensors.get(name, UNKNOWN) for name in names)

    @cached_property
    def numbers(self) -> Mapping[str, str]:
        """Name in the graph -> name in the brick."""
        outputs = [name for node in self.all_nodes for name in node.outputs if name]
        all_names = dict.fromkeys([*self.inputs, *self.constants, *outputs])
        return {"": "", **{name: f"t{i}" for i, name in enumerate(all_names)}}

    @cached_property
    def brick(self) -> Brick:
        graph, numbers = self.graph, self.numbers
        wiring = [
            [graph.key(n), [numbers[x] for x in n.inputs], [numbers[x] for x in n.outputs]]
            for n in self.all_nodes
        ]
        described = [wiring, [numbers[name] for name in self.outputs]]
        trained = (
            f"{node.op_type}: its attribute {attribute.name} may hold trained numbers"
            for node in self.nodes
            for attribute in node.proto.attribute
            if _may_be_trained(attribute)
        )
        return Brick(
            digest=hashlib.sha256(json.dumps(described).encode()).hexdigest(),
            layers=tuple(node.op_type for node in self.nodes),
            inputs=self.tensors(self.inputs),
            outputs=self.tensors(self.outputs),
            weight_bytes=sum(one.size_bytes or 0 for one in self.tensors(self.constants)),
            why_not=next(self._obstacles(), None),
            why_private=next(trained, None),
        )

    def _obstacles(self) -> Iterator[str]:
        """Why inputs cannot be made up. Outputs may have any shape, and a type that only the
        runtime knows (ONNX infers none for a Loop's state).
        """
        names = (*self.inputs, *self.outputs, *self.constants)
        for name, tensor in zip(names, self.tensors(names), strict=True):
            if tensor.dtype not in _NUMERIC_TYPES and (
                name not in self.outputs or tensor != UNKNOWN
            ):
                yield f"{self.nodes[0].op_type}: there is a tensor of type {tensor.dtype}"
            elif tensor.elements is None and name not in self.outputs:
                yield f"{self.nodes[0].op_type}: the shape of a tensor depends on data ({tensor})"

    def model(self) -> Any:
        """The brick as onnx.ModelProto. Raises ValueError where it cannot be built."""
        import onnx

        if self.brick.why_not:
            raise ValueError(self.brick.why_not)
        inputs, outputs = (
            [value_info(onnx, self.numbers[n], one) for n, one in zip(names, kinds, strict=True)]
            for names, kinds in (
                (self.inputs, self.brick.inputs),
                (self.outputs, self.brick.outputs),
            )
        )
        nodes = [self._node(onnx, node) for node in self.all_nodes]
        graph = onnx.helper.make_graph(nodes, f"brick-{self.brick.digest[:16]}", inputs, outputs)
        random = np.random.default_rng(int(self.brick.digest[:16], 16))
        for name, array in self._arrays(random):
            dtype = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            tensor = graph.initializer.add(
                name=self.numbers[name], data_type=dtype, dims=array.shape
            )
            tensor.raw_data = array.tobytes()
        return model_of(onnx, graph, self.graph)

    def feeds(self, decided: Mapping[str, Array]) -> dict[str, Array]:
        """Made-up inputs, by name in the brick. decided: from `decisions`."""
        random = np.random.default_rng(int(self.brick.digest[:8], 16))
        made_up = [activations(random, tensor) for tensor in self.brick.inputs]
        return {
            self.numbers[name]: decided.get(name, values)
            for name, values in zip(self.inputs, made_up, strict=True)
        }

    def _node(self, onnx: Any, node: Node) -> Any:
        proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain)
        declared = node.inputs[: len(node.proto.input)]
        proto.input.extend(self.numbers[name] for name in declared)
        proto.output.extend(self.numbers[name] for name in node.outputs)
        proto.attribute.extend(node.proto.attribute)
        for attribute in proto.attribute:
            attribute.ClearField("doc_string")
            for inner in subgraphs(attribute):
                prefix = f"{self.numbers[node.outputs[0]]}_{attribute.name}_"
                stand_alone(onnx, inner, self.numbers, prefix, int(self.brick.digest[:8], 16))
        return proto

    def _arrays(self, random: np.random.Generator) -> Iterator[tuple[str, Array]]:
        scales = self._weight_scales()
        for name in self.constants:
            values = scales.get(name, self._kept(name))
            yield name, weights(random, self.graph.tensors[name]) if values is None else values

    def _weight_scales(self) -> Mapping[str, Array]:
        """Made-up scales of quantised weights. A bias gets the product of the other two scales:
        with any other, ONNX Runtime computes in floats.
        """
        scales = {}
        for node in self.all_nodes:
            if not self._is_of_weights(node):
                continue
            scale, dtype = node.inputs[1], self.graph.tensors[node.inputs[0]].dtype
            shape = [n or 0 for n in self.graph.tensors[scale].shape]
            factor = self._activation_scale(node) if dtype == "int32" else 1.0
            dtype = self.graph.tensors[scale].dtype
            scales[scale] = np.full(shape, factor * WEIGHT_SCALE, np.float32).astype(dtype)
        return scales

    def _activation_scale(self, bias: Node) -> float:
        """The scale of the activation that a layer with this bias reads."""
        for reader in self.graph.consumers.get(bias.outputs[0], ()):
            maker = self.graph.producer.get(reader.inputs[0])
            if maker is not None and maker.op_type == DEQUANTISE:
                value = self.graph.values.get(maker.inputs[1])
                if value is not None and value.size == 1:
                    return float(value.item())
        return 1.0

    @property
    def kept_values(self) -> int:
        """How many of the original's numbers the brick holds: sizes, axes, indices, limits."""
        values = (self._kept(name) for name in self.constants)
        return sum(value.size for value in values if value is not None)

    def _kept(self, name: str) -> Array | None:
        """The original's value where it defines the work; None for a weight."""
        value = self.graph.values.get(name)
        if value is None or value.dtype in (np.int64, np.bool_):
            return value
        is_parameter = all(
            place in _PARAMETERS.get(node.op_type, ()) and not self._is_of_weights(node)
            for node in self.all_nodes
            for place, read in enumerate(node.inputs)
            if read == name
        )
        return value if is_parameter else None

    def _is_of_weights(self, node: Node) -> bool:
        """Whether its scales are those of weights, which reveal their magnitude."""
        return node.op_type == DEQUANTISE and is_known(self.graph, node.inputs[0])


UNKNOWN = Tensor("undefined", (None,))
"""A tensor whose type and shape could not be inferred."""


def _may_be_trained(attribute: Any) -> bool:
    """Whether an attribute is more than a setting: a graph, or many numbers or text, e.g. a
    forest's thresholds.
    """
    sizes = {
        _INT: 1,
        _FLOAT: 1,
        _STRING: len(attribute.s),
        _TENSOR: 1 if int(np.prod(attribute.t.dims)) <= 1 else KEPT_ELEMENTS + 1,
        _FLOATS: len(attribute.floats),
        _INTS: len(attribute.ints),
        _STRINGS: sum(map(len, attribute.strings)),
    }
    return sizes.get(attribute.type, KEPT_ELEMENTS + 1) > KEPT_ELEMENTS


def weights(random: np.random.Generator, tensor: Tensor) -> Array:
    """Numbers that any layer can compute with: kernels scaled (He); tensors of few dimensions
    positive and near 1, as variances and divisors must be; 8-bit integers spread, others 0 or
    1.
    """
    shape = tuple(n or 0 for n in tensor.shape)
    dtype = np.dtype(tensor.dtype)
    if dtype.kind in "iu" and dtype.itemsize == 1 and len(shape) > 1:
        return random.integers(0, 127, shape, dtype)
    if dtype.kind in "iub":
        return np.zeros(shape, dtype)
    array: Array = random.standard_normal(shape, dtype=np.float32)
    if len(shape) < 2:
        array = 1 + 0.1 * np.abs(array)
    else:
        array *= np.float32((2.0 / max(1, int(np.prod(shape[1:])))) ** 0.5)
    return np.asarray(array, dtype)


def activations(random: np.random.Generator, tensor: Tensor) -> Array:
    """Made-up input of a brick: positive numbers; indices 0 and 1."""
    shape = tuple(n or 0 for n in tensor.shape)
    dtype = np.dtype(tensor.dtype)
    if dtype.kind in "iub":
        return np.asarray(random.integers(0, 2, shape), dtype)
    return np.asarray(0.1 + random.random(shape, dtype=np.float32), dtype)


def value_info(onnx: Any, name: str, tensor: Tensor) -> Any:
    if tensor == UNKNOWN:
        return onnx.ValueInfoProto(name=name)
    dtype = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(tensor.dtype))
    return onnx.helper.make_tensor_value_info(name, dtype, tensor.shape)


def model_of(onnx: Any, body: Any, graph: Graph) -> Any:
    """onnx.ModelProto of nodes that come from `graph`. body: onnx.GraphProto."""
    used = {"", "ai.onnx", *(node.domain for node in body.node)}
    opsets = [onnx.helper.make_opsetid(*one) for one in graph.opsets.items() if one[0] in used]
    version = max(8, min(graph.proto.ir_version, 10))
    return onnx.helper.make_model(
        body, opset_imports=opsets, ir_version=version, producer_name="mlperf-harness bricks"
    )


def dequantisers(graph: Graph, piece: Sequence[Node]) -> list[Node]:
    """The DequantizeLinear nodes, also of weights, whose output the piece reads but does not
    compute.
    """
    inside = {node.index for node in piece}
    makers = (graph.producer.get(name) for node in piece for name in node.inputs)
    nodes = {
        maker.index: maker
        for maker in makers
        if maker is not None and maker.op_type == DEQUANTISE and maker.index not in inside
    }
    # Those of weights first: read back from its own file, a brick has the others among its layers.
    return sorted(nodes.values(), key=lambda maker: not maker.from_constants)


def can_be_made_up(graph: Graph, name: str) -> bool:
    """Whether an activation's type and shape are known, so that a piece can begin with it."""
    tensor = graph.tensors.get(name, UNKNOWN)
    return tensor.dtype in _NUMERIC_TYPES and tensor.elements is not None


def entering(graph: Graph, piece: Sequence[Node]) -> list[str]:
    """Names of the activations that a piece reads from outside, in reading order."""
    outputs = {name for node in piece for name in node.outputs}
    names = dict.fromkeys(name for node in piece for name in node.inputs if name)
    return [name for name in names if name not in outputs and not is_known(graph, name)]


def leaving(graph: Graph, piece: Sequence[Node]) -> list[str]:
    """Names of the piece's outputs that other layers or the model's user read.
    A reader of a DequantizeLinear outside of its piece reads that node's input instead.
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
    """Whether a tensor is a constant of the model, or computed from constants alone."""
    maker = graph.producer.get(name)
    return name in graph.constants or (maker is not None and maker.from_constants)


def decisions(
    graph: Graph, cuts: Iterable[Cut], feeds: Mapping[str, Array], setup: SessionSetup
) -> dict[str, Array]:
    """Name -> value of the tensors that decide the branch of an If and the turns of a Loop.
    feeds: input of the whole model. Empty where no such tensor enters a cut, or where the model
    does not run: then made-up numbers decide.
    """
    names = sorted({name for cut in cuts for name in cut.decided_by})
    if not names:
        return {}
    import onnx

    try:
        model = onnx.load(str(graph.path))
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
        session = open_session(model.SerializeToString(), setup, sizes=graph.sizes)
        return dict(zip(names, session.run(names, dict(feeds)), strict=True))
    except Exception:  # noqa: BLE001 - onnxruntime's own classes share no base but this
        return {}
