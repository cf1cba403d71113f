"""Reads a Graph from an ONNX file.

The file is data: it is parsed and its shapes are inferred, nothing is run, and numbers in other
files (external data) are not read.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from harness.analysis.graph import DEFAULT_DOMAINS, KEPT_ELEMENTS, Constant, Graph, Node, Tensor
from harness.errors import ConfigError, PluginUnavailable, one_line
from harness.types import Array

_OF_SHAPE = ("Shape", "Size")
"""Operators that look at the shape of what they read, and at nothing else."""


def read(
    path: Path,
    batch: int = 1,
    sizes: Mapping[str, int] = MappingProxyType({}),
    shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
) -> Graph:
    """The graph of an ONNX file, for one size of its inputs.

    batch: what a first dimension is that has no number, unless told otherwise. sizes: of further
    symbolic dimensions, by name. shapes: of whole inputs, by name; they win.
    A ConfigError where the file is no ONNX model, and with every dimension that has no size.
    """
    onnx = _onnx()
    model = _parsed(onnx, path)
    constants = dict(_constants(onnx, model.graph))
    _drop_large(model.graph)
    used = _set_sizes(model.graph, set(constants), batch, sizes, shapes, path)
    model = _inferred(onnx, model, path)
    tensors = dict(_tensors(onnx, model.graph)) | {n: c.tensor for n, c in constants.items()}
    nodes, values = _settled(onnx, model, constants, tensors, path)
    return Graph(
        path=path,
        nodes=nodes,
        tensors=tensors,
        constants=constants,
        values=values,
        inputs=tuple(i.name for i in model.graph.input if i.name not in constants),
        outputs=tuple(o.name for o in model.graph.output),
        sizes=used,
        opsets={opset.domain: opset.version for opset in model.opset_import},
        proto=model,
    )


def _settled(
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
        _forget_outputs(again.graph)
        tensors.update(_tensors(onnx, _inferred(onnx, again, path).graph))
        tensors.update((name, Tensor(v.dtype.name, v.shape)) for name, v in made.items())


def _onnx() -> Any:
    try:
        import onnx
        import onnx.defs
        import onnx.inliner
        import onnx.numpy_helper
        import onnx.reference
        import onnx.shape_inference
    except ModuleNotFoundError as e:
        raise PluginUnavailable(
            f"reading a model's graph needs the module {e.name!r}: "
            "pip install 'mlperf-harness[analysis]'"
        ) from e
    return onnx


def _parsed(onnx: Any, path: Path) -> Any:
    try:
        model = onnx.load(str(path), format="protobuf", load_external_data=False)
    except OSError as e:
        raise ConfigError(f"{path} cannot be read: {e.strerror}") from e
    except Exception as e:  # noqa: BLE001 - protobuf's own has no public name
        raise ConfigError(f"{path} is not an ONNX model: {one_line(e)}") from None
    if not model.graph.node or not model.opset_import:
        raise ConfigError(
            f"{path} is not an ONNX model: it has no layers, or names no operator set"
        )
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    return model


def _constants(onnx: Any, graph: Any) -> Iterator[tuple[str, Constant]]:
    for tensor in graph.initializer:
        yield tensor.name, _constant(onnx, tensor)
    for sparse in graph.sparse_initializer:
        dtype = _dtype(onnx, sparse.values.data_type)
        yield sparse.values.name, Constant(Tensor(dtype, tuple(sparse.dims)), False, None)
    for node in graph.node:
        if node.op_type == "Constant" and node.domain in DEFAULT_DOMAINS:
            yield node.output[0], _constant(onnx, _of_constant_node(onnx, node))


def _of_constant_node(onnx: Any, node: Any) -> Any:
    """Its value as a TensorProto, however it is given."""
    kinds = {
        "value_float": np.float32,
        "value_floats": np.float32,
        "value_int": np.int64,
        "value_ints": np.int64,
    }
    for attribute in node.attribute:
        if attribute.name == "value":
            return attribute.t
        if attribute.name in kinds:
            value = onnx.helper.get_attribute_value(attribute)
            return onnx.numpy_helper.from_array(np.array(value, kinds[attribute.name]))
    return onnx.TensorProto(data_type=onnx.TensorProto.STRING, dims=[0])


def _constant(onnx: Any, tensor: Any) -> Constant:
    shape = tuple(tensor.dims)
    about = Tensor(_dtype(onnx, tensor.data_type), shape)
    is_external = tensor.data_location == onnx.TensorProto.EXTERNAL
    is_structure = about.dtype in ("int64", "bool")
    value = None
    if not is_external and (is_structure or int(np.prod(shape)) <= KEPT_ELEMENTS):
        value = onnx.numpy_helper.to_array(tensor)
    return Constant(about, is_external, value)


def _drop_large(graph: Any) -> None:
    """The bytes of weights, which no shape depends on: what is left says that they are elsewhere."""
    for tensor in graph.initializer:
        if (
            int(np.prod(tensor.dims)) > KEPT_ELEMENTS and tensor.data_type != 7
        ):  # INT64: may be shapes
            for name in ("raw_data", "float_data", "int32_data", "double_data", "uint64_data"):
                tensor.ClearField(name)
            tensor.data_location = 1  # EXTERNAL


def _set_sizes(
    graph: Any,
    given: set[str],
    batch: int,
    sizes: Mapping[str, int],
    shapes: Mapping[str, tuple[int, ...]],
    path: Path,
) -> Mapping[str, int]:
    """Every dimension of every input becomes a number. -> what the symbolic ones became."""
    inputs = [i for i in graph.input if i.name not in given]
    problems = [
        f"{path} has no input {name!r}" for name in shapes.keys() - {i.name for i in inputs}
    ]
    used: dict[str, int] = {}
    for one in inputs:
        dims = one.type.tensor_type.shape.dim
        shape = shapes.get(one.name)
        if shape is not None and len(shape) != len(dims):
            problems.append(
                f"{path}: input {one.name!r} has {len(dims)} dimensions, not {len(shape)}"
            )
            continue
        for axis, dim in enumerate(dims):
            size = shape[axis] if shape else _size(dim, axis, batch, sizes)
            name = dim.dim_param or f"{one.name}[{axis}]"
            if size is None:
                problems.append(
                    f"{path}: dimension {name!r} of input {one.name!r} has no size: give it"
                )
            elif not dim.HasField("dim_value"):
                used[name] = size
                dim.dim_value = size
            elif dim.dim_value != size:
                problems.append(
                    f"{path}: input {one.name!r} has {dim.dim_value} at axis {axis}, not {size}"
                )
    if problems:
        raise ConfigError("\n".join(problems))
    _forget(graph, used)
    return used


def _size(dim: Any, axis: int, batch: int, sizes: Mapping[str, int]) -> int | None:
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    if dim.dim_param in sizes:
        return sizes[dim.dim_param]
    return None if axis else batch


def _forget(graph: Any, used: Mapping[str, int]) -> None:
    """What the file says of shapes inside it: it was inferred for other sizes, and is again."""
    if not used:
        return
    del graph.value_info[:]
    _forget_outputs(graph)


def _forget_outputs(graph: Any) -> None:
    for output in graph.output:
        for dim in output.type.tensor_type.shape.dim:
            if not dim.HasField("dim_value"):
                dim.Clear()


def _inferred(onnx: Any, model: Any, path: Path) -> Any:
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception as e:  # noqa: BLE001 - of its own kind, from C++
        raise ConfigError(f"{path}: its shapes do not fit together: {one_line(e)}") from None


def _tensors(onnx: Any, graph: Any) -> Iterator[tuple[str, Tensor]]:
    for value in (*graph.value_info, *graph.input, *graph.output):
        kind = value.type.tensor_type
        if value.type.HasField("tensor_type") and kind.HasField("shape"):
            dims = (d.dim_value if d.HasField("dim_value") else None for d in kind.shape.dim)
            yield value.name, Tensor(_dtype(onnx, kind.elem_type), tuple(dims))


def _dtype(onnx: Any, code: int) -> str:
    try:
        name = str(onnx.helper.tensor_dtype_to_np_dtype(code).name)
    except (KeyError, ValueError, TypeError):
        return "undefined"
    return "string" if name == "object" else name


def _nodes(
    onnx: Any, model: Any, constants: set[str], tensors: Mapping[str, Tensor], path: Path
) -> Iterator[Node]:
    graph, opsets = model.graph, {o.domain: o.version for o in model.opset_import}
    protos = [n for n in graph.node if n.op_type != "Constant" or n.domain not in DEFAULT_DOMAINS]
    known = set(constants)
    for index, proto in enumerate(_ordered(protos, path)):
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


def _is_deterministic(proto: Any) -> bool:
    return not proto.op_type.startswith("Random") and proto.op_type not in (
        "Bernoulli",
        "Multinomial",
    )


def _ordered(protos: list[Any], path: Path) -> list[Any]:
    """ONNX wants files in topological order; those that are stay as they are."""
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
