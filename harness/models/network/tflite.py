"""The network in a LiteRT file, read from its FlatBuffer.

Field numbers and codes: tensorflow/lite/schema/schema.fbs, of version 3, to which fields are only added.
"""

import mmap
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import NamedTuple

from harness.core.formats.flatbuffer import Table, root
from harness.errors import ConfigError
from harness.models.network.network import Structure, of_shapes

_IDENTIFIER = b"TFL3"
_OPERATOR_CODES, _SUBGRAPHS, _BUFFERS = 1, 2, 4
_TENSORS, _INPUTS, _OPERATORS = 0, 1, 3
_SHAPE, _TYPE, _BUFFER, _SIGNATURE = 0, 1, 2, 7
_INDEX, _OP_INPUTS, _OP_OUTPUTS, _OPTIONS = 0, 1, 2, 4
_DATA, _DATA_SIZE = 0, 2

_TYPES = {
    0: "float32",
    1: "float16",
    3: "uint8",
    7: "int16",
    9: "int8",
    10: "float64",
    17: "int4",
    18: "bfloat16",
}
"""Of weights; indices and shapes are of others."""

_CONV, _DEPTHWISE, _CONNECTED, _TRANSPOSED, _BATCHED, _CONV_3D = 3, 4, 9, 67, 126, 132
_STRIDES = {_CONV: (1, 2), _DEPTHWISE: (1, 2), _CONV_3D: (1, 2, 3)}
"""Fields of the options in which strides are."""

_HIDDEN = frozenset((16, 24, 27, 32, 35, 44, 46, 52, 118, 119, 141, 171, 197, 206))
"""Recurrent cells, custom operators, If, While and others whose products are not counted here."""


_Shape = tuple[int, ...]

_RULES: Mapping[int, Callable[[Sequence[_Shape], _Shape, int], int]] = {
    # weights: (out, kernel..., in); of depthwise ones (1, kernel..., out)
    _CONV: lambda given, made, _: prod(made) * prod(given[1][1:]),
    _CONV_3D: lambda given, made, _: prod(made) * prod(given[1][:-1]),
    _DEPTHWISE: lambda given, made, _: prod(made) * prod(given[1][1:-1]),
    _CONNECTED: lambda given, made, _: prod(made) * given[1][-1],
    _TRANSPOSED: lambda given, _made, _: prod(given[2]) * prod(given[1][:-1]),
    _BATCHED: lambda given, made, across: prod(made) * given[0][across],
}


class _Tensor(NamedTuple):
    """is_free: a size beside the first is open."""

    shape: tuple[int, ...]
    type: str | None
    is_constant: bool
    is_free: bool


def of_tflite(path: Path) -> Structure:
    """A ConfigError where it is no LiteRT file."""
    try:
        with path.open("rb") as file:  # the map outlives it, and goes with its last slice
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        if bytes(content[4:8]) != _IDENTIFIER:
            raise ValueError("it does not begin as one")
        return _structure(root(content))
    except (OSError, ValueError, IndexError) as e:
        raise ConfigError(f"{path} is no LiteRT file: {e}") from None


def _structure(model: Table) -> Structure:
    filled = [bool(b.count(_DATA) or b.number(_DATA_SIZE, "Q")) for b in model.tables(_BUFFERS)]
    codes = [_code(code) for code in model.tables(_OPERATOR_CODES)]
    graphs = list(model.tables(_SUBGRAPHS))
    tensors = [[_tensor(t, filled) for t in graph.tables(_TENSORS)] for graph in graphs]
    constants = [t for each in tensors for t in each if t.is_constant and t.type is not None]
    strides: list[tuple[int, ...]] = []
    macs: int | None = 0
    for graph, known in zip(graphs, tensors, strict=True):
        for operator in graph.tables(_OPERATORS):
            code = codes[operator.number(_INDEX, "I")]
            options = operator.table(_OPTIONS)
            if code in _STRIDES and options is not None:
                strides.append(tuple(options.number(field) for field in _STRIDES[code]))
            found = _macs(code, operator, known)
            macs = None if macs is None or found is None else macs + found
    shapes = [(t.shape, t.type or "") for t in constants]
    size = tensors[0][graphs[0].numbers(_INPUTS)[0]].shape[0] if macs and len(graphs) == 1 else 0
    return of_shapes(shapes, strides, macs // size if macs and size else None)


def _code(code: Table) -> int:
    """The older field held what fits into a byte."""
    return max(code.number(0, "b"), code.number(3))


def _tensor(tensor: Table, filled: Sequence[bool]) -> _Tensor:
    buffer = tensor.number(_BUFFER, "I")
    return _Tensor(
        tuple(tensor.numbers(_SHAPE)),
        _TYPES.get(tensor.number(_TYPE, "b")),
        filled[buffer],
        -1 in tensor.numbers(_SIGNATURE)[1:],
    )


def _macs(code: int, operator: Table, tensors: Sequence[_Tensor]) -> int | None:
    """Of one operator, for the batch in the file; None where it cannot be told."""
    if code in _HIDDEN:
        return None
    if code not in _RULES:
        return 0
    given = [tensors[i] for i in operator.numbers(_OP_INPUTS) if i >= 0]
    made = tensors[operator.numbers(_OP_OUTPUTS)[0]]
    if any(t.is_free for t in (*given, made)):
        return None
    options = operator.table(_OPTIONS)
    transposes = code == _BATCHED and options is not None and options.number(0, "b")
    return _RULES[code]([t.shape for t in given], made.shape, -2 if transposes else -1)
