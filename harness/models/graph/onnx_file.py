"""Reads a Graph from an ONNX file.

Parses the file and infers its shapes. Does not execute the model, and does not read values in other files (external
data).
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from harness.core.config.parse import EXAMPLE_SIZE
from harness.core.extras import how_to_install
from harness.core.formats.impostors import impostor
from harness.core.units import counted
from harness.errors import ConfigError, PluginUnavailable, one_line, refuse
from harness.models.graph import onnx_nodes
from harness.models.graph.graph import DEFAULT_DOMAINS, KEPT_ELEMENTS, Constant, Graph, Tensor
from harness.types import declared_shape


def read(
    path: Path,
    batch: int = 1,
    sizes: Mapping[str, int] = MappingProxyType({}),
    shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
) -> Graph:
    """Returns the graph of an ONNX file for one set of input sizes.

    batch: size of an open first dimension that `sizes` and `shapes` do not set. sizes: sizes by name of the symbolic
    dimension. The key INPUT[AXIS] works for every dimension, and is the only key for a dimension without a symbolic
    name. shapes: shapes by input, which override `batch` and `sizes`. Raises ConfigError if the file is not an ONNX
    model, or if the sizes of some dimensions are not known; the message lists all these dimensions.
    """
    onnx = _onnx()
    model = _parsed(onnx, path)
    try:
        constants = dict(_constants(onnx, model.graph))
    except ValueError as e:
        raise ConfigError(f"{path} is not an ONNX model: {e}") from None
    _drop_large(model.graph)
    _sort(model.graph, path)
    used = _set_sizes(model.graph, set(constants), batch, sizes, shapes, path)
    model = onnx_nodes.inferred(onnx, model, path)
    tensors = dict(onnx_nodes.tensors_of(onnx, model.graph))
    tensors |= {name: constant.tensor for name, constant in constants.items()}
    nodes, values = onnx_nodes.settled(onnx, model, constants, tensors, path)
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
            f"reading a model's graph needs the module {e.name!r}: {how_to_install('onnx')}"
        ) from e
    return onnx


def _parsed(onnx: Any, path: Path) -> Any:
    try:
        model = onnx.load(str(path), format="protobuf", load_external_data=False)
    except OSError as e:
        raise ConfigError(f"{path} cannot be read: {e.strerror}") from e
    except Exception as e:  # noqa: BLE001 - protobuf's own has no public name
        why = impostor(path) or one_line(e)
        raise ConfigError(f"{path} is not an ONNX model: {why}") from None
    if not model.graph.node or not model.opset_import:
        raise ConfigError(
            f"{path} is not an ONNX model: "
            + (impostor(path) or "it has no layers, or names no operator set")
        )
    if not all(isinstance(name, str) for name in _names(model.graph)):
        raise ConfigError(f"{path} is not an ONNX model: a name in it is not UTF-8 text")
    if model.functions:
        try:
            model = onnx.inliner.inline_local_functions(model)
        except Exception as e:  # noqa: BLE001 - its own class has no public name
            raise ConfigError(f"{path} is not an ONNX model: {one_line(e)}") from None
    _clear_open_sizes(model.graph)
    return model


def _clear_open_sizes(graph: Any) -> None:
    """Clears the value and the name of each open size, however the file stores the size."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            written = dim.dim_value if dim.HasField("dim_value") else dim.dim_param
            if declared_shape([written]) == (None,):
                dim.Clear()
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _clear_open_sizes(inner)


def _names(graph: Any) -> Iterator[object]:
    """Yields the names that this module uses. Protobuf returns a name that is not UTF-8 as bytes."""
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        for attribute in node.attribute:
            yield attribute.name
            yield from _names(attribute.g)
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield value.name
        yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)
    yield from (tensor.name for tensor in graph.initializer)


def _constants(onnx: Any, graph: Any) -> Iterator[tuple[str, Constant]]:
    """Raises ValueError if a constant cannot be read."""
    for tensor in graph.initializer:
        yield tensor.name, _constant(onnx, tensor)
    for sparse in graph.sparse_initializer:
        dtype = onnx_nodes.dtype_of(onnx, sparse.values.data_type)
        yield sparse.values.name, Constant(Tensor(dtype, tuple(sparse.dims)), False, None)
    for node in graph.node:
        if node.op_type == "Constant" and node.domain in DEFAULT_DOMAINS and node.output:
            yield node.output[0], _constant(onnx, _of_constant_node(onnx, node))


def _of_constant_node(onnx: Any, node: Any) -> Any:
    """Returns the node's value as a TensorProto, regardless of the attribute that holds it."""
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
    dtype = onnx_nodes.dtype_of(onnx, tensor.data_type)
    is_external = tensor.data_location == onnx.TensorProto.EXTERNAL
    is_structure = dtype in ("int64", "bool")
    value = None
    if not is_external and (is_structure or int(np.prod(shape)) <= KEPT_ELEMENTS):
        try:
            value = onnx.numpy_helper.to_array(tensor)
        except Exception as e:
            code = tensor.data_type
            known = code in onnx.TensorProto.DataType.values()
            why = one_line(e) if known else f"it has the unknown element type {code}"
            raise ValueError(f"the constant {tensor.name!r} cannot be read: {why}") from e
    return Constant(Tensor(dtype, shape), is_external, value)


_INT64 = 7
"""TensorProto's code of int64, the type of tensors that contain shapes."""


def _drop_large(graph: Any) -> None:
    """Removes the bytes of large weights, because shapes do not depend on these bytes, and marks the weights as
    external.
    """
    for tensor in graph.initializer:
        if int(np.prod(tensor.dims)) > KEPT_ELEMENTS and tensor.data_type != _INT64:
            for name in ("raw_data", "float_data", "int32_data", "double_data", "uint64_data"):
                tensor.ClearField(name)
            tensor.data_location = 1  # DataLocation.EXTERNAL


def _sort(graph: Any, path: Path) -> None:
    nodes = list(graph.node)
    in_order = onnx_nodes.ordered(nodes, path)
    if in_order is not nodes:
        copies = [type(node).FromString(node.SerializeToString()) for node in in_order]
        del graph.node[:]
        graph.node.extend(copies)


def _set_sizes(
    graph: Any,
    constants: set[str],
    batch: int,
    sizes: Mapping[str, int],
    shapes: Mapping[str, tuple[int, ...]],
    path: Path,
) -> Mapping[str, int]:
    """Sets every dimension of every input to a number. Returns the sizes by symbolic dimension."""
    inputs = [i for i in graph.input if i.name not in constants]
    unknown = shapes.keys() - {i.name for i in inputs}
    problems = [f"{path} has no input {name!r}" for name in unknown]
    batches = _batches(inputs)
    used: dict[str, int] = {}
    missing: dict[str, str] = {}
    for one in inputs:
        dims = one.type.tensor_type.shape.dim
        shape = shapes.get(one.name)
        if shape is not None and len(shape) != len(dims):
            problems.append(
                f"{path}: input {one.name!r} has {counted(len(dims), 'dimension')}, not {len(shape)}"
            )
            continue
        for axis, dim in enumerate(dims):
            place = f"{one.name}[{axis}]"
            name = dim.dim_param or place
            known = sizes.get(name, sizes.get(place))
            is_batch = not axis or dim.dim_param in batches
            size = shape[axis] if shape else _size(dim, known, batch if is_batch else None)
            if size is None:
                example = shlex.quote(f"{name}={EXAMPLE_SIZE}")
                missing.setdefault(
                    name,
                    f"{path}: dimension {name!r} of input {one.name!r} has no size: set it, e.g. "
                    f"--size {example}",
                )
            elif not dim.HasField("dim_value"):
                used[name] = size
                dim.dim_value = size
            elif dim.dim_value != size:
                problems.append(
                    f"{path}: input {one.name!r} has {dim.dim_value} at axis {axis}, not {size}"
                )
    refuse((*problems, *missing.values()))
    if used:  # the shapes stored in the file are dropped, because they belong to other input sizes
        del graph.value_info[:]
        onnx_nodes.forget_outputs(graph)
    return used


def _size(dim: Any, known: int | None, batch: int | None) -> int | None:
    """batch: None for a dimension that is not the batch."""
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    return batch if known is None else known


def _batches(inputs: Sequence[Any]) -> set[str]:
    """Returns the names of open first dimensions. Such a name stands for the batch on every axis where it occurs, as in
    [layers, batch, hidden].
    """
    first = [one.type.tensor_type.shape.dim[:1] for one in inputs]
    names = declared_shape(dim.dim_param for dims in first for dim in dims)
    return {name for name in names if isinstance(name, str) and name}
