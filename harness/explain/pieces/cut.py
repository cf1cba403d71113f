"""Cuts pieces out of a graph. Each piece becomes a brick: a separate model without the original's weights.

A brick keeps the types, attributes, shapes, and the constants that define the work (integers, limits of Clip). Names
are replaced with numbers. Weights are random, and the brick's digest is the seed.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from harness.explain.pieces.ends import (
    DEQUANTISE,
    NUMERIC_TYPES,
    UNKNOWN,
    dequantisers,
    entering,
    is_known,
    leaving,
)
from harness.explain.pieces.made_up import activations, weights
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
"""Maps an operator to the positions of the untrained inputs that define its work. int64 inputs always define the work.

The scale and zero point of an activation determine which nodes ONNX Runtime fuses. ONNX Runtime drops a Relu before a
zero point of 0, and runs a pool on integers if its input and output have the same scale.
"""

WEIGHT_SCALE = 2.0**-10
"""Scale of made-up integer weights. The scale is a power of 2, so its product with another scale is exact."""

_INT, _FLOAT, _STRING, _TENSOR, _FLOATS, _INTS, _STRINGS = 2, 1, 3, 4, 6, 7, 8
"""Types of onnx.AttributeProto, except graphs and sparse tensors."""


@dataclass(frozen=True)
class Brick:
    """A piece without its names."""

    digest: str
    """SHA-256 of everything that defines the piece."""
    layers: tuple[str, ...]
    """Operators, in the order of the graph."""
    inputs: tuple[Tensor, ...]
    """Tensors that enter the piece, in the order of Cut.inputs."""
    outputs: tuple[Tensor, ...]
    """Tensors that leave the piece, in the order of Cut.outputs."""
    weight_bytes: int
    """Size of the constants in bytes."""
    why_not: str | None
    """Reason why the piece cannot be built or run; None if it can."""
    why_private: str | None
    """Reason why the piece may contain trained numbers; None if it cannot. A piece with trained numbers is run on this
    machine, but not published.
    """


@dataclass(frozen=True)
class Cut:
    """A piece of one graph, to be built as a brick."""

    graph: Graph
    nodes: tuple[Node, ...]

    @cached_property
    def all_nodes(self) -> tuple[Node, ...]:
        """The piece's nodes, and the DequantizeLinear nodes outside the piece that its layers read. Each reader gets a
        separate copy of such a node, as in the graph that ONNX Runtime executes. The piece therefore reads and writes
        integers.
        """
        return (*dequantisers(self.graph, self.nodes), *self.nodes)

    @cached_property
    def inputs(self) -> list[str]:
        return entering(self.graph, self.all_nodes)

    @cached_property
    def outputs(self) -> list[str]:
        """The tensors that leave the piece. If no tensor leaves the piece, the list contains the last layer's output
        instead.
        """
        return leaving(self.graph, self.nodes) or [self.nodes[-1].outputs[0]]

    @cached_property
    def constants(self) -> list[str]:
        outputs = {name for node in self.all_nodes for name in node.outputs}
        names = dict.fromkeys(name for node in self.all_nodes for name in node.inputs if name)
        return [name for name in names if name not in outputs and is_known(self.graph, name)]

    @property
    def decided_by(self) -> list[str]:
        """Inputs that determine which layers run inside the piece, and how often they run."""
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
        """Maps a name in the graph to the name in the brick."""
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
            f"{node.op_type}: its attribute {attribute.name} may contain trained numbers"
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
        """Yields the reasons why inputs cannot be made up.

        Outputs may have any shape. An output's type may be known only to the runtime, because ONNX infers no type for a
        Loop's state.
        """
        names = (*self.inputs, *self.outputs, *self.constants)
        for name, tensor in zip(names, self.tensors(names), strict=True):
            if tensor.dtype not in NUMERIC_TYPES and (
                name not in self.outputs or tensor != UNKNOWN
            ):
                yield f"{self.nodes[0].op_type}: the type of a tensor is {tensor.dtype}, not numeric"
            elif tensor.elements is None and name not in self.outputs:
                yield f"{self.nodes[0].op_type}: the shape of a tensor depends on data ({tensor})"

    def model(self) -> Any:
        """Returns the brick as onnx.ModelProto. Raises ValueError if it cannot be built."""
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
        """Returns made-up inputs, by name in the brick. decided: the result of `decisions`."""
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
        """Returns made-up scales of quantised weights.

        The scale of a bias must be the product of the input's scale and the weights' scale; otherwise, ONNX Runtime
        would compute in floats.
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
        """Returns the scale of the activation that a layer with this bias reads."""
        for reader in self.graph.consumers.get(bias.outputs[0], ()):
            maker = self.graph.producer.get(reader.inputs[0])
            if maker is not None and maker.op_type == DEQUANTISE:
                value = self.graph.values.get(maker.inputs[1])
                if value is not None and value.size == 1:
                    return float(value.item())
        return 1.0

    @property
    def kept_values(self) -> int:
        """Number of values in the brick that come from the original: sizes, axes, indices, limits."""
        values = (self._kept(name) for name in self.constants)
        return sum(value.size for value in values if value is not None)

    def _kept(self, name: str) -> Array | None:
        """Returns the original value if it defines the work, or None for a weight."""
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
        """Whether the node's scales belong to weights. Such scales reveal the magnitude of the weights."""
        return node.op_type == DEQUANTISE and is_known(self.graph, node.inputs[0])


def _may_be_trained(attribute: Any) -> bool:
    """Whether an attribute is a graph or a long list, such as the thresholds of a forest, and not just a setting."""
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


def value_info(onnx: Any, name: str, tensor: Tensor) -> Any:
    if tensor == UNKNOWN:
        return onnx.ValueInfoProto(name=name)
    dtype = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(tensor.dtype))
    return onnx.helper.make_tensor_value_info(name, dtype, tensor.shape)


def model_of(onnx: Any, body: Any, graph: Graph) -> Any:
    """Makes an onnx.ModelProto from nodes that come from `graph`. body: an onnx.GraphProto."""
    used = {"", "ai.onnx", *(node.domain for node in body.node)}
    opsets = [onnx.helper.make_opsetid(*one) for one in graph.opsets.items() if one[0] in used]
    version = max(8, min(graph.proto.ir_version, 10))
    return onnx.helper.make_model(
        body, opset_imports=opsets, ir_version=version, producer_name="mlperf-harness bricks"
    )


def decisions(
    graph: Graph, cuts: Iterable[Cut], feeds: Mapping[str, Array], setup: SessionSetup
) -> dict[str, Array]:
    """Returns, by tensor name, the values that determine the branch of an If and the number of iterations of a Loop.

    feeds: inputs of the whole model. The result is empty if no cut reads such a tensor or if the model does not run.
    The branches then depend on made-up numbers.
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
