"""A model's graph: its layers, their concrete shapes, and the groups of equal layers.

onnx_file.py reads a graph from an ONNX file.
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
"""Floating-point constants with at most this many elements, such as Resize's scales, are kept for shape inference."""

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
"""Maps an attribute to the value that has no effect. Older versions of operators do not have these attributes."""

_WITHOUT_EFFECT = {
    "BatchNormalization": ("epsilon", "momentum", "spatial", "is_test", "consumed_inputs"),
    "Dropout": ("seed", "is_test"),
    "InstanceNormalization": ("epsilon",),
    "LayerNormalization": ("epsilon",),
}
"""Maps an operator to attributes that do not change the amount of work, because these attributes apply only to training
or change only the result's values.
"""

DEFAULT_DOMAINS = ("", "ai.onnx")


class Tensor(NamedTuple):
    dtype: str
    """NumPy's name of the type, such as float32 or bfloat16."""
    shape: tuple[int | None, ...]
    """The size of each axis, or None if the size depends on data."""

    @property
    def elements(self) -> int | None:
        known = [size for size in self.shape if size is not None]
        return int(np.prod(known, dtype=np.int64)) if len(known) == len(self.shape) else None

    @property
    def size_bytes(self) -> int | None:
        return None if self.elements is None else self.elements * _itemsize(self.dtype)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join('?' if n is None else str(n) for n in self.shape)}]"


class Constant(NamedTuple):
    """A constant of the model: a weight or a parameter."""

    tensor: Tensor
    is_external: bool
    """Whether the values are in a separate file."""
    value: Array | None
    """The values of integers and booleans (shapes, axes, indices), and of at most KEPT_ELEMENTS floats; None for larger
    constants and for external values.
    """


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A layer."""

    index: int
    """The layer's position in the topological order."""
    name: str
    op_type: str
    domain: str
    attributes: Mapping[str, Any]
    """Values of type int, float, str, or tuples of these. A tensor or subgraph is represented by the SHA-256 of its
    bytes.
    """
    inputs: tuple[str, ...]
    """Names of the inputs, with "" for an omitted input. The last names belong to tensors that only subgraphs in the
    attributes read.
    """
    outputs: tuple[str, ...]
    from_constants: bool
    """Whether runtimes fold the layer at load time, because the layer reads only constants, or only the shape of a
    tensor with a fixed shape.
    """
    proto: Any = field(repr=False)
    """The onnx.NodeProto in the file."""


@dataclass(frozen=True, eq=False)
class Graph:
    """The graph of an ONNX file for one set of input sizes."""

    path: Path
    nodes: tuple[Node, ...]
    """The layers in topological order, without `Constant` nodes, which are in `constants`."""
    tensors: Mapping[str, Tensor]
    """Every input, constant and node output whose type could be inferred, by name."""
    constants: Mapping[str, Constant]
    """Initializers and the values of `Constant` nodes, by name."""
    values: Mapping[str, Array]
    """Known values by name: values of constants, and integers and booleans that are folded from constants."""
    inputs: tuple[str, ...]
    """Names of the inputs, except inputs that have an initializer."""
    outputs: tuple[str, ...]
    sizes: Mapping[str, int]
    """Size chosen for each open dimension, by name. INPUT[AXIS] stands for a dimension without a name."""
    opsets: Mapping[str, int]
    """Opset version by domain."""
    proto: Any = field(repr=False, compare=False)
    """The onnx.ModelProto with the shapes of this graph, without the bytes of large weights. Parts of the model are
    extracted from this ModelProto.
    """

    @cached_property
    def producer(self) -> Mapping[str, Node]:
        """Maps the name of a tensor to the node that computes it."""
        return {name: node for node in self.nodes for name in node.outputs if name}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Node, ...]]:
        """Maps the name of a tensor to the nodes that read it, in order and without duplicates."""
        readers: defaultdict[str, list[Node]] = defaultdict(list)
        for node in self.nodes:
            for name in filter(None, dict.fromkeys(node.inputs)):
                readers[name].append(node)
        return {name: tuple(nodes) for name, nodes in readers.items()}

    @cached_property
    def layers(self) -> tuple[Node, ...]:
        """The layers that run at inference, without the layers that runtimes fold at load time."""
        return tuple(node for node in self.nodes if not node.from_constants)

    def key(self, node: Node) -> str:
        """Returns a key that equal layers share; the key excludes the layer's name and weights.

        The key contains everything that determines the layer's work: the type, attributes, shapes and types of inputs
        and outputs, and the values of integer inputs.

        Source: the layer identity in DLBricks (Li et al., ICPE 2020), section 2.2.
        """
        described = {
            "op": f"{node.domain}::{node.op_type}" if node.domain else node.op_type,
            "attributes": dict(sorted(_effective(node).items())),
            "inputs": [self._described(name) for name in node.inputs],
            "outputs": [str(self.tensors.get(name, "?")) if name else "" for name in node.outputs],
        }
        return json.dumps(described, separators=(",", ":"), default=str)

    def digest(self, node: Node) -> str:
        """Returns a digest of the key that is short enough for a file name."""
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
        return sum(constant.tensor.size_bytes or 0 for constant in self.constants.values())

    @cached_property
    def unique(self) -> Mapping[str, int]:
        """Number of layers by key."""
        return Counter(self.key(node) for node in self.layers)


def _itemsize(dtype: str) -> int:
    """Returns the size of an element in bytes. The name of a type that NumPy lacks (bfloat16, int4) contains the number
    of bits.
    """
    try:
        return np.dtype(dtype).itemsize
    except TypeError:
        bits = "".join(c for c in dtype.partition("_")[0].removeprefix("b") if c.isdigit())
        return max(1, int(bits or 8) // 8)


def _effective(node: Node) -> dict[str, Any]:
    """Returns the attributes that change the layer's work."""
    ignored = _WITHOUT_EFFECT.get(node.op_type, ())
    effective = {}
    for name, value in node.attributes.items():
        neutral = _NEUTRAL.get(name)
        values = value if isinstance(value, tuple) else (value,)
        if name in ignored or (neutral is not None and set(values) == {neutral}):
            continue
        if name == "kernel_shape" and node.op_type.startswith("Conv"):
            # The attribute kernel_shape is redundant, because it follows from the shape of the weights.
            continue
        effective[name] = value
    return effective
