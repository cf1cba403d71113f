"""Sorts the nodes of an ONNX graph, and infers the shapes and values that are known without a run."""

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
"""Operators that read only the shape of their input."""


def settled(
    onnx: Any,
    model: Any,
    constants: Mapping[str, Constant],
    tensors: dict[str, Tensor],
    path: Path,
) -> tuple[tuple[Node, ...], Mapping[str, Array]]:
    """Returns the nodes and the known values. Also adds the shapes that follow from these values to `tensors`.

    Sizes that the model computes determine more shapes, which in turn determine more sizes. The inference therefore
    repeats until no more values are found.
    """
    known = 0
    while True:
        nodes = tuple(_nodes(onnx, model, set(constants), tensors, path))
        values = _values(onnx, nodes, constants, tensors, model.opset_import)
        folded = {n: values[n] for node in nodes for n in node.outputs if n in values}
        if len(folded) == known:
            return nodes, values
        known = len(folded)
        again = onnx.ModelProto()
        again.CopyFrom(model)
        del again.graph.node[:]
        again.graph.node.extend(n for n in model.graph.node if not set(n.output) & folded.keys())
        again.graph.initializer.extend(
            onnx.numpy_helper.from_array(value, name) for name, value in folded.items()
        )
        del again.graph.value_info[:]
        forget_outputs(again.graph)
        tensors.update(tensors_of(onnx, inferred(onnx, again, path).graph))
        tensors.update((name, Tensor(v.dtype.name, v.shape)) for name, v in folded.items())


def forget_outputs(graph: Any) -> None:
    for output in graph.output:
        for dim in output.type.tensor_type.shape.dim:
            if not dim.HasField("dim_value"):
                dim.Clear()


def inferred(onnx: Any, model: Any, path: Path) -> Any:
    """Returns the model with its original nodes, and with the shapes inferred from the inputs' shapes."""
    try:
        shaped = onnx.shape_inference.infer_shapes(stand_ins(onnx, model), data_prop=True)
    except Exception as e:  # noqa: BLE001 - onnx raises a class of its own from C++
        raise ConfigError(f"{path}: its shapes do not fit together ({one_line(e)})") from None
    del shaped.graph.node[:]
    shaped.graph.node.extend(model.graph.node)
    del shaped.graph.initializer[:]
    shaped.graph.initializer.extend(model.graph.initializer)
    return shaped


def tensors_of(onnx: Any, graph: Any) -> Iterator[tuple[str, Tensor]]:
    # Inputs come last, because an input may also be an output.
    for value in (*graph.value_info, *graph.output, *graph.input):
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
    """Returns the values of constants and of folded integer and boolean tensors: shapes, axes, indices."""
    values = {name: c.value for name, c in constants.items() if c.value is not None}
    for node in nodes:
        kinds = {tensors[name].dtype for name in node.outputs if name in tensors}
        if not node.from_constants or not kinds or not kinds <= {"int64", "int32", "bool"}:
            continue
        inputs = {n: _stand_in(values.get(n), tensors.get(n), node) for n in node.inputs if n}
        if all(value is not None for value in inputs.values()):
            values |= _evaluated(onnx, node, inputs, opsets)
    return values


def _stand_in(value: Array | None, tensor: Tensor | None, node: Node) -> Array | None:
    """Returns the value or, if the operator reads only the shape, an array that has the same shape and takes no memory."""
    if value is None and node.op_type in _OF_SHAPE and tensor is not None and _is_fixed(tensor):
        return np.broadcast_to(np.float32(0), [n or 0 for n in tensor.shape])
    return value


def _evaluated(onnx: Any, node: Node, inputs: Mapping[str, Any], opsets: Any) -> dict[str, Array]:
    ports = ([onnx.ValueInfoProto(name=n) for n in names] for names in (inputs, node.outputs))
    graph = onnx.helper.make_graph([node.proto], "folded", *ports)
    model = onnx.helper.make_model(graph, opset_imports=list(opsets))
    try:
        outputs = onnx.reference.ReferenceEvaluator(model).run(None, dict(inputs))
    except Exception:  # noqa: BLE001 - whatever it raises, the value stays unknown
        return {}
    return dict(zip(node.outputs, map(np.asarray, outputs), strict=True))


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
    """Returns the default attributes from the operator's definition, or {} for an unknown operator."""
    version = opsets.get(proto.domain, opsets.get("", 1))
    try:
        schema = onnx.defs.get_schema(proto.op_type, version, proto.domain)
    except Exception:  # noqa: BLE001 - SchemaError is not a public class: a vendor's operator
        return {}
    defaults = ((name, a.default_value) for name, a in schema.attributes.items())
    return {name: _value(onnx, value) for name, value in defaults if value.type}


def _is_fixed(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.elements is not None


def _is_deterministic(proto: Any) -> bool:
    return not proto.op_type.startswith(("Random", "Bernoulli", "Multinomial"))


def ordered(protos: Sequence[Any], path: Path) -> Sequence[Any]:
    """Returns the nodes in topological order. Returns the same list if the file is already sorted, as ONNX requires.
    Shape inference follows the file's order, and stops at the first node that appears before one of its inputs.
    """
    producers = {name: i for i, n in enumerate(protos) for name in n.output if name}
    needs = {
        i: [producers[x] for x in (*n.input, *_captured(n)) if x in producers]
        for i, n in enumerate(protos)
    }
    if all(before < i for i, all_before in needs.items() for before in all_before):
        return protos
    try:
        return [protos[i] for i in TopologicalSorter(needs).static_order()]
    except CycleError:
        raise ConfigError(f"{path}: its layers form a cycle, so it is not a valid model") from None


def _captured(proto: Any) -> Iterable[str]:
    """Returns the names that subgraphs in a node's attributes read from the surrounding graph."""
    captured: dict[str, None] = {}
    for attribute in proto.attribute:
        for graph in (attribute.g, *attribute.graphs):
            own = {n for node in graph.node for n in node.output}
            own |= {i.name for i in (*graph.input, *graph.initializer)}
            for node in graph.node:
                outer = (n for n in (*node.input, *_captured(node)) if n and n not in own)
                captured |= dict.fromkeys(outer)
    return captured


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
