"""Measures how a model's memory grows with batch, image area and sequence length."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from harness.errors import ConfigError, PluginUnavailable, one_line
from harness.explain.profile.measure import memory
from harness.models.graph import onnx_file
from harness.models.graph.graph import Graph

_BATCHES = (1, 2, 4, 8)
_AREA_FACTORS = (0.5, 1.0, 1.5, 2.0, 3.0)
_LENGTHS = (32, 64, 128, 256, 512)
_LONG_SIDE = 32
"""Pixels from which on a dimension of four-dimensional input counts as a side of an image."""

_Shapes = Mapping[str, tuple[int, ...]]


def measure(graph: Graph, shapes: _Shapes) -> dict[str, Any]:
    """shapes: of the model's inputs.
    footprint: of the graph as it is.
    growth: kind -> points (size -> footprint), and why other sizes were refused.
    """
    grown = {}
    for kind, variants in _variants(shapes, graph).items():
        points, why = {}, ""
        for size, changed in variants.items():
            try:
                points[str(size)] = memory.footprint(_resized(graph, changed))._asdict()
            except (ConfigError, PluginUnavailable) as e:
                why = one_line(e)
        grown[kind] = {"points": points, "refused": why}
    return {"footprint": memory.footprint(graph)._asdict(), "growth": grown}


def _variants(shapes: _Shapes, graph: Graph) -> dict[str, dict[int, _Shapes]]:
    """Dimension -> size -> shapes of the inputs. Area: images (n, c, h, w) or (n, h, w, c).
    Length: the second dimension of two-dimensional integer input, as of tokens.
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
    """Sides in multiples of 32, as networks that halve them five times need."""
    return tuple(
        d if i == 0 or d < _LONG_SIDE else round(d * area_factor**0.5 / 32) * 32
        for i, d in enumerate(shape)
    )


def _resized(graph: Graph, shapes: _Shapes) -> Graph:
    """The same network for other inputs, even where its file fixes them."""
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
