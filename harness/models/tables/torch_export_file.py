"""Reads the tables that a torch.export program indexes. Parses the graph's JSON and does not need PyTorch."""

import json
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.models.tables.flow import Flow, Lookup, Operation, Operators

_GRAPH = re.compile(r"[^/]+/models/[^/]+\.json")
_ATEN = "torch.ops.aten."

OPERATORS = Operators(
    first=frozenset((
        "_to_copy", "_unsafe_view", "alias", "amax", "amin", "chunk", "clamp", "clamp_max", "clamp_min",
        "clone", "contiguous", "detach", "detach_", "expand", "expand_as", "flatten", "flip", "gather",
        "index", "index_select", "lift_fresh_copy", "masked_fill", "movedim", "narrow", "pad", "permute",
        "repeat", "reshape", "roll", "select", "slice", "split", "split_with_sizes", "squeeze", "t", "to",
        "transpose", "type_as", "unbind", "unflatten", "unsqueeze", "view",
    )),
    several={"cat": (), "maximum": (), "minimum": (), "stack": ()},
    arithmetic=frozenset((
        "abs", "add", "add_", "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_xor", "cumsum",
        "div", "floor_divide", "mean", "mul", "mul_", "neg", "pow", "prod", "rsub", "sub", "sub_", "sum",
    )),
    choice=("where",),
    less="lt",
    add="add",
)  # fmt: skip

LOOKUPS: Mapping[str, tuple[str, str]] = {
    "embedding": ("weight", "indices"),
    "embedding_bag": ("weight", "indices"),
    "_embedding_bag": ("weight", "indices"),
    "_embedding_bag_forward_only": ("weight", "indices"),
    "gather": ("self", "index"),
    "index": ("self", "indices"),
    "index_put": ("self", "indices"),
    "index_select": ("self", "index"),
    "scatter": ("self", "index"),
}
"""Maps an operator to the names of its arguments for the table and for the indices."""

OF_SEVERAL_AXES = ("index", "index_put")
"""Operators whose n-th indices select along the n-th axis."""


def read(path: Path) -> Flow:
    """Raises OSError, or an exception in `WRONG_CONTENT` if the file is not a torch.export archive."""
    with zipfile.ZipFile(path) as archive:
        (name,) = (name for name in archive.namelist() if _GRAPH.fullmatch(name))
        module = json.loads(archive.read(name))["graph_module"]
    graph, specs = module["graph"], module["signature"]["input_specs"]
    users = [spec["user_input"]["arg"] for spec in specs if "user_input" in spec]
    inputs = {name: name for user in users for name in _tensors(user)}
    operations = []
    lookups: list[Lookup] = []
    for node in graph["nodes"]:
        kind = _kind(node["target"])
        arguments = {one["name"]: _tensors(one["arg"]) for one in node["inputs"]}
        outputs = [name for output in node["outputs"] for name in _tensors(output)]
        sources = [name for names in arguments.values() for name in names or [""]]
        operations.append(Operation(kind, sources, outputs))
        lookups += _lookups(kind, node, arguments, graph["tensor_values"])
    return Flow(inputs, OPERATORS.copies(operations), lookups)


def _kind(target: str) -> str:
    """Returns the operator's name without its overload, or '' if the operator is not from ATen."""
    return target.removeprefix(_ATEN).partition(".")[0] if target.startswith(_ATEN) else ""


def _tensors(argument: Mapping[str, Any]) -> list[str]:
    """Returns the names of the tensors in an argument. '' stands for a tensor that the list omits."""
    if "as_tensor" in argument:
        return [argument["as_tensor"]["name"]]
    if "as_tensors" in argument:
        return [one["name"] for one in argument["as_tensors"]]
    several = argument.get("as_optional_tensors", ())
    return [one["as_tensor"]["name"] if "as_tensor" in one else "" for one in several]


def _lookups(
    kind: str,
    node: Mapping[str, Any],
    arguments: Mapping[str, Sequence[str]],
    values: Mapping[str, Any],
) -> Iterator[Lookup]:
    if not kind and node["target"].startswith("torch.ops."):
        yield from (Lookup(n, "", None) for names in arguments.values() for n in names if n)
    if kind not in LOOKUPS:
        return
    table, indices = (arguments.get(name, ()) for name in LOOKUPS[kind])
    sizes = [size.get("as_int") for size in values[table[0]]["sizes"]] if table else []
    given = (one["arg"].get("as_int", 0) for one in node["inputs"] if one["name"] == "dim")
    dim = next(given, 0)
    for position, name in enumerate(indices):
        axis = position if kind in OF_SEVERAL_AXES else dim
        if name:
            known = -len(sizes) <= axis < len(sizes)
            yield Lookup(name, kind, sizes[axis] if known else None)
