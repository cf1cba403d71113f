"""Reads the tables that a LiteRT file indexes, with the schema in LiteRT's package."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.models.network.tflite import Reader, opened, options
from harness.models.tables.flow import Flow, Lookup, Operation, Operators

_OPERATORS = Operators(
    first=frozenset((
        "BROADCAST_TO", "CAST", "EXPAND_DIMS", "GATHER", "GATHER_ND", "PAD", "PADV2", "REDUCE_MAX",
        "REDUCE_MIN", "RESHAPE", "SLICE", "SPLIT_V", "SQUEEZE", "STRIDED_SLICE", "TILE", "TOPK_V2",
        "TRANSPOSE", "UNPACK",
    )),
    several={
        "CONCATENATION": (), "MAXIMUM": (), "MINIMUM": (), "PACK": (), "SPLIT": (1,),
    },
    arithmetic=frozenset((
        "ABS", "ADD", "ADD_N", "CUMSUM", "DIV", "FLOOR_DIV", "MEAN", "MUL", "NEG", "POW", "REDUCE_PROD",
        "SQUARE", "SUB", "SUM",
    )),
    choice=("SELECT", "SELECT_V2"),
    less="LESS",
    add="ADD",
)  # fmt: skip

_LOOKUPS: Mapping[str, tuple[int, int]] = {
    "EMBEDDING_LOOKUP": (0, 1),
    "GATHER": (1, 0),
    "GATHER_ND": (1, 0),
}
"""Maps an operator to the input positions of the indices and the table."""

_OF_UNKNOWN = ("CALL", "CUSTOM", "EMBEDDING_LOOKUP_SPARSE", "IF", "STABLEHLO_GATHER", "WHILE")
"""Operators that may select rows, but for which this module has no rule."""


def read(path: Path) -> Flow:
    """Raises an exception in `BROKEN`, or PluginUnavailable if LiteRT's package is missing."""
    model, size_bytes = opened(path)
    reader = Reader(size_bytes)
    graph = reader.tables(model, "Subgraphs")[0]
    # The shape signature contains -1 for an open size, and is empty if all sizes are fixed.
    shapes = [
        reader.numbers(tensor, "ShapeSignature") or reader.numbers(tensor, "Shape")
        for tensor in reader.tables(graph, "Tensors")
    ]
    kinds = reader.kinds(model)
    operations = []
    lookups: list[Lookup] = []
    for operator in reader.tables(graph, "Operators"):
        kind = kinds[operator.OpcodeIndex()]
        indices = reader.numbers(operator, "Inputs")
        inputs, outputs = (
            [str(i) if i >= 0 else "" for i in tensors]
            for tensors in (indices, reader.numbers(operator, "Outputs"))
        )
        operations.append(Operation(kind, inputs, outputs))
        if kind in _OF_UNKNOWN:
            lookups += (Lookup(tensor, kind, None) for tensor in inputs if tensor)
        elif kind in _LOOKUPS:
            at, table = _LOOKUPS[kind]
            rows = _rows(kind, operator, shapes[indices[table]])
            lookups.append(Lookup(inputs[at], kind, rows))
    return Flow(dict(_inputs(reader, model, graph)), _OPERATORS.copies(operations), lookups)


def _inputs(reader: Reader, model: Any, graph: Any) -> Iterator[tuple[str, str]]:
    """Yields the names that the backend uses, which are the signature's names if there is exactly one signature."""
    signatures = reader.tables(model, "SignatureDefs")
    if len(signatures) == 1:
        for port in reader.tables(signatures[0], "Inputs"):
            yield port.Name().decode(), str(port.TensorIndex())
    else:
        tensors = reader.tables(graph, "Tensors")
        for index in reader.numbers(graph, "Inputs"):
            yield tensors[index].Name().decode(), str(index)


def _rows(kind: str, operator: Any, shape: Sequence[int]) -> int | None:
    about = options(operator, "GatherOptions") if kind == "GATHER" else None
    axis = about.Axis() if about is not None else 0
    if kind == "GATHER_ND":
        return min(shape, default=None)
    return shape[axis] if -len(shape) <= axis < len(shape) else None
