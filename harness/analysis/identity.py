"""Whether two files are the same network: by the sizes of their weights and the strides of their
convolutions, which no conversion between frameworks or precisions changes.

A name says little: published files of one name differ in layers. Layouts, fused normalisations and
number types do change from framework to framework, so none of them is looked at.
"""

import mmap
import xml.parsers.expat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from harness.errors import ConfigError
from harness.protobuf import fields, messages, packed

_GRAPH, _NODE, _INITIALIZER = 7, 1, 5
_OP_TYPE, _ATTRIBUTE = 4, 5
_DIMS, _DATA_TYPE = 1, 2
_ATTRIBUTE_NAME, _ATTRIBUTE_INTS = 1, 8
"""Fields of onnx.proto: ModelProto, GraphProto, NodeProto, TensorProto, AttributeProto."""

_ONNX_TYPES = {1: "float32", 2: "uint8", 3: "int8", 10: "float16", 11: "float64", 16: "bfloat16"}
_IR_TYPES = {
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "f64": "float64",
    "i8": "int8",
    "u8": "uint8",
}
_CONVOLUTIONS = frozenset(("Conv", "QLinearConv", "ConvInteger", "Convolution", "GroupConvolution"))


class Structure(NamedTuple):
    """weights: elements of each weight of two dimensions or more (those of 1 not counted), sorted.
    types: of these weights. strides: of each convolution that moves on by more than 1, sorted;
    None where the file does not tell.
    """

    weights: tuple[int, ...]
    types: tuple[str, ...]
    strides: tuple[tuple[int, ...], ...] | None = None

    def __str__(self) -> str:
        return f"{len(self.weights)} weight tensors with {sum(self.weights):,} weights"

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Structure":
        strides = values["strides"]
        return cls(
            tuple(values["weights"]),
            tuple(values["types"]),
            None if strides is None else tuple(map(tuple, strides)),
        )


def difference(ours: Structure, theirs: Structure) -> str:
    """In words; '' where they are the same network as far as both files tell."""
    if ours.weights != theirs.weights:
        more, less = Counter(theirs.weights), Counter(ours.weights)
        changed = sum((more - less).values()) + sum((less - more).values())
        return f"{theirs}, not {ours} ({changed} tensors differ in size)"
    if None not in (ours.strides, theirs.strides) and ours.strides != theirs.strides:
        return f"strides of convolutions {theirs.strides}, not {ours.strides}"
    return ""


def of_shapes(shapes: Sequence[tuple[Sequence[int], str]]) -> Structure:
    """Of weights whose shapes and types are known, and nothing else."""
    large = [(shape, kind) for shape, kind in shapes if sum(size != 1 for size in shape) > 1]
    sizes = tuple(sorted(prod(shape) for shape, _ in large))
    return Structure(sizes, tuple(sorted({kind for _, kind in large})))


def of_onnx(path: Path) -> Structure:
    """A ConfigError where it is no ONNX file."""
    try:
        with path.open("rb") as file:  # the map outlives it, and goes with its last slice
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        graphs = list(messages(content, _GRAPH))
        shapes = [t for graph in graphs for m in messages(graph, _INITIALIZER) for t in _tensor(m)]
        strides = [s for graph in graphs for m in messages(graph, _NODE) for s in _strides(m)]
    except (OSError, ValueError) as e:
        raise ConfigError(f"{path} is no ONNX file: {e}") from None
    return of_shapes(shapes)._replace(strides=tuple(sorted(strides)))


def _tensor(message: memoryview) -> Iterator[tuple[list[int], str]]:
    shape: list[int] = []
    kind = None
    for number, value in fields(message):
        if number == _DIMS:
            shape += [value] if isinstance(value, int) else packed(value)
        elif number == _DATA_TYPE and isinstance(value, int):
            kind = _ONNX_TYPES.get(value)
    if kind is not None:
        yield shape, kind


def _strides(node: memoryview) -> Iterator[tuple[int, ...]]:
    kinds = [bytes(v).decode(errors="replace") for v in messages(node, _OP_TYPE)]
    if not kinds or kinds[-1] not in _CONVOLUTIONS:
        return
    for attribute in messages(node, _ATTRIBUTE):
        if [bytes(v) for v in messages(attribute, _ATTRIBUTE_NAME)] != [b"strides"]:
            continue
        found: list[int] = []
        for number, value in fields(attribute):
            if number == _ATTRIBUTE_INTS:
                found += [value] if isinstance(value, int) else packed(value)
        if max(found, default=1) > 1:
            yield tuple(found)


def of_openvino(path: Path) -> Structure:
    """Of an IR's .xml; a ConfigError where it is none. Its entities, if any, are refused."""
    shapes: list[tuple[list[int], str]] = []
    strides: list[tuple[int, ...]] = []
    kind = ""

    def begin(name: str, attributes: dict[str, str]) -> None:
        nonlocal kind
        if name == "layer":
            kind = attributes.get("type", "")
        elif name == "data" and kind == "Const":
            shapes.extend(_constant(attributes))
        elif name == "data" and kind in _CONVOLUTIONS:
            found = _numbers(attributes.get("strides", ""))
            strides.extend([tuple(found)] if max(found, default=1) > 1 else [])

    def refuse(*_: object) -> None:
        raise ValueError("it declares entities")

    parser = xml.parsers.expat.ParserCreate()
    parser.StartElementHandler = begin
    parser.EntityDeclHandler = refuse
    try:
        with path.open("rb") as file:
            parser.ParseFile(file)
    except (OSError, ValueError, xml.parsers.expat.ExpatError) as e:
        raise ConfigError(f"{path} is no OpenVINO IR: {e}") from None
    return of_shapes(shapes)._replace(strides=tuple(sorted(strides)))


def _constant(attributes: Mapping[str, str]) -> Iterator[tuple[list[int], str]]:
    kind = _IR_TYPES.get(attributes.get("element_type", ""))
    if kind is not None:
        yield _numbers(attributes.get("shape", "")), kind


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number.strip()]
