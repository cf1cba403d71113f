"""Reads the network in a LiteRT file with the schema in LiteRT's package."""

import mmap
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from harness.core.extras import how_to_install
from harness.core.files import WRONG_CONTENT
from harness.errors import ConfigError, PluginUnavailable
from harness.models.network.network import Structure, of_shapes

_TYPES = {
    "FLOAT32": "float32",
    "FLOAT16": "float16",
    "UINT8": "uint8",
    "INT16": "int16",
    "INT8": "int8",
    "FLOAT64": "float64",
    "INT4": "int4",
    "BFLOAT16": "bfloat16",
}
"""Number types of weights; indices and shapes have other types."""

_STRIDES = {
    "CONV_2D": ("Conv2DOptions", "StrideH", "StrideW"),
    "DEPTHWISE_CONV_2D": ("DepthwiseConv2DOptions", "StrideH", "StrideW"),
    "CONV_3D": ("Conv3DOptions", "StrideD", "StrideH", "StrideW"),
}
"""Maps an operator to its options table, and to the fields that contain its strides."""

_HIDDEN = frozenset((
    "LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM", "BIDIRECTIONAL_SEQUENCE_LSTM",
    "RNN", "UNIDIRECTIONAL_SEQUENCE_RNN", "BIDIRECTIONAL_SEQUENCE_RNN", "SVDF",
    "CUSTOM", "IF", "WHILE", "CONV_3D_TRANSPOSE",
    "STABLEHLO_CONVOLUTION", "STABLEHLO_DOT_GENERAL", "STABLEHLO_COMPOSITE",
))  # fmt: skip
"""Operators whose multiplications this module cannot count. If a network contains such an operator, `macs` is None."""

_Shape = tuple[int, ...]

_RULES: Mapping[str, Callable[[Sequence[_Shape], _Shape, int], int]] = {
    # weights are (out, kernel..., in), or (1, kernel..., out) if depthwise
    "CONV_2D": lambda inputs, output, _: prod(output) * prod(inputs[1][1:]),
    "CONV_3D": lambda inputs, output, _: prod(output) * prod(inputs[1][:-1]),
    "DEPTHWISE_CONV_2D": lambda inputs, output, _: prod(output) * prod(inputs[1][1:-1]),
    "FULLY_CONNECTED": lambda inputs, output, _: prod(output) * inputs[1][-1],
    "TRANSPOSE_CONV": lambda inputs, _output, _: prod(inputs[2]) * prod(inputs[1][:-1]),
    "BATCH_MATMUL": lambda inputs, output, across: prod(output) * inputs[0][across],
}

BROKEN: tuple[type[Exception], ...] = (*WRONG_CONTENT, struct.error, MemoryError, OSError)
"""Exceptions that a truncated file or a file in another format can raise, because the generated schema checks nothing.
"""


class _Tensor(NamedTuple):
    shape: _Shape
    type: str | None
    is_constant: bool
    is_free: bool
    """Whether a dimension other than the first is open."""


def of_tflite(path: Path) -> Structure:
    """Raises ConfigError if the file is not a LiteRT file, and PluginUnavailable if LiteRT's package is missing."""
    try:
        model, size_bytes = opened(path)
        return _NetworkReader(size_bytes).structure(model)
    except BROKEN as e:
        raise ConfigError(f"{path} is not a LiteRT file: {e}") from None


def opened(path: Path) -> tuple[Any, int]:
    """Returns (the schema's Model, the file's bytes). Raises an exception in BROKEN if the file is not a LiteRT file."""
    schema = _schema()
    # the memory map stays valid after the file is closed, until its last slice is freed
    with path.open("rb") as file:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if not schema.Model.ModelBufferHasIdentifier(content, 0):
        raise ValueError("its file identifier is missing")
    return schema.Model.GetRootAs(content, 0), len(content)


def _schema() -> Any:
    try:
        from ai_edge_litert import schema_py_generated
    except ModuleNotFoundError as e:
        raise PluginUnavailable(
            f"reading a LiteRT file needs the module {e.name!r}: {how_to_install('litert')}"
        ) from e
    return schema_py_generated


@cache
def _names(enumeration: str) -> Mapping[int, str]:
    """Maps the codes of BuiltinOperator or TensorType to names."""
    codes = vars(getattr(_schema(), enumeration))
    return {code: name for name, code in codes.items() if isinstance(code, int)}


class Reader:
    """Reads tables of the schema. The schema checks nothing, so counts in a broken file may have any value."""

    def __init__(self, size_bytes: int) -> None:
        """size_bytes: the file's size, which limits the number of elements. Without this limit, vectors that point at
        each other would take hours to read.
        """
        self._left = size_bytes

    def tables(self, owner: Any, name: str) -> list[Any]:
        count = getattr(owner, f"{name}Length")()
        self._take(count)
        return [getattr(owner, name)(i) for i in range(count)]

    def numbers(self, owner: Any, name: str) -> _Shape:
        if getattr(owner, f"{name}IsNone")():
            return ()
        self._take(getattr(owner, f"{name}Length")())
        return tuple(getattr(owner, f"{name}AsNumpy")().tolist())

    def _take(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise ValueError("it is truncated")

    def kinds(self, model: Any) -> list[str]:
        """Returns the operators in the order of their codes."""
        known = _names("BuiltinOperator")
        # An older field holds the code if the code is at most 127. A code that the schema does not know yet counts as
        # CUSTOM.
        codes = [
            max(c.DeprecatedBuiltinCode(), c.BuiltinCode())
            for c in self.tables(model, "OperatorCodes")
        ]
        return [known.get(code, "CUSTOM") for code in codes]


class _NetworkReader(Reader):
    """Reads the weights, strides and multiplications."""

    def structure(self, model: Any) -> Structure:
        filled = [b.DataLength() > 0 or b.Size() > 0 for b in self.tables(model, "Buffers")]
        kinds = self.kinds(model)
        strides: list[_Shape] = []
        constants: list[_Tensor] = []
        macs: int | None = 0
        graphs = self.tables(model, "Subgraphs")
        tensors: list[_Tensor] = []
        for graph in graphs:
            tensors = [self._tensor(t, filled) for t in self.tables(graph, "Tensors")]
            constants += [t for t in tensors if t.is_constant]
            for operator in self.tables(graph, "Operators"):
                kind = kinds[operator.OpcodeIndex()]
                strides += _strides(kind, operator)
                count = self._macs(kind, operator, tensors)
                macs = None if macs is None or count is None else macs + count
        shapes = [(t.shape, t.type) for t in constants if t.type]
        only = len(graphs) == 1 and macs
        size = tensors[self.numbers(graphs[0], "Inputs")[0]].shape[0] if only else 0
        return of_shapes(shapes, strides, macs // size if macs and size else None)

    def _tensor(self, tensor: Any, filled: Sequence[bool]) -> _Tensor:
        return _Tensor(
            self.numbers(tensor, "Shape"),
            _TYPES.get(_names("TensorType").get(tensor.Type(), "")),
            filled[tensor.Buffer()],
            -1 in self.numbers(tensor, "ShapeSignature")[1:],
        )

    def _macs(self, kind: str, operator: Any, tensors: Sequence[_Tensor]) -> int | None:
        """Returns the operator's number of multiplications for the batch in the file, or None if the number is unknown."""
        if kind in _HIDDEN:
            return None
        if kind not in _RULES:
            return 0
        inputs = [tensors[i] for i in self.numbers(operator, "Inputs") if i >= 0]
        output = tensors[self.numbers(operator, "Outputs")[0]]
        if any(t.is_free for t in (*inputs, output)):
            return None
        about = options(operator, "BatchMatMulOptions") if kind == "BATCH_MATMUL" else None
        across = -2 if about is not None and about.AdjX() else -1
        return _RULES[kind]([t.shape for t in inputs], output.shape, across)


def _strides(kind: str, operator: Any) -> Iterator[_Shape]:
    if kind in _STRIDES:
        table, *fields = _STRIDES[kind]
        about = options(operator, table)
        if about is not None:
            yield tuple(getattr(about, field)() for field in fields)


def options(operator: Any, table: str) -> Any:
    """Returns the operator's options, read as the schema's table `table`, or None if the file contains no options."""
    place = operator.BuiltinOptions()
    if place is None:
        return None
    about = getattr(_schema(), table)()
    about.Init(place.Bytes, place.Pos)
    return about
