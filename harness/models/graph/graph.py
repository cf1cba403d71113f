"""The graph of a model: its layers, their concrete shapes, and which layers are alike.

graph_file.py reads one from an ONNX file.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.types import Array

KEPT_ELEMENTS = 64
"""A floating-point constant of no more elements is kept for shape inference, e.g. Resize's scales."""

_NEUTRAL: Mapping[str, int | str] = {
    "allowzero": 0,
    "auto_pad": "NOTSET",
    "ceil_mode": 0,
    "count_include_pad": 0,
    "dilations": 1,
    "output_padding": 0,
    "pads": 0,
    "storage_order": 0,
    "strides": 1,
    "training_mode": 0,
}
"""Attributes that say nothing where all their values are these; older operators do not have them."""

_WITHOUT_EFFECT = {
    "BatchNormalization": ("epsilon", "momentum", "spatial", "is_test", "consumed_inputs"),
    "Dropout": ("seed", "is_test"),
    "InstanceNormalization": ("epsilon",),
    "LayerNormalization": ("epsilon",),
}
"""Attributes of training, and numbers that change the result and not the work."""

DEFAULT_DOMAINS = ("", "ai.onnx")


class Tensor(NamedTuple):
    """dtype: NumPy's name, e.g. float32, bfloat16. shape: elements; None where it depends on data."""

    dtype: str
    shape: tuple[int | None, ...]

    @property
    def elements(self) -> int | None:
        known = [size for size in self.shape if size is not None]
        return int(np.prod(known, dtype=np.int64)) if len(known) == len(self.shape) else None

    @property
    def size_bytes(self) -> int | None:
        return None if self.elements is None else self.elements * _itemsize(self.dtype)

    def __str__(self) -> str:
        """E.g. float32[1,64,56,56]."""
        return f"{self.dtype}[{','.join('?' if n is None else str(n) for n in self.shape)}]"


class Constant(NamedTuple):
    """A number of the model that is in its file (or beside it: is_external): weight or parameter.

    value: of integers and truth values (shapes, axes, indices) and of few floating-point numbers;
    None of all others, and of what is external.
    """

    tensor: Tensor
    is_external: bool
    value: Array | None


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A layer. index: its position in the topological order. inputs: names, "" where left out;
    after the declared ones come those that only the subgraphs of its attributes read.

    attributes: int, float, str, tuples of them; a tensor or subgraph is the SHA-256 of its bytes.
    from_constants: all that it needs is known when the model is loaded, so runtimes fold it then:
    it reads constants only, or the shape of a tensor that has the same one in every run.
    """

    index: int
    name: str
    op_type: str
    domain: str
    attributes: Mapping[str, Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    from_constants: bool
    proto: Any = field(repr=False)
    """onnx.NodeProto, as it stands in the file."""


@dataclass(frozen=True, eq=False)
class Graph:
    """path: of the file. nodes: in topological order, without `Constant` nodes: these are constants.

    tensors: by name, of every input, constant and output of a node whose type could be inferred.
    constants: initializers and the values of `Constant` nodes. values: of those constants that have
    one, and of what is folded from them if it is of integers or truth values. inputs, outputs: names, without
    those inputs that have an initializer. sizes: what the symbolic dimensions were set to.
    opsets: domain -> version.
    """

    path: Path
    nodes: tuple[Node, ...]
    tensors: Mapping[str, Tensor]
    constants: Mapping[str, Constant]
    values: Mapping[str, Array]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    sizes: Mapping[str, int]
    opsets: Mapping[str, int]
    proto: Any = field(repr=False, compare=False)
    """onnx.ModelProto with these shapes, without the large weights' bytes: to cut pieces from."""

    @cached_property
    def producer(self) -> Mapping[str, Node]:
        """Name of a tensor -> the node that makes it."""
        return {name: node for node in self.nodes for name in node.outputs if name}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Node, ...]]:
        """Name of a tensor -> the nodes that read it, in order, each once."""
        found: defaultdict[str, list[Node]] = defaultdict(list)
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                if name:
                    found[name].append(node)
        return {name: tuple(nodes) for name, nodes in found.items()}

    @cached_property
    def layers(self) -> tuple[Node, ...]:
        """The nodes that run at inference: all but those that runtimes fold when they load."""
        return tuple(node for node in self.nodes if not node.from_constants)

    def key(self, node: Node) -> str:
        """What the layer is, whatever its name and weights: its type, attributes, and the shapes and
        types of what it reads and makes; and the value of each integer that shapes its work.

        Source: layer identity of DLBricks (Li et al., ICPE 2020), section 2.2.
        """
        described = {
            "op": f"{node.domain}::{node.op_type}" if node.domain else node.op_type,
            "attributes": dict(sorted(_telling(node).items())),
            "inputs": [self._described(name) for name in node.inputs],
            "outputs": [str(self.tensors.get(name, "?")) if name else "" for name in node.outputs],
        }
        return json.dumps(described, separators=(",", ":"), default=str)

    def digest(self, node: Node) -> str:
        """Of the key, short enough for files."""
        return hashlib.sha256(self.key(node).encode()).hexdigest()[:24]

    def _described(self, name: str) -> str:
        if not name:
            return ""
        kind = str(self.tensors.get(name, "?"))
        if name not in self.constants and name not in self._folded:
            return kind
        value = self.values.get(name)
        if value is None or value.dtype not in (np.int64, np.bool_):
            return f"constant {kind}"
        if value.size <= KEPT_ELEMENTS:
            return f"constant {kind}={value.tolist()}"
        return f"constant {kind}={hashlib.sha256(value.tobytes()).hexdigest()}"

    @cached_property
    def _folded(self) -> frozenset[str]:
        return frozenset(n for node in self.nodes if node.from_constants for n in node.outputs)

    @property
    def weight_bytes(self) -> int:
        """Of all constants."""
        return sum(constant.tensor.size_bytes or 0 for constant in self.constants.values())

    @cached_property
    def unique(self) -> Mapping[str, int]:
        """Key -> how many layers have it."""
        return Counter(self.key(node) for node in self.layers)


def _itemsize(dtype: str) -> int:
    """Bytes of an element; what NumPy does not know (bfloat16, float8, int4) by the digits in its name."""
    try:
        return np.dtype(dtype).itemsize
    except TypeError:
        bits = "".join(c for c in dtype.partition("_")[0].removeprefix("b") if c.isdigit())
        return max(1, int(bits or 8) // 8)


def _telling(node: Node) -> dict[str, Any]:
    """Attributes without those that say what would be so anyway."""
    ignored = _WITHOUT_EFFECT.get(node.op_type, ())
    found = {}
    for name, value in node.attributes.items():
        neutral = _NEUTRAL.get(name)
        values = value if isinstance(value, tuple) else (value,)
        if name in ignored or (neutral is not None and set(values) == {neutral}):
            continue
        if name == "kernel_shape" and node.op_type.startswith("Conv"):
            continue  # the weights' shape says it
        found[name] = value
    return found
