"""Counts the MACs, FLOPs and bytes of each node in a model, using only shapes.

A MAC is a multiplication and an addition to a sum, as in convolutions, matrix products and recurrent cells. A MAC
counts as two FLOPs. Every other addition, multiplication, division, comparison or function (exp, erf, sqrt) counts as
one FLOP, regardless of its real cost. Integer kernels are counted in the same way. The bytes of each operand (weights,
other inputs, outputs) count once. This count is the minimum that a kernel moves, if no data stay in a processor cache
between kernels.

The MACs and FLOPs of an operation without a rule are None, not 0. `Coverage` reports the number of nodes and the share
of the time that the rules cover.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from harness.models.graph.flop_rules import Attributes, Operand, Work, nothing
from harness.models.graph.flop_table import PICKED_FROM, PRODUCTS, RULES, VIEWS
from harness.models.graph.graph import Graph, Node
from harness.profiler import CONTROL_FLOW


class Cost(NamedTuple):
    """The work of one node or several nodes."""

    macs: int | None
    """None if no rule covers the operation."""
    flops: int | None
    """None if no rule covers the operation."""
    weight_bytes: int
    input_bytes: int
    output_bytes: int

    @property
    def bytes(self) -> int:
        return self.weight_bytes + self.input_bytes + self.output_bytes


class Coverage(NamedTuple):
    """The part of a model that the rules cover."""

    nodes: int
    modelled: int
    """Number of nodes whose operation has a rule."""
    kernel_ns: float | None
    """The total time of all nodes, or None if it was not measured."""
    modelled_ns: float | None
    """The total time of the nodes with a rule, or None if it was not measured."""
    missing: Mapping[str, int]
    """Number of nodes without a rule, by operation."""

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
    """Returns the cost of one node.

    attributes: numbers, strings, and lists of numbers or strings. An omitted attribute takes ONNX's default. inputs,
    outputs: None stands for an operand that is omitted or whose shape is unknown.
    """
    work = Work(attributes, inputs, outputs)
    macs = flops = None
    if op_type in RULES:
        try:
            macs, flops = RULES[op_type](work)
        # the rule needs a shape that is unknown
        except (ValueError, LookupError, ZeroDivisionError):
            macs = flops = None
    return Cost(macs, flops, *_bytes(op_type, work))


def only_moves(op_type: str) -> bool:
    """Returns whether the operation computes nothing, and only copies, reorders or selects data, or makes a view."""
    return RULES.get(op_type) is nothing


def has_rule(op_type: str) -> bool:
    """Returns whether the operation's work can be counted once the shapes are known."""
    return op_type in RULES


def may_multiply(op_type: str, domain: str = "") -> bool:
    """Returns whether a node with unknown MACs may have MACs. Returns True for a product, a subgraph or a vendor's
    operator.
    """
    is_vendors = bool(domain) and not has_rule(op_type)
    return op_type in PRODUCTS or op_type in CONTROL_FLOW or is_vendors


def missing_text(op_types: Iterable[str]) -> list[str]:
    """Returns one line per reason why the work of these operators is unknown."""
    names = sorted(set(op_types))
    kinds = (
        ("no rule for the work of", [name for name in names if not has_rule(name)]),
        ("shapes are known only at run time for", [name for name in names if has_rule(name)]),
    )
    return [f"{why}: {', '.join(some)}" for why, some in kinds if some]


def graph_costs(graph: Graph) -> list[Cost]:
    """Returns one cost per node, in the order of graph.nodes."""
    from_constants = {name for node in graph.nodes if node.from_constants for name in node.outputs}
    weights = from_constants | graph.constants.keys()
    return [_node_cost(node, graph, weights) for node in graph.nodes]


def _node_cost(node: Node, graph: Graph, weights: Set[str]) -> Cost:
    def operand(name: str) -> Operand | None:
        tensor = graph.tensors.get(name) if name else None
        if tensor is None or None in tensor.shape:
            return None
        dtype = stored.get(name, tensor.dtype)
        return Operand(tuple(n or 0 for n in tensor.shape), dtype, name in weights)

    stored = {n: dtype for n in node.inputs if (dtype := _stored_type(n, graph))}
    inputs, outputs = ([operand(n) for n in names] for names in (node.inputs, node.outputs))
    return cost(node.op_type, node.attributes, inputs, outputs)


def _stored_type(name: str, graph: Graph) -> str | None:
    """Returns the type of the quantised constant from which a weight is computed, or None for other tensors."""
    maker = graph.producer.get(name)
    if maker is None or not maker.from_constants or maker.op_type != "DequantizeLinear":
        return None
    return graph.tensors[maker.inputs[0]].dtype


def coverage(
    op_types: Sequence[str], costs: Sequence[Cost], kernel_ns: Sequence[float] | None = None
) -> Coverage:
    """kernel_ns: (n,) the time of each node, or None if the times were not measured."""
    known = [c.flops is not None for c in costs]
    missing = Counter(op for op, is_known in zip(op_types, known, strict=True) if not is_known)
    total = modelled = None
    if kernel_ns is not None:
        total = float(sum(kernel_ns))
        modelled = float(sum(ns for ns, ok in zip(kernel_ns, known, strict=True) if ok))
    return Coverage(len(known), sum(known), total, modelled, dict(sorted(missing.items())))


def total(costs: Iterable[Cost]) -> Cost:
    """Returns the sum of the costs. An operation without a rule contributes only its bytes."""
    parts = list(costs)
    return Cost(
        sum(c.macs or 0 for c in parts),
        sum(c.flops or 0 for c in parts),
        sum(c.weight_bytes for c in parts),
        sum(c.input_bytes for c in parts),
        sum(c.output_bytes for c in parts),
    )


def _bytes(op_type: str, work: Work) -> tuple[int, int, int]:
    """Returns (weight, input, output) bytes for one node. A view does not move data. A selection reads only the
    selected rows of its table.
    """
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
    """Returns the number of bytes that the operator reads from an input. If the operator selects rows of a table, only
    the selected rows count.

    op_type: the operator's name in the file or in a framework.
    """
    picked_from = PICKED_FROM.get(op_type.removeprefix("aten::"), ())
    return min(input_bytes, output_bytes) if position in picked_from else input_bytes
