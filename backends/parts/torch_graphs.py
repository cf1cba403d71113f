"""Reads the operators in PyTorch's files as a graph: exported programs and TorchScript."""

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from harness.profiler import Tensor, WiredNode, Wiring

_OPERATOR = type(torch.ops.aten.relu.default)


class FileGraph(NamedTuple):
    """wiring: its nodes are the operators alone, each called as PyTorch's profiler calls it; what only
    puts values together or takes them apart is passed through. tensors: the types that the file
    tells. arguments: of each node the tensor at each position of its schema, None for all else;
    empty where `tensors` has all types.
    """

    wiring: Wiring
    tensors: Mapping[str, Tensor]
    arguments: Sequence[Sequence[str | None]]


def of_program(program: Any, given: Sequence[Sequence[int]], narrow: str) -> FileGraph:
    """given: the sizes of each input in the calls. narrow: what float32 was converted to."""
    inputs = list(program.graph_signature.user_inputs)
    sizes = dict(zip(inputs, given, strict=True))
    symbols: dict[Any, int] = {}
    stands_for: dict[str, tuple[str, ...]] = {}
    nodes: list[WiredNode] = []
    tensors: dict[str, Tensor] = {}
    outputs: tuple[str, ...] = ()
    for node in program.graph.nodes:
        value = node.meta.get("val")
        taken = _together(stands_for[other.name] for other in node.all_input_nodes)
        if node.op == "placeholder":
            made: tuple[str, ...] = (node.name,)
            if node.name in sizes:
                symbols |= _bound(value, sizes[node.name])
        elif isinstance(node.target, _OPERATOR):
            several = isinstance(value, list | tuple)
            made = tuple(f"{node.name}#{i}" for i in range(len(value))) if several else (node.name,)
            operation = node.target.name().partition(".")[0]  # aten::add of aten::add.Tensor
            nodes.append(WiredNode(_title(node), operation, "", taken, made))
        elif node.target is operator.getitem:
            made = taken[node.args[1] : node.args[1] + 1] or taken
            value = None
        else:
            made, value = taken, None
        stands_for[node.name] = made
        outputs = taken if node.op == "output" else outputs
        values = value if isinstance(value, list | tuple) else [value]
        tensors.update(_known(zip(made, values, strict=False), symbols, narrow))
    constants = frozenset(n for n in _placeholders(program) if n not in sizes)
    return FileGraph(Wiring(nodes, tuple(inputs), outputs, constants), tensors, ())


def _placeholders(program: Any) -> Iterator[str]:
    return (node.name for node in program.graph.nodes if node.op == "placeholder")


def _title(node: Any) -> str:
    """With the module it is of, e.g. layer1.0.conv1/conv2d_3."""
    modules = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    module = modules[-1] if modules else ""
    return str(node.name) if module.startswith("_") or not module else f"{module}/{node.name}"


def _together(found: Iterable[Sequence[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for names in found for name in names))


def _bound(value: Any, sizes: Sequence[int]) -> dict[Any, int]:
    """Symbol -> what it is in these calls."""
    free = zip(getattr(value, "shape", ()), sizes, strict=False)
    return {size.node.expr: n for size, n in free if isinstance(size, torch.SymInt)}


def _known(
    found: Iterable[tuple[str, Any]], symbols: Mapping[Any, int], narrow: str
) -> Iterator[tuple[str, Tensor]]:
    for name, value in found:
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
    inputs = [value.debugName() for value in graph.inputs()][1:]  # the first is the module itself
    stands_for: dict[str, tuple[str, ...]] = {name: (name,) for name in inputs}
    constants: set[str] = set()
    nodes: list[WiredNode] = []
    arguments: list[list[str | None]] = []
    for node in _in_order(graph):
        taken = [stands_for.get(value.debugName(), ()) for value in node.inputs()]
        made = tuple(value.debugName() for value in node.outputs())
        kind = node.kind()
        if kind.startswith("aten::"):
            nodes.append(WiredNode(_scoped(node), kind, "", _together(taken), made))
            arguments.append([names[0] if len(names) == 1 else None for names in taken])
            stands_for.update((name, (name,)) for name in made)
        elif kind in ("prim::GetAttr", "prim::Constant"):
            tensors = [v.debugName() for v in node.outputs() if str(v.type()) == "Tensor"]
            constants.update(tensors)
            stands_for.update((name, (name,)) for name in tensors)
        else:
            stands_for.update((name, _together(taken)) for name in made)
    outputs = _together(stands_for.get(value.debugName(), ()) for value in graph.outputs())
    return FileGraph(Wiring(nodes, tuple(inputs), outputs, frozenset(constants)), {}, arguments)


def _in_order(block: Any) -> Iterator[Any]:
    """Of both sides of a branch, too; each node after what is in it."""
    for node in block.nodes():
        for inner in node.blocks():
            yield from _in_order(inner)
        yield node


def _scoped(node: Any) -> str:
    """With the module it is of, where the file kept that."""
    scope = node.scopeName().rpartition("/")[2].removeprefix("__module.")
    operation = node.kind().removeprefix("aten::")
    return f"{scope}/{operation}" if scope else f"{operation} {next(node.outputs()).debugName()}"
