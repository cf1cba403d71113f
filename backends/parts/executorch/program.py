"""Reads what an ExecuTorch file (.pte) records about its method: inputs, outputs, operators, delegates, weights.

The file is read directly, because the runtime's Python interface reports neither names nor open sizes. This module
refuses truncated files, and files that are not programs, before native code reads them.
"""

import json
import re
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.core.formats.flatbuffer import Table, root
from harness.core.formats.protobuf import mapped
from harness.errors import ConfigError

METHOD = "forward"
"""The method that is measured: a module's `forward`."""

XNNPACK = "XnnpackBackend"

_MARK = re.compile(rb"ET\d\d")
_MARK_AT = slice(4, 8)
_HEADER_MARK, _HEADER_BYTES = b"eh00", 32
_HEADER_AT = 8

_TYPES = {
    0: "uint8",
    1: "int8",
    2: "int16",
    3: "int32",
    4: "int64",
    5: "float16",
    6: "float32",
    7: "float64",
    11: "bool",
    15: "bfloat16",
    27: "uint16",
    28: "uint32",
    29: "uint64",
}
"""Maps the number of a scalar type in the schema to NumPy's name."""

_XNNPACK_TYPES = {
    1: "float32",
    2: "float16",
    3: "int8",
    4: "uint8",
    5: "int32",
    6: "int8",
    7: "int32",
    8: "int4",
    9: "int8",
    10: "int4",
    11: "int8",
    12: "int32",
    13: "float32",
    14: "bfloat16",
}
_XNNPACK_HEADER_MARK = slice(4, 8)
_XNNPACK_HEADER_BYTES = 30

# Numbers of the fields in program.fbs and in XNNPACK's schema.fbs.
_PROGRAM_PLANS, _PROGRAM_INLINE, _PROGRAM_SEGMENTS, _PROGRAM_NAMED = 1, 3, 4, 7
_PLAN_NAME, _PLAN_CONTAINER, _PLAN_VALUES, _PLAN_INPUTS, _PLAN_OUTPUTS = 0, 1, 2, 3, 4
_PLAN_OPERATORS, _PLAN_DELEGATES = 6, 7
_VALUE_KIND, _VALUE, _KIND_OF_TENSORS = 0, 1, 5
_TENSOR_TYPE, _TENSOR_SIZES, _TENSOR_DATA, _TENSOR_DYNAMISM = 0, 2, 5, 8
_DELEGATE_ID, _DELEGATE_DATA = 0, 1
_GRAPH_VALUES, _GRAPH_CONSTANTS, _CONSTANT_NAME = 2, 8, 2
_XVALUE_KIND, _XVALUE, _QUANTISED = 0, 1, 2
_XTENSOR_TYPE, _XTENSOR_DIMS, _XTENSOR_DATA = 0, 2, 3

Weight = tuple[tuple[int, ...], str]


class Port(NamedTuple):
    """An input or output."""

    dtype: str
    sizes: tuple[int, ...]
    """The sizes, or the largest possible sizes if they may vary."""
    varies: bool
    """True if some sizes may vary. The file does not record which sizes vary."""


class Program(NamedTuple):
    """The method `forward` of a file."""

    inputs: tuple[Port, ...]
    outputs: tuple[str, ...]
    """The output names if the method returns a dict or several tensors; () for a single output."""
    operators: frozenset[str]
    """Names of the operators outside delegates, such as `aten::add.out`."""
    delegates: tuple[str, ...]
    weights: tuple[Weight, ...]
    """Shape and number type of each constant, including the constants in XNNPACK's graphs."""


def read(path: Path) -> Program:
    """Reads the file; raises a ConfigError if it is not a program with a method that accepts tensors."""
    try:
        content = mapped(path)
        mark = bytes(content[_MARK_AT])
        if not _MARK.fullmatch(mark):
            raise ValueError("its file identifier is missing")
        program = root(content, mark)
        segments = _segments(program, content)
        plans = {plan.text(_PLAN_NAME): plan for plan in program.tables(_PROGRAM_PLANS)}
        if METHOD not in plans:
            have = ", ".join(plans) or "none"
            raise ConfigError(
                f"{path} has the methods {have}, but the harness measures {METHOD!r}: export the module's `forward`"
            )
        plan = plans[METHOD]
        return _program(path, plan, [*_delegated(program, plan, segments)])
    except OSError as e:
        raise ConfigError(f"{path} cannot be read: {e.strerror or e}") from None
    except (ValueError, RecursionError) as e:
        raise ConfigError(
            f"{path} is not a complete ExecuTorch program (.pte), because {e}: fetch it again, or export it again"
        ) from None


def _segments(program: Table, content: memoryview) -> Sequence[memoryview]:
    """Returns the data that follow the program: weights, and the delegates' graphs."""
    header = bytes(content[_HEADER_AT : _HEADER_AT + _HEADER_BYTES])
    base = 0
    if header.startswith(_HEADER_MARK):
        base = int.from_bytes(header[16:24], "little")
    found = []
    for segment in program.tables(_PROGRAM_SEGMENTS):
        start = base + segment.number(0, "Q")
        end = start + segment.number(1, "Q")
        if end > len(content):
            raise ValueError("it is truncated")
        found.append(content[start:end])
    return found


def _program(path: Path, plan: Table, weights: list[Weight]) -> Program:
    values = plan.tables(_PLAN_VALUES)
    inputs = tuple(_port(path, values, n) for n in plan.numbers(_PLAN_INPUTS, "i"))
    returned = len(plan.numbers(_PLAN_OUTPUTS, "i"))
    operators = (one.text(0) + (f".{one.text(1)}" if one.text(1) else "")
                 for one in plan.tables(_PLAN_OPERATORS))  # fmt: skip
    return Program(
        inputs,
        _output_names(plan, returned),
        frozenset(operators),
        tuple(one.text(_DELEGATE_ID) for one in plan.tables(_PLAN_DELEGATES)),
        (*_constants(values), *weights),
    )


def _port(path: Path, values: Sequence[Table], number: int) -> Port:
    tensor = _tensor(values[number]) if 0 <= number < len(values) else None
    if tensor is None:
        raise ConfigError(f"{path}: an input is not a tensor: export the method with tensors only")
    kind = tensor.number(_TENSOR_TYPE, "b")
    dtype = _TYPES.get(kind, f"type {kind} of ExecuTorch")
    sizes = tuple(tensor.numbers(_TENSOR_SIZES, "i"))
    return Port(dtype, sizes, tensor.number(_TENSOR_DYNAMISM, "b") != 0)


def _tensor(value: Table) -> Table | None:
    return value.table(_VALUE) if value.number(_VALUE_KIND, "B") == _KIND_OF_TENSORS else None


def _constants(values: Sequence[Table]) -> Iterator[Weight]:
    """Yields the constants outside delegates."""
    for tensor in map(_tensor, values):
        if tensor is not None and tensor.number(_TENSOR_DATA, "I"):
            kind = _TYPES.get(tensor.number(_TENSOR_TYPE, "b"), "")
            yield tuple(tensor.numbers(_TENSOR_SIZES, "i")), kind


def _output_names(plan: Table, count: int) -> tuple[str, ...]:
    """Returns the keys if the method returns a dict, otherwise `output_n`; () for a single tensor."""
    container = plan.table(_PLAN_CONTAINER)
    shape = container.text(1) if container is not None else ""
    keys = _keys(shape)
    if len(keys) == count:
        return keys
    return tuple(f"output_{n}" for n in range(count)) if count > 1 else ()


def _keys(shape: str) -> tuple[str, ...]:
    """Returns the keys if PyTorch's description of a method's return value is a dict of tensors; () for other values."""
    try:
        (_, spec) = json.loads(shape)
        if spec["type"] == "builtins.dict":
            return tuple(map(str, json.loads(spec["context"])))
    except (ValueError, TypeError, KeyError):
        pass
    return ()


def _delegated(program: Table, plan: Table, segments: Sequence[memoryview]) -> Iterator[Weight]:
    """Yields the constants of the graphs that XNNPACK computes."""
    inline = program.tables(_PROGRAM_INLINE)
    named = {
        one.text(0) for one in program.tables(_PROGRAM_NAMED) if one.number(1, "I") < len(segments)
    }
    for delegate in plan.tables(_PLAN_DELEGATES):
        place = delegate.table(_DELEGATE_DATA)
        if place is None or delegate.text(_DELEGATE_ID) != XNNPACK:
            continue
        index, in_segment = place.number(1, "I"), place.number(0, "b")
        if index >= len(segments if in_segment else inline):
            raise ValueError("a delegate has no data")
        yield from _of_xnnpack(segments[index] if in_segment else inline[index].content(0), named)


def _of_xnnpack(blob: memoryview, named: Container[str]) -> Iterator[Weight]:
    """named: the weights that the program stores by name."""
    if len(blob) < _XNNPACK_HEADER_BYTES or bytes(blob[_XNNPACK_HEADER_MARK]) != b"XH00":
        raise ValueError("a graph of XNNPACK has no header")
    start, size = (int.from_bytes(blob[at : at + 4], "little") for at in (10, 14))
    graph = root(blob[start : start + size], b"XN")
    names = (one.text(_CONSTANT_NAME) for one in graph.tables(_GRAPH_CONSTANTS))
    if any(name and name not in named for name in names):
        # XNNPACK does not check for missing weights.
        raise ValueError("the weights of a graph are missing")
    for value in graph.tables(_GRAPH_VALUES):
        tensor = value.table(_XVALUE)
        if tensor is not None and value.number(_XVALUE_KIND, "B") == _QUANTISED:
            tensor = tensor.table(0)
        if tensor is not None and tensor.number(_XTENSOR_DATA, "I"):
            kind = _XNNPACK_TYPES.get(tensor.number(_XTENSOR_TYPE, "h"), "")
            yield tuple(tensor.numbers(_XTENSOR_DIMS, "I")), kind
