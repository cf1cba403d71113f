"""Divides the work of a node among the kernels that compute it together, so that the work is counted once."""

from collections.abc import Container, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from harness.explain.kernels.kernels import Kernel
from harness.models.graph import flops

_MOVERS = frozenset(
    ("Reorder", "ShapeOf", "Concatenation", "Broadcast", "StridedSlice", "Convert", "TensorShape")
)
"""OpenVINO kernels that do no computation; flops.py lists the corresponding ONNX operators."""

_NO_PRODUCTS = frozenset(
    ("Pooling", "Eltwise", "MVN", "Reduce", "Interpolate", "NormalizeL2", "Multiply")
)
"""OpenVINO kernels that compute something other than a matrix product or a convolution."""


class Share(NamedTuple):
    """The part of a node's work that a kernel computes, from `begin` to `end` in [0, 1]."""

    begin: float
    end: float

    @property
    def is_divided(self) -> bool:
        """Whether other kernels also compute a part of the node."""
        return 0.0 < self.end - self.begin < 1.0

    def part(self, work: int | None) -> int | None:
        """Returns the part as a whole number. The parts of all the node's kernels add up to the node's work."""
        return None if work is None else round(self.end * work) - round(self.begin * work)


Shares = Mapping[int, Mapping[int, Share]]
"""Shares by node and kernel, for the nodes that several kernels compute."""


def shares_of(
    kernels: Sequence[Kernel], times_ns: Sequence[float], multiplying: Container[int]
) -> Shares:
    """Divides work in proportion to the kernels' times. A kernel that only moves data gets work only if all kernels of
    the node only move data. If any kernel of a matrix product can multiply matrices, only such kernels get the work of
    this product.
    multiplying: nodes that are matrix products.
    """
    by_node: dict[int, list[int]] = {}
    for i, kernel in enumerate(kernels):
        for node in () if kernel.inserted else kernel.nodes:
            by_node.setdefault(node, []).append(i)
    return {
        node: _divided(together, kernels, times_ns, is_product=node in multiplying)
        for node, together in by_node.items()
        if len(together) > 1
    }


def _divided(
    together: Sequence[int],
    kernels: Sequence[Kernel],
    times_ns: Sequence[float],
    *,
    is_product: bool,
) -> dict[int, Share]:
    computing = [i for i in together if not _only_moves(kernels[i].op_type)] or together
    if is_product:
        computing = [i for i in computing if _may_multiply(kernels[i].op_type)] or computing
    times = [times_ns[i] for i in computing]
    ends = [0.0, *accumulate(times if any(times) else [1.0] * len(times))]
    spans = pairwise(end / ends[-1] for end in ends)
    none = dict.fromkeys(together, Share(0.0, 0.0))
    return none | {i: Share(*span) for i, span in zip(computing, spans, strict=True)}


def misplaced(kernels: Sequence[Kernel], macs: Mapping[int, int]) -> Kernel | None:
    """Returns the kernel to which most of the MACs are assigned although it cannot multiply matrices. Such a kernel
    shows that the map is wrong.
    macs: MACs of the nodes that are matrix products.
    """
    computing = [kernel for kernel in kernels if not kernel.inserted]
    multiplied = {n for k in computing if _may_multiply(k.op_type) for n in k.nodes}
    total = sum(macs.get(node, 0) for node in {n for k in computing for n in k.nodes})
    for kernel in computing:
        if 2 * sum(macs.get(n, 0) for n in kernel.nodes if n not in multiplied) > total:
            return kernel
    return None


def _only_moves(op_type: str) -> bool:
    return op_type in _MOVERS or flops.only_moves(op_type)


def _may_multiply(op_type: str) -> bool:
    """Whether a kernel may multiply matrices. Returns True if the kernel's operator is unknown."""
    known = op_type in _NO_PRODUCTS or flops.has_rule(op_type)
    return not known or flops.may_multiply(op_type)
