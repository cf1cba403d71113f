"""What each node of a model must compute and move: MACs, FLOPs and bytes, from shapes alone.

A MAC is one multiplication whose product is added up, as convolutions, matrix products and recurrent
cells do. FLOPs are two for each MAC, and one for each addition, multiplication, division, comparison
or function (exp, erf, sqrt) beside them, whatever each costs the machine; kernels of integers count
alike. Bytes are those of each operand, once: of weights, of other inputs, of outputs. They are the
least a kernel can move, if nothing stays in a cache from one kernel to the next.

An operation that has no rule here has no MACs and FLOPs (None), never 0; `Coverage` tells how many
nodes, and how much of the time, those are.

Source: the layer formulas of Benanza (Li et al., IPDPS 2020, section III and dlperf pkg/onnx at
88ce347), except that a dilated kernel counts its weights and not the extent they are spread over.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from harness.models.graph.flop_rules import Attributes, Operand, Work, nothing
from harness.models.graph.flop_table import PICKED_FROM, PRODUCTS, RULES, VIEWS
from harness.models.graph.graph import Graph, Node
from harness.profiler import CONTROL_FLOW


class Cost(NamedTuple):
    """macs, flops: None where the operation has no rule. Bytes: see the module."""

    macs: int | None
    flops: int | None
    weight_bytes: int
    input_bytes: int
    output_bytes: int

    @property
    def bytes(self) -> int:
        return self.weight_bytes + self.input_bytes + self.output_bytes

    @property
    def intensity_flops_per_byte(self) -> float | None:
        """Arithmetic intensity; None where either is not known."""
        return self.flops / self.bytes if self.flops is not None and self.bytes else None


class Coverage(NamedTuple):
    """What the model of costs can say anything about.

    nodes, modelled: how many there are, and how many of an operation with a rule.
    kernel_ns, modelled_ns: the same of the time; None where nothing was measured.
    missing: operation -> how many nodes have no rule.
    """

    nodes: int
    modelled: int
    kernel_ns: float | None
    modelled_ns: float | None
    missing: Mapping[str, int]

    @property
    def node_share(self) -> float:
        return self.modelled / self.nodes if self.nodes else 1.0

    @property
    def time_share(self) -> float | None:
        if self.kernel_ns is None or self.modelled_ns is None or not self.kernel_ns:
            return None
        return self.modelled_ns / self.kernel_ns


def cost(
    op_type: str,
    attributes: Attributes,
    inputs: Sequence[Operand | None],
    outputs: Sequence[Operand | None],
) -> Cost:
    """Of one node. attributes: numbers, strings and lists of them; those that are left out have
    ONNX's default. None stands for an optional operand that is left out, or has no known shape.
    """
    work = Work(attributes, inputs, outputs)
    macs = flops = None
    if op_type in RULES:
        try:
            macs, flops = RULES[op_type](work)
        except (ValueError, LookupError, ZeroDivisionError):  # of shapes that are not known
            macs = flops = None
    return Cost(macs, flops, *_bytes(op_type, work))


def only_moves(op_type: str) -> bool:
    """Whether the operation computes nothing: it copies, reorders, picks, or is another view."""
    return RULES.get(op_type) is nothing


def has_rule(op_type: str) -> bool:
    """Whether the work of such a node follows from its shapes; where these are not known, it is not."""
    return op_type in RULES


def may_multiply(op_type: str, domain: str = "") -> bool:
    """Whether a node whose MACs are not known may have any: a product, a subgraph, a vendor's operator."""
    return (
        op_type in PRODUCTS or op_type in CONTROL_FLOW or (bool(domain) and not has_rule(op_type))
    )


def missing_text(op_types: Iterable[str]) -> list[str]:
    """Why the work of nodes of these operators is not known, in one line for each reason."""
    names = sorted(set(op_types))
    kinds = (
        ("no rule for the work of", [name for name in names if not has_rule(name)]),
        ("shapes are not known before the run of", [name for name in names if has_rule(name)]),
    )
    return [f"{why}: {', '.join(those)}" for why, those in kinds if those]


def graph_costs(graph: Graph) -> list[Cost]:
    """(nodes,) of each of graph.nodes."""
    made_once = {name for node in graph.nodes if node.from_constants for name in node.outputs}
    weights = made_once | graph.constants.keys()
    return [_node_cost(node, graph, weights) for node in graph.nodes]


def _node_cost(node: Node, graph: Graph, weights: Set[str]) -> Cost:
    def operand(name: str) -> Operand | None:
        tensor = graph.tensors.get(name) if name else None
        if tensor is None or None in tensor.shape:
            return None
        return Operand(tuple(n or 0 for n in tensor.shape), tensor.dtype, name in weights)

    inputs, outputs = ([operand(n) for n in names] for names in (node.inputs, node.outputs))
    return cost(node.op_type, node.attributes, inputs, outputs)


def coverage(
    op_types: Sequence[str], costs: Sequence[Cost], kernel_ns: Sequence[float] | None = None
) -> Coverage:
    """Of the nodes of a model. kernel_ns: (n,) the time of each; None where it was not measured."""
    known = [c.flops is not None for c in costs]
    missing = Counter(op for op, is_known in zip(op_types, known, strict=True) if not is_known)
    total = modelled = None
    if kernel_ns is not None:
        total = float(sum(kernel_ns))
        modelled = float(sum(ns for ns, ok in zip(kernel_ns, known, strict=True) if ok))
    return Coverage(len(known), sum(known), total, modelled, dict(sorted(missing.items())))


def total(costs: Iterable[Cost]) -> Cost:
    """Of all whose operations have a rule; the bytes of all."""
    kept = list(costs)
    return Cost(
        sum(c.macs or 0 for c in kept),
        sum(c.flops or 0 for c in kept),
        sum(c.weight_bytes for c in kept),
        sum(c.input_bytes for c in kept),
        sum(c.output_bytes for c in kept),
    )


def _bytes(op_type: str, work: Work) -> tuple[int, int, int]:
    """Of weights, inputs, outputs. A view moves nothing; what picks rows reads what it picks."""
    if op_type in VIEWS:
        return 0, 0, 0
    output = sum(o.bytes for o in work.outputs if o is not None)
    weight = other = 0
    for position, operand in enumerate(work.inputs):
        if operand is None:
            continue
        read = read_bytes(op_type, position, operand.bytes, output)
        weight, other = (weight + read, other) if operand.is_weight else (weight, other + read)
    return weight, other, output


def read_bytes(op_type: str, position: int, input_bytes: int, output_bytes: int) -> int:
    """Of an input: all of it, but of a table no more than the rows that are picked from it.

    op_type: as a file or a framework calls it.
    """
    picked_from = PICKED_FROM.get(op_type.removeprefix("aten::"), ())
    return min(input_bytes, output_bytes) if position in picked_from else input_bytes
