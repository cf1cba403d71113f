"""Reads the tables that a TorchScript file indexes, with PyTorch in a separate process.

PyTorch inlines the modules, and turns the weights into constants of a single graph. Does not run the model.
"""

from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness.core.child import call
from harness.models.tables.flow import Copy, Flow, Lookup, Operation, Operators
from harness.models.tables.torch_export_file import LOOKUPS, OF_SEVERAL_AXES, OPERATORS

_OPERATORS = Operators(
    OPERATORS.first | {"ListUnpack", "TupleUnpack", "TupleIndex", "__getitem__", "unchecked_cast"},
    {**OPERATORS.several, "ListConstruct": (), "TupleConstruct": ()},
    *OPERATORS[2:],
)


def read(path: Path) -> Flow:
    """Returns an empty Flow if PyTorch is missing. Raises PluginUnavailable if PyTorch cannot open the file."""
    if find_spec("torch") is None:
        return Flow({}, (), ())
    found = call(f"{__name__}:flow", {"path": str(path.absolute())}, None)
    copies = [Copy(*one) for one in found["copies"]]
    return Flow(found["inputs"], copies, [Lookup(*one) for one in found["lookups"]])


def flow(request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a Flow. request: contains the `path` of the file."""
    import torch

    module = torch.jit.load(request["path"], map_location="cpu").eval()
    graph = torch.jit.freeze(module, optimize_numerics=False).inlined_graph
    names = [argument.name for argument in module.forward.schema.arguments[1:]]
    given = [value.debugName() for value in list(graph.inputs())[1:]]
    nodes = [*_nodes(graph)]
    operations = [_operation(node) for node in nodes]
    return {
        "inputs": dict(zip(names, given, strict=True)),
        "copies": [*_OPERATORS.copies(operations), *(c for node in nodes for c in _branches(node))],
        "lookups": [lookup for node in nodes for lookup in _lookups(node)],
    }


def _nodes(block: Any) -> Iterator[Any]:
    """Yields all nodes, including nodes inside conditions and loops."""
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)


def _kind(node: Any) -> str:
    """Returns the operator's name, or "" if the operator is neither from TorchScript nor from ATen."""
    space, _, name = node.kind().partition("::")
    return name if space in ("aten", "prim") else ""


def _names(values: Any) -> list[str]:
    return [value.debugName() for value in values]


def _operation(node: Any) -> Operation:
    return Operation(_kind(node), _names(node.inputs()), _names(node.outputs()))


def _branches(node: Any) -> Iterator[Copy]:
    """Yields the copies into and out of the blocks of a condition or a loop."""
    given, made = _names(node.inputs()), _names(node.outputs())
    for block in node.blocks():
        answers = _names(block.outputs())
        if _kind(node) == "If":
            pairs = [*zip(answers, made, strict=True)]
        # loop: (maximum turns, condition, carried...) -> block (turn, carried...) -> (condition, carried...)
        else:
            carried, answers = _names(block.inputs())[1:], answers[1:]
            pairs = [
                *zip(given[2:], carried, strict=True),
                *zip(answers, carried, strict=True),
                *zip(answers, made, strict=True),
                *zip(given[2:], made, strict=True),
            ]
        yield from (Copy(source, target, is_exact=True) for source, target in pairs)


def _lookups(node: Any) -> Iterator[Lookup]:
    kind, values = _kind(node).removesuffix("_"), [*node.inputs()]
    # such a node may do anything with its inputs
    if not kind or kind in ("CallFunction", "CallMethod", "PythonOp"):
        yield from (Lookup(name, "", None) for name in _names(values))
    if kind not in LOOKUPS:
        return
    sizes = _sizes(values[0])
    for axis, value in _indices(kind, values):
        known = isinstance(axis, int) and -len(sizes) <= axis < len(sizes)
        yield Lookup(value.debugName(), kind, sizes[axis] if known else None)


def _indices(kind: str, values: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Yields pairs of an axis and the tensor that contains its indices. The axis is None if it is unknown until the
    model runs.
    """
    if "embedding" in kind:
        yield 0, values[1]
    elif kind not in OF_SEVERAL_AXES:
        yield values[1].toIValue(), values[2]
    elif _kind(values[1].node()) == "ListConstruct":
        yield from enumerate(values[1].node().inputs())
    else:
        yield None, values[1]


def _sizes(value: Any) -> list[int]:
    """Returns the sizes of a constant tensor, or [] for any other value."""
    constant = value.toIValue() if _kind(value.node()) == "Constant" else None
    return [] if constant is None else list(getattr(constant, "shape", ()))
