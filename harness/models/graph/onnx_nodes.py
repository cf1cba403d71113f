"""Orders the nodes of an ONNX graph and derives what is known of them before a run."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import numpy as np

from harness.errors import ConfigError, one_line
from harness.models.graph.graph import DEFAULT_DOMAINS, Constant, Node, Tensor
from harness.models.graph.runtime_operators import stand_ins
from harness.types import Array

_OF_SHAPE = ("Shape", "Size")
"""Operators that look at the shape of what they read, and at nothing else."""


def settled(
    onnx: Any,
    model: Any,
    constants: Mapping[str, Constant],
    tensors: dict[str, Tensor],
    path: Path,
) -> tuple[tuple[Node, ...], Mapping[str, Array]]:
    """The nodes and known values. Sizes that the model computes settle further shapes (`tensors` is
    filled in), and these further sizes: again until nothing new is found.
    """
    known = 0
    while True:
        nodes = tuple(_nodes(onnx, model, set(constants), tensors, path))
        values = _values(onnx, nodes, constants, tensors, model.opset_import)
        made = {n: values[n] for node in nodes for n in node.outputs if n in values}
        if len(made) == known:
            return nodes, values
        known = len(made)
        again = onnx.ModelProto()
        again.CopyFrom(model)
        del again.graph.node[:]
        again.graph.node.extend(n for n in model.graph.node if not set(n.output) & made.keys())
        given = (onnx.numpy_helper.from_array(value, name) for name, value in made.items())
        again.graph.initializer.extend(given)
        del again.graph.value_info[:]
        forget_outputs(again.graph)
        tensors.update(tensors_of(onnx, inferred(onnx, again, path).graph))
        tensors.update((name, Tensor(v.dtype.name, v.shape)) for name, v in made.items())


def forget_outputs(graph: Any) -> None:
    for output in graph.output:
        for dim in output.type.tensor_type.shape.dim:
            if not dim.HasField("dim_value"):
                dim.Clear()


def inferred(onnx: Any, model: Any, path: Path) -> Any:
    """The model with the shapes that follow from its inputs'; its nodes are the same."""
    try:
        found = onnx.shape_inference.infer_shapes(stand_ins(onnx, model), data_prop=True)
    except Exception as e:  # noqa: BLE001 - of its own kind, from C++
        raise ConfigError(f"{path}: its shapes do not fit together: {one_line(e)}") from None
    del found.graph.node[:]
    found.graph.node.extend(model.graph.node)
    del found.graph.initializer[:]
    found.graph.initializer.extend(model.graph.initializer)
    return found


def tensors_of(onnx: Any, graph: Any) -> Iterator[tuple[str, Tensor]]:
    for value in (*graph.value_info, *graph.input, *graph.output):
        kind = value.type.tensor_type
        if value.type.HasField("tensor_type") and kind.HasField("shape"):
            dims = (d.dim_value if d.HasField("dim_value") else None for d in kind.shape.dim)
            yield value.name, Tensor(dtype_of(onnx, kind.elem_type), tuple(dims))


def dtype_of(onnx: Any, code: int) -> str:
    try:
        name = str(onnx.helper.tensor_dtype_to_np_dtype(code).name)
    except (KeyError, ValueError, TypeError):
        return "undefined"
    return "string" if name == "object" else name


def _values(
    onnx: Any,
    nodes: Iterable[Node],
    constants: Mapping[str, Constant],
    tensors: Mapping[str, Tensor],
    opsets: Any,
) -> Mapping[str, Array]:
    """Of what is folded, only where it is of integers or truth values: shapes, axes, indices."""
    values = {name: c.value for name, c in constants.items() if c.value is not None}
    for node in nodes:
        kinds = {tensors[name].dtype for name in node.outputs if name in tensors}
        if not node.from_constants or not kinds or not kinds <= {"int64", "int32", "bool"}:
            continue
        given = {n: _stand_in(values.get(n), tensors.get(n), node) for n in node.inputs if n}
        if any(value is None for value in given.values()):
            continue
        values |= _evaluated(onnx, node, given, opsets)
    return values


def _stand_in(value: Array | None, tensor: Tensor | None, node: Node) -> Array | None:
    """For the question after a shape, an array that has it and takes no memory."""
    if value is None and node.op_type in _OF_SHAPE and tensor is not None and _is_fixed(tensor):
        return np.broadcast_to(np.float32(0), [n or 0 for n in tensor.shape])
    return value


def _evaluated(onnx: Any, node: Node, given: Mapping[str, Any], opsets: Any) -> dict[str, Array]:
    empty = onnx.ValueInfoProto
    graph = onnx.helper.make_graph(
        [node.proto],
        "folded",
        [empty(name=n) for n in given],
        [empty(name=n) for n in node.outputs],
    )
    try:
        found = onnx.reference.ReferenceEvaluator(
            onnx.helper.make_model(graph, opset_imports=list(opsets))
        ).run(None, dict(given))
    except Exception:  # noqa: BLE001 - whatever it is, the value stays unknown
        return {}
    return dict(zip(node.outputs, map(np.asarray, found), strict=True))


def _nodes(
    onnx: Any, model: Any, constants: set[str], tensors: Mapping[str, Tensor], path: Path
) -> Iterator[Node]:
    graph, opsets = model.graph, {o.domain: o.version for o in model.opset_import}
    protos = [n for n in graph.node if n.op_type != "Constant" or n.domain not in DEFAULT_DOMAINS]
    known = set(constants)
    for index, proto in enumerate(ordered(protos, path)):
        inner = [name for name in _captured(proto) if name not in proto.input]
        inputs = (*proto.input, *inner)
        is_folded = _is_deterministic(proto) and all(
            n in known or (proto.op_type in _OF_SHAPE and _is_fixed(tensors.get(n)))
            for n in inputs
            if n
        )
        if is_folded:
            known.update(proto.output)
        yield Node(
            index=index,
            name=proto.name,
            op_type=proto.op_type,
            domain="" if proto.domain in DEFAULT_DOMAINS else proto.domain,
            attributes={
                **_defaults(onnx, proto, opsets),
                **{a.name: _value(onnx, a) for a in proto.attribute},
            },
            inputs=inputs,
            outputs=tuple(proto.output),
            from_constants=is_folded,
            proto=proto,
        )


def _defaults(onnx: Any, proto: Any, opsets: Mapping[str, int]) -> dict[str, Any]:
    """What the operator's definition says of attributes that are left out; {} of unknown operators."""
    version = opsets.get(proto.domain, opsets.get("", 1))
    try:
        schema = onnx.defs.get_schema(proto.op_type, version, proto.domain)
    except Exception:  # noqa: BLE001 - SchemaError, which is no public class: a vendor's operator
        return {}
    given = ((name, a.default_value) for name, a in schema.attributes.items())
    return {name: _value(onnx, value) for name, value in given if value.type}


def _is_fixed(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.elements is not None


def _is_deterministic(proto: Any) -> bool:
    return not proto.op_type.startswith("Random") and proto.op_type not in (
        "Bernoulli",
        "Multinomial",
    )


def ordered(protos: Sequence[Any], path: Path) -> Sequence[Any]:
    """ONNX wants files in topological order; those that are stay as they are. Shapes are inferred in
    the order of the file, and so stop at the first node that comes too early.
    """
    made = {name: i for i, n in enumerate(protos) for name in n.output if name}
    needs = {
        i: [made[x] for x in (*n.input, *_captured(n)) if x in made] for i, n in enumerate(protos)
    }
    if all(before < i for i, all_before in needs.items() for before in all_before):
        return protos
    try:
        return [protos[i] for i in TopologicalSorter(needs).static_order()]
    except CycleError:
        raise ConfigError(f"{path}: its layers form a circle: not a model") from None


def _captured(proto: Any) -> Iterable[str]:
    """Names that the subgraphs of a node's attributes read from outside of themselves."""
    found: dict[str, None] = {}
    for attribute in proto.attribute:
        for graph in (attribute.g, *attribute.graphs):
            made = {n for node in graph.node for n in node.output}
            made |= {i.name for i in (*graph.input, *graph.initializer)}
            for node in graph.node:
                found |= {n: None for n in (*node.input, *_captured(node)) if n and n not in made}
    return found


def _value(onnx: Any, attribute: Any) -> Any:
    kinds = onnx.AttributeProto
    if attribute.type in (kinds.INT, kinds.FLOAT):
        return onnx.helper.get_attribute_value(attribute)
    if attribute.type == kinds.STRING:
        return attribute.s.decode(errors="replace")
    if attribute.type in (kinds.INTS, kinds.FLOATS):
        return tuple(onnx.helper.get_attribute_value(attribute))
    if attribute.type == kinds.STRINGS:
        return tuple(s.decode(errors="replace") for s in attribute.strings)
    return hashlib.sha256(attribute.SerializeToString(deterministic=True)).hexdigest()
