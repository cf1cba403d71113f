"""Reads the tables that an OpenVINO IR indexes, using only the IR's XML."""

import xml.parsers.expat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.models.tables.flow import Flow, Lookup, Operation, Operators

_OPERATORS = Operators(
    first=frozenset((
        "Broadcast", "Clamp", "Convert", "ConvertLike", "Gather", "GatherElements", "GatherND", "Pad",
        "ReduceMax", "ReduceMin", "Reshape", "Result", "Slice", "Split", "Squeeze", "StridedSlice",
        "Tile", "TopK", "Transpose", "Unsqueeze", "VariadicSplit",
    )),
    several={"Concat": (), "Maximum": (), "Minimum": ()},
    arithmetic=frozenset((
        "Abs", "Add", "CumSum", "Divide", "Multiply", "Negative", "Power", "ReduceMean", "ReduceProd",
        "ReduceSum", "Subtract",
    )),
    choice=("Select",),
    less="Less",
    add="Add",
)  # fmt: skip

_LOOKUPS = frozenset((
    "Gather", "GatherElements", "GatherND", "EmbeddingBagOffsetsSum", "EmbeddingBagPackedSum",
    "EmbeddingBagOffsets", "EmbeddingBagPacked", "EmbeddingSegmentsSum",
))  # fmt: skip
"""Layers whose first input is a table and whose second input contains the indices."""

_NUMBERS = {"i32": 4, "i64": 8, "u32": 4, "u64": 8}
"""Maps the number type of an axis to its size in bytes."""


@dataclass(slots=True)
class _Layer:
    kind: str
    name: str
    about: dict[str, str] = field(default_factory=dict)
    """Attributes of the layer's <data> element."""
    ports: dict[str, list[int]] = field(default_factory=dict)
    """Maps a port to its shape, with -1 for an open size; inputs come before outputs."""
    names: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    """The ports that are outputs."""
    has_body: bool = False


def read(path: Path) -> Flow:
    """Raises OSError, and ValueError, KeyError or ExpatError if the file is not an IR."""
    reader = _Reader()
    parser = xml.parsers.expat.ParserCreate()
    parser.StartElementHandler = reader.begin
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    parser.EntityDeclHandler = _refuse
    with path.open("rb") as file:
        parser.ParseFile(file)
    copies = _OPERATORS.copies(list(reader.operations()))
    return Flow(dict(reader.inputs()), copies, reader.lookups(path.with_suffix(".bin")))


def _refuse(*_: object) -> None:
    raise ValueError("it declares entities")


class _Reader:
    """Handles the events of an XML parser. A tensor's name consists of the layer and the port that produce it."""

    def __init__(self) -> None:
        self._layers: dict[str, _Layer] = {}
        self._edges: dict[str, str] = {}
        """Maps an input to the tensor that it reads, both written as layer.port."""
        self._layer: _Layer | None = None
        self._side = self._port = self._text = ""
        self._bodies = 0

    def begin(self, name: str, about: dict[str, str]) -> None:
        if name == "body" or (name.endswith("_body") and self._layer is not None):
            self._bodies += 1
            if self._layer is not None:
                self._layer.has_body = True
        if self._bodies:
            return
        if name == "layer":
            self._layer = self._layers[about["id"]] = _Layer(about["type"], about["name"])
        elif name == "edge" and self._layer is None:
            source = f"{about['from-layer']}.{about['from-port']}"
            self._edges[f"{about['to-layer']}.{about['to-port']}"] = source
        elif self._layer is not None:
            self._begin_part(self._layer, name, about)

    def _begin_part(self, layer: _Layer, name: str, about: dict[str, str]) -> None:
        if name == "data":
            layer.about = about
        elif name in ("input", "output"):
            self._side = name
        elif name == "port" and self._side:
            self._port = about["id"]
            layer.ports[self._port] = []
            if self._side == "output":
                layer.outputs.append(self._port)
                layer.names += about.get("names", "").split(",")
        elif name == "dim":
            self._text = ""

    def text(self, part: str) -> None:
        self._text += part

    def end(self, name: str) -> None:
        if name == "body" or name.endswith("_body"):
            self._bodies -= bool(self._bodies)
        elif self._bodies or self._layer is None:
            return
        elif name == "dim":
            self._layer.ports[self._port].append(int(self._text))
        elif name in ("input", "output"):
            self._side = ""
        elif name == "layer":
            self._layer = None

    def inputs(self) -> Iterator[tuple[str, str]]:
        for key, layer in self._layers.items():
            if layer.kind == "Parameter" and layer.outputs:
                tensor = f"{key}.{layer.outputs[0]}"
                yield from ((name, tensor) for name in (layer.name, *layer.names) if name)

    def operations(self) -> Iterator[Operation]:
        for key, layer in self._layers.items():
            outputs = [f"{key}.{port}" for port in layer.outputs]
            yield Operation(layer.kind, self._read(key, layer), outputs)

    def lookups(self, weights: Path) -> Iterator[Lookup]:
        """weights: the .bin file, which contains the axes."""
        for key, layer in self._layers.items():
            tensors = self._read(key, layer)
            if layer.has_body:
                yield from (Lookup(tensor, layer.kind, None) for tensor in tensors if tensor)
            elif layer.kind in _LOOKUPS and len(tensors) > 1:
                axis = self._axis(layer, tensors, weights)
                yield Lookup(tensors[1], layer.kind, _rows(layer, axis))

    def _read(self, key: str, layer: _Layer) -> list[str]:
        """Returns the tensors that the layer reads."""
        inputs = [port for port in layer.ports if port not in layer.outputs]
        return [self._edges.get(f"{key}.{port}", "") for port in inputs]

    def _axis(self, layer: _Layer, tensors: Sequence[str], weights: Path) -> int | None:
        if layer.kind == "GatherElements":
            return int(layer.about["axis"])
        if layer.kind != "Gather":
            return 0
        constant = self._layers.get(tensors[2].partition(".")[0]) if len(tensors) > 2 else None
        size_bytes = _NUMBERS.get(constant.about.get("element_type", "")) if constant else None
        if constant is None or constant.kind != "Const" or size_bytes is None:
            return None
        with weights.open("rb") as file:
            file.seek(int(constant.about["offset"]))
            return int.from_bytes(file.read(size_bytes), "little", signed=True)


def _rows(layer: _Layer, axis: int | None) -> int | None:
    """Returns the size of the first input along the axis, or along its smallest axis for GatherND. -1 stands for an
    open size.
    """
    shape = next(iter(layer.ports.values()), [])
    if axis is None or not -len(shape) <= axis < len(shape):
        return None
    return min(shape) if layer.kind == "GatherND" else shape[axis]
