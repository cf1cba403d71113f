"""Reads the operators in PyTorch's files as a graph, from exported programs and TorchScript."""

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from harness.profiler import Tensor, WiredNode, Wiring

_OPERATOR = type(torch.ops.aten.relu.default)


class FileGraph(NamedTuple):
    wiring: Wiring
    """The operators, named as in PyTorch's profiler, without nodes that pack or unpack values."""
    tensors: Mapping[str, Tensor]
    """Types of the tensors, as recorded in the file."""
    arguments: Sequence[Sequence[str | None]]
    """For each node, the tensor at each position in its schema; None for arguments that are not tensors. () if
    `tensors` already contains all types.
    """


def of_program(program: Any, input_sizes: Sequence[Sequence[int]], narrow: str) -> FileGraph:
    """input_sizes: the shape of each input in the calls. narrow: the type to which float32 was converted."""
    inputs = list(program.graph_signature.user_inputs)
    sizes = dict(zip(inputs, input_sizes, strict=True))
    symbols: dict[Any, int] = {}
    stands_for: dict[str, tuple[str, ...]] = {}
    nodes: list[WiredNode] = []
    tensors: dict[str, Tensor] = {}
    outputs: tuple[str, ...] = ()
    for node in program.graph.nodes:
        value = node.meta.get("val")
        taken = _flat(stands_for[other.name] for other in node.all_input_nodes)
        if node.op == "placeholder":
            names: tuple[str, ...] = (node.name,)
            if node.name in sizes:
                symbols |= _bound(value, sizes[node.name])
        elif isinstance(node.target, _OPERATOR):
            names = (node.name,)
            if isinstance(value, list | tuple):
                names = tuple(f"{node.name}#{i}" for i in range(len(value)))
            operation = node.target.name().partition(".")[0]  # aten::add.Tensor becomes aten::add
            nodes.append(WiredNode(_title(node), operation, "", taken, names))
        elif node.target is operator.getitem:
            names = taken[node.args[1] : node.args[1] + 1] or taken
            value = None
        else:
            names, value = taken, None
        stands_for[node.name] = names
        outputs = taken if node.op == "output" else outputs
        values = value if isinstance(value, list | tuple) else [value]
        tensors.update(_known(zip(names, values, strict=False), symbols, narrow))
    placeholders = {node.name for node in program.graph.nodes if node.op == "placeholder"}
    constants = frozenset(placeholders - sizes.keys())
    return FileGraph(Wiring(nodes, tuple(inputs), outputs, constants), tensors, ())


def _title(node: Any) -> str:
    """Returns the names of the node's module and of the node, e.g. layer1.0.conv1/conv2d_3."""
    modules = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    module = modules[-1] if modules else ""
    return str(node.name) if module.startswith("_") or not module else f"{module}/{node.name}"


def _flat(groups: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Returns the names of all groups in order, each once."""
    return tuple(dict.fromkeys(name for names in groups for name in names))


def _bound(value: Any, sizes: Sequence[int]) -> dict[Any, int]:
    """Maps a symbolic size to its value in these calls."""
    free = zip(getattr(value, "shape", ()), sizes, strict=False)
    return {size.node.expr: n for size, n in free if isinstance(size, torch.SymInt)}


def _known(
    values: Iterable[tuple[str, Any]], symbols: Mapping[Any, int], narrow: str
) -> Iterator[tuple[str, Tensor]]:
    for name, value in values:
        if not isinstance(value, torch.Tensor):
            continue
        shape = [
            size.node.expr.subs(symbols) if isinstance(size, torch.SymInt) else size
            for size in value.shape
        ]
        if all(isinstance(size, int) or size.is_number for size in shape):
            dtype = str(value.dtype).removeprefix("torch.")
            yield name, Tensor(narrow if dtype == "float32" else dtype, tuple(map(int, shape)))


def of_script(module: Any) -> FileGraph:
    graph = module.inlined_graph
    # The first input is skipped, because it is the module itself.
    inputs = [value.debugName() for value in graph.inputs()][1:]
    stands_for: dict[str, tuple[str, ...]] = {name: (name,) for name in inputs}
    constants: set[str] = set()
    nodes: list[WiredNode] = []
    arguments: list[list[str | None]] = []
    for node in _in_order(graph):
        taken = [stands_for.get(value.debugName(), ()) for value in node.inputs()]
        outputs = tuple(value.debugName() for value in node.outputs())
        kind = node.kind()
        if kind.startswith("aten::"):
            nodes.append(WiredNode(_scoped(node), kind, "", _flat(taken), outputs))
            arguments.append([names[0] if len(names) == 1 else None for names in taken])
            stands_for.update((name, (name,)) for name in outputs)
        elif kind in ("prim::GetAttr", "prim::Constant"):
            tensors = [v.debugName() for v in node.outputs() if str(v.type()) == "Tensor"]
            constants.update(tensors)
            stands_for.update((name, (name,)) for name in tensors)
        else:
            stands_for.update((name, _flat(taken)) for name in outputs)
    outputs = _flat(stands_for.get(value.debugName(), ()) for value in graph.outputs())
    return FileGraph(Wiring(nodes, tuple(inputs), outputs, frozenset(constants)), {}, arguments)


def _in_order(block: Any) -> Iterator[Any]:
    """Yields all nodes, including both sides of a branch; a node follows the nodes inside it."""
    for node in block.nodes():
        for inner in node.blocks():
            yield from _in_order(inner)
        yield node


def _scoped(node: Any) -> str:
    """Returns the module's and the operation's name; if the file does not record the module, returns the operation's
    and the output's name.
    """
    scope = node.scopeName().rpartition("/")[2].removeprefix("__module.")
    operation = node.kind().removeprefix("aten::")
    return f"{scope}/{operation}" if scope else f"{operation} {next(node.outputs()).debugName()}"
