"""Reads the graph of a TensorFlow function, both as in the file and as optimised for execution.

A tensor is identified by the node that produces it, because the output's number is not needed to assign kernels to
nodes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import Any, NamedTuple

import tensorflow as tf

from harness.profiler import Tensor, WiredNode, Wiring

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_NO_NODES = frozenset({"Const", "Placeholder", "VarHandleOp", "NoOp", "_Arg", "_Retval"})


class _Operation(NamedTuple):
    op_type: str
    takes: tuple[str, ...]
    """Names of the operations whose outputs the operation reads."""
    type: Tensor | None
    """The type of the operation's first output; None if the type is unknown."""


def of_file(function: Any, batch: int) -> tuple[Wiring, dict[str, Tensor]]:
    """Returns the wiring and the tensor types of a concrete function, with every call inlined.

    Inlined operations get the same names as after TensorFlow's own inlining. batch: the size of an open first
    dimension; tensors with additional open dimensions have no type.
    """
    graph = function.graph.as_graph_def(add_shapes=True)
    library = {one.signature.name: one for one in graph.library.function}
    operations = dict(_operations(graph.node, "", {}, library, batch))
    names = [tensor.op.name for tensor in function.inputs]
    captured = frozenset(names[len(names) - len(function.captured_inputs) :])
    known = {name: one.type for name, one in operations.items() if one.type is not None}
    wiring = _wiring(
        operations,
        tuple(name for name in names if name not in captured),
        _origins([tensor.op.name for tensor in function.outputs], operations),
        captured,
    )
    return wiring, known


def of_executed(graph: Any) -> Wiring:
    """graph: an optimised GraphDef with all calls inlined."""
    operations = {
        node.name: _Operation(node.op, tuple(_producers(node.input)), None) for node in graph.node
    }
    arguments = [node for node in graph.node if node.op == "_Arg"]
    captured = {n.name for n in arguments if n.attr["T"].type == tf.resource.as_datatype_enum}
    outputs = [
        name for one in operations.values() if one.op_type == "_Retval" for name in one.takes
    ]
    inputs = tuple(node.name for node in arguments if node.name not in captured)
    return _wiring(operations, inputs, tuple(outputs), frozenset(captured))


def moved(file: Wiring, executed: Wiring) -> set[str]:
    """Returns the nodes that the optimiser moved, for example an activation that it moved behind a pooling operation.

    The outputs of these nodes differ from the outputs of the nodes with the same names in the file.
    """
    theirs = {node.name: node for node in file.nodes}
    pairs = [(node, theirs[node.name]) for node in executed.nodes if node.name in theirs]
    return {
        ours.name
        for ours, node in pairs
        if ours.op_type == node.op_type
        and _data(ours, executed.constants, file) != _data(node, file.constants, file)
    }


def _data(node: WiredNode, constants: frozenset[str], file: Wiring) -> set[str]:
    return {file.originals.get(name, name) for name in node.inputs if name not in constants}


def _wiring(
    operations: Mapping[str, _Operation],
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    captured: frozenset[str],
) -> Wiring:
    takes = {name: _origins(one.takes, operations) for name, one in operations.items()}
    loops = {name for name, one in operations.items() if one.op_type == "NextIteration"}
    order = TopologicalSorter(
        {name: [] if name in loops else names for name, names in takes.items()}
    ).static_order()
    nodes = [
        WiredNode(name, operations[name].op_type, "", takes[name], (name,))
        for name in order
        if name in operations and not _is_passed_through(operations[name])
    ]
    constants = {n for n, one in operations.items() if one.op_type in ("Const", "VarHandleOp")}
    return Wiring(nodes, inputs, outputs, captured | constants)


def _is_passed_through(one: _Operation) -> bool:
    return one.op_type in _NO_NODES or one.op_type in (*_CALLS, "argument")


def _origins(names: Iterable[str], operations: Mapping[str, _Operation]) -> tuple[str, ...]:
    """Replaces calls and function arguments with the operations that produce their values, in order."""
    origins: dict[str, None] = {}
    waiting, seen = list(names)[::-1], set()
    while waiting:
        name = waiting.pop()
        one = operations.get(name)
        if name in seen:
            continue
        seen.add(name)
        if one is not None and one.op_type in (*_CALLS, "argument"):
            waiting += one.takes[::-1]
        else:
            origins[name] = None
    return tuple(origins)


def _producers(inputs: Sequence[str], prefix: str = "") -> Iterator[str]:
    """Yields the operations to which the input references point: both `conv:0` and `conv:y:0` point to conv. Omits
    references such as `^conv`, which only wait for an operation.
    """
    return (prefix + name.partition(":")[0] for name in inputs if not name.startswith("^"))


def _operations(
    nodes: Iterable[Any],
    prefix: str,
    arguments: Mapping[str, str],
    library: Mapping[str, Any],
    batch: int,
) -> Iterator[tuple[str, _Operation]]:
    """Yields the operations in a function's body. arguments: maps a parameter to the operation that is passed for it."""
    for name, passed in arguments.items():
        yield f"{prefix}{name}", _Operation("argument", (passed,), None)
    for node in nodes:
        takes = tuple(_producers(node.input, prefix))
        name = prefix + node.name
        called = library.get(node.attr["f"].func.name) if node.op in _CALLS else None
        if called is None:
            yield name, _Operation(node.op, takes, _type(node, batch))
            continue
        names = [argument.name for argument in called.signature.input_arg]
        inner = dict(zip(names, takes, strict=False))
        yield from _operations(called.node_def, f"{name}/", inner, library, batch)
        returned = tuple(_producers(called.ret.values(), f"{name}/"))
        yield name, _Operation(node.op, returned, None)


def _type(node: Any, batch: int) -> Tensor | None:
    shapes = node.attr["_output_shapes"].list.shape
    kind = next(
        (node.attr[key].type for key in ("dtype", "out_type", "DstT", "T") if key in node.attr),
        None,
    )
    if not shapes or shapes[0].unknown_rank or kind in (None, tf.resource.as_datatype_enum):
        return None
    sizes = [size.size for size in shapes[0].dim]
    if any(size < 0 for size in sizes[1:]):
        return None
    return Tensor(tf.dtypes.as_dtype(kind).name, tuple(batch if s < 0 else s for s in sizes))
