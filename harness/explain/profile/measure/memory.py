"""Computes the memory of a model's weights, inputs and activations, and how this memory grows with the input.

The numbers follow from the shapes in the graph. An activation is alive from the node that computes it to the last node
that reads it, in the file's order. A runtime can use less memory only if it computes a tensor twice or in place. The
table also shows the measured memory.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.errors import ConfigError, PluginUnavailable, one_line
from harness.models.graph import onnx_file
from harness.models.graph.graph import Graph

_BATCHES = (1, 2, 4, 8)
_AREA_FACTORS = (0.5, 1.0, 1.5, 2.0, 3.0)
_LENGTHS = (32, 64, 128, 256, 512)
_LONG_SIDE = 32
"""A dimension of a four-dimensional input counts as an image side only if it is at least this many pixels long."""

_Shapes = Mapping[str, tuple[int, ...]]


class Footprint(NamedTuple):
    """Sizes in bytes.
    activations: maximum total size of tensors that are alive at once, including the model's inputs and outputs.
    unknown: number of tensors whose size depends on data. All other numbers exclude tensors whose size depends on data.
    """

    weights: int
    inputs: int
    activations: int
    unknown: int


def footprint(graph: Graph) -> Footprint:
    weights = sum(c.tensor.size_bytes or 0 for c in graph.constants.values())
    sizes = _activations(graph)
    known = {name: size for name, size in sizes.items() if size is not None}
    return Footprint(
        weights=weights,
        inputs=sum(known.get(name, 0) for name in graph.inputs),
        activations=_most_alive(graph, known),
        unknown=len(sizes) - len(known),
    )


def _activations(graph: Graph) -> Mapping[str, int | None]:
    """Returns the size in bytes of each tensor that depends on the model's input."""
    outputs = [name for node in graph.layers for name in node.outputs if name]
    tensors = {name: graph.tensors.get(name) for name in (*graph.inputs, *outputs)}
    return {name: tensor.size_bytes if tensor else None for name, tensor in tensors.items()}


def _most_alive(graph: Graph, sizes: Mapping[str, int]) -> int:
    last = {name: len(graph.nodes) for name in graph.outputs}
    for i, node in enumerate(graph.nodes):
        for name in node.inputs:
            last[name] = max(last.get(name, i), i)
    ends: dict[int, list[str]] = {}
    for name, i in last.items():
        ends.setdefault(i, []).append(name)
    alive = most = sum(sizes.get(name, 0) for name in graph.inputs)
    for i, node in enumerate(graph.nodes):
        alive += sum(sizes.get(name, 0) for name in node.outputs if name)
        most = max(most, alive)
        alive -= sum(sizes.get(name, 0) for name in ends.get(i, ()))
    return most


def slope(points: Mapping[float, float]) -> float:
    """Returns the slope of log(bytes) over log(size), which is 1 for linear and 2 for quadratic growth."""
    x, y = (np.log(np.array(list(v), float)) for v in (points.keys(), points.values()))
    return float(np.polyfit(x, y, 1)[0])


def measure(graph: Graph, shapes: _Shapes) -> dict[str, Any]:
    """Returns the footprint of the graph, and its growth with the input.
    shapes: shapes of the model's inputs by name.
    growth: for each kind of growth, the footprints by size (points) and the reasons why other sizes were refused.
    """
    grown = {}
    for kind, variants in _variants(shapes, graph).items():
        points, why = {}, ""
        for size, changed in variants.items():
            try:
                points[str(size)] = footprint(_resized(graph, changed))._asdict()
            except (ConfigError, PluginUnavailable) as e:
                why = one_line(e)
        if len(points) > 1 and len({one["activations"] for one in points.values()}) == 1:
            points, why = {}, "the network fixes this size: all activations have the same size"
        grown[kind] = {"points": points, "refused": why}
    return {"footprint": footprint(graph)._asdict(), "growth": grown}


def _variants(shapes: _Shapes, graph: Graph) -> dict[str, dict[int, _Shapes]]:
    """Returns the shapes of the inputs for each dimension that grows and each size.

    Area: images (n, c, h, w) or (n, h, w, c). Length: the second dimension of two-dimensional integer input, such as
    tokens.
    """
    variants: dict[str, dict[int, _Shapes]] = {
        "batch": {b: {n: (b, *s[1:]) for n, s in shapes.items()} for b in _BATCHES}
    }
    images = {n: s for n, s in shapes.items() if len(s) == 4 and max(s[1:]) >= _LONG_SIDE}
    if images:
        variants["image area"] = {}
        for factor in _AREA_FACTORS:
            changed = {**shapes, **{n: _scaled(s, factor) for n, s in images.items()}}
            area = int(np.prod([d for d in changed[next(iter(images))][1:] if d >= 16]))
            variants["image area"][area] = changed
    tokens = [n for n, s in shapes.items() if len(s) == 2 and "int" in graph.tensors[n].dtype]
    if tokens:
        variants["sequence length"] = {
            length: {n: (s[0], length) if n in tokens else s for n, s in shapes.items()}
            for length in _LENGTHS
        }
    return variants


def _scaled(shape: tuple[int, ...], area_factor: float) -> tuple[int, ...]:
    """Scales image sides to multiples of 32, because networks may halve a side five times."""
    return tuple(
        d if i == 0 or d < _LONG_SIDE else round(d * area_factor**0.5 / 32) * 32
        for i, d in enumerate(shape)
    )


def _resized(graph: Graph, shapes: _Shapes) -> Graph:
    """Returns the same network for inputs of other shapes, even if its file fixes the shapes."""
    import onnx

    model = onnx.ModelProto()
    model.CopyFrom(graph.proto)
    del model.graph.value_info[:]
    for value in (*model.graph.input, *model.graph.output):
        dims = value.type.tensor_type.shape.dim
        for axis, dim in enumerate(dims):
            dim.Clear()
            if value.name in shapes:
                dim.dim_value = shapes[value.name][axis]
    with tempfile.TemporaryDirectory(prefix="harness-memory-") as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model.SerializeToString())
        return onnx_file.read(path, shapes=shapes)
