"""Builds a synthetic model with the operator frequencies of another model.

The synthetic model consists of the original's unique layers, each connected to tensors of the right shape. Its layers
are as large as the original's, but its structure, weights and depth differ.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.errors import ConfigError
from harness.explain.pieces.cut import Cut, model_of, value_info
from harness.models.graph.graph import Graph, Tensor

_SEED = 0


class SyntheticModel(NamedTuple):
    """A synthetic model.

    model: an onnx.ModelProto. distance: distance between the two operator histograms, from 0 (equal) to 1.
    """

    model: Any
    layers: int
    distance: float


def histogram_distance(one: Iterable[str], other: Iterable[str]) -> float:
    """Returns the total variation distance of the shares, from 0 (equal) to 1 (no common operator)."""
    first, second = Counter(one), Counter(other)
    sizes = (first.total() or 1, second.total() or 1)
    kinds = first.keys() | second.keys()
    return sum(abs(first[k] / sizes[0] - second[k] / sizes[1]) for k in kinds) / 2


class _SyntheticGraph:
    """A graph under construction. free: tensors without a reader, the newest last."""

    def __init__(self, graph: Graph) -> None:
        self.tensors: dict[str, Tensor] = {name: graph.tensors[name] for name in graph.inputs}
        self.free: dict[str, None] = dict.fromkeys(graph.inputs)
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.operators: list[str] = []

    def wiring(self, inputs: Sequence[Tensor]) -> list[str] | None:
        """Returns the newest fitting tensor for each input, preferably a tensor without a reader. Returns None if no
        tensor fits an input.
        """
        chosen: list[str] = []
        for expected in inputs:
            fitting = [n for n, tensor in self.tensors.items() if tensor == expected]
            fresh = [n for n in fitting if n in self.free and n not in chosen]
            other = [n for n in fitting if n not in chosen]
            best = fresh or other or fitting
            if not best:
                return None
            chosen.append(best[-1])
        return chosen

    def add(self, cut: Cut, inputs: Sequence[str]) -> None:
        """Adds a layer. cut: a piece of one layer."""
        body, prefix = cut.model().graph, f"n{len(self.nodes)}_"
        names = {"": "", **{i.name: n for i, n in zip(body.input, inputs, strict=True)}}
        for tensor in body.initializer:
            names[tensor.name] = prefix + tensor.name
            tensor.name = names[tensor.name]
        self.initializers += body.initializer
        # The nodes are the layer and the DequantizeLinear nodes before the layer.
        for node in body.node:
            names |= {name: prefix + name for name in node.output if name}
            for side in (node.input, node.output):
                side[:] = [names[name] for name in side]
        self.nodes += body.node
        (layer,) = cut.nodes
        self.operators.append(layer.op_type)
        for name in inputs:
            self.free.pop(name, None)
        for original in layer.outputs:
            is_read = original == layer.outputs[0] or cut.graph.consumers.get(original)
            if original and is_read:
                name = names[cut.numbers[original]]
                self.tensors[name] = cut.graph.tensors[original]
                self.free[name] = None


def synthesize(graph: Graph, layers: int) -> SyntheticModel:
    """Builds a model with `layers` layers that imitates `graph`. A fixed seed makes the result reproducible.

    Layers are added one by one. The next layer is the fitting layer that brings the operator histogram closest to the
    original's. Layers that read a free tensor are preferred.
    """
    cuts = [Cut(graph, (node,)) for node in graph.layers]
    candidates = {cut.brick.digest: cut for cut in cuts if cut.brick.why_not is None}.values()
    counts = Counter(node.op_type for node in graph.layers)
    synthetic, random = _SyntheticGraph(graph), np.random.default_rng(_SEED)
    for _ in range(layers):
        fitting = [
            (c, w) for c in candidates if (w := synthetic.wiring(c.brick.inputs)) is not None
        ]
        if not fitting:
            raise ConfigError(f"{graph.path}: no layer can be attached to the input of the model")
        need = _need(counts, synthetic.operators)
        cut, inputs = min(
            (fitting[i] for i in random.permutation(len(fitting))),
            key=lambda one: (-need[one[0].nodes[0].op_type], -len(synthetic.free.keys() & one[1])),
        )
        synthetic.add(cut, inputs)
    model = _model(graph, synthetic)
    return SyntheticModel(model, layers, histogram_distance(synthetic.operators, counts.elements()))


def _need(counts: Counter[str], have: Sequence[str]) -> Mapping[str, float]:
    """Returns how many layers of each operator are missing if the model grows by one layer."""
    now, size = Counter(have), len(have) + 1
    return {op: n * size / counts.total() - now[op] for op, n in counts.items()}


def _model(graph: Graph, synthetic: _SyntheticGraph) -> Any:
    """Builds the model. Tensors without a reader become outputs, so that no layer is removed as unused."""
    import onnx

    inputs, outputs = (
        [value_info(onnx, name, synthetic.tensors[name]) for name in names]
        for names in (graph.inputs, [n for n in synthetic.free if n not in graph.inputs])
    )
    body = onnx.helper.make_graph(
        synthetic.nodes, "synthetic", inputs, outputs, synthetic.initializers
    )
    return model_of(onnx, body, graph)


def write(synthetic: SyntheticModel, path: Path) -> None:
    try:
        with path.open("xb") as file:
            file.write(synthetic.model.SerializeToString())
    except FileExistsError:
        raise ConfigError(
            f"--synthetic {path} already exists and will not be overwritten: pass a different file"
        ) from None
    except OSError as e:
        raise ConfigError(f"--synthetic {path} cannot be written: {e.strerror}") from e
