"""Cuts a graph into pieces of at most G layers.

`by_groups` implements this harness's rule. `by_chains` implements the published rule, for comparison. The published
rule takes layers in file order as long as they form a chain, and takes a single layer wherever a branch begins or ends.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from harness.explain.pieces.cut import Cut
from harness.explain.pieces.ends import (
    DEQUANTISE,
    QUANTISE,
    can_be_made_up,
    entering,
    is_known,
    leaving,
)
from harness.models.graph.flops import graph_costs
from harness.models.graph.graph import Graph, Node

Piece = tuple[Node, ...]
"""Layers in topological order."""

PIECE_BYTES = 1 << 16
"""Cost of each piece in the partition, expressed in bytes that cross a cut. This cost keeps the number of pieces
small.
"""

BYTES_PER_MAC = 0.2
"""Cost of a multiplication, expressed in bytes that cross a cut. A larger value produces more pieces that are
identical.
"""

_ELEMENTWISE = frozenset([
    "Abs", "Add", "BatchNormalization", "Cast", "Ceil", "Clip", "Div", "Dropout", "Elu", "Erf",
    "Exp", "Flatten", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Log",
    "Max", "Min", "Mul", "Neg", "PRelu", "Pow", "Reciprocal", "Relu", "Reshape", "Round",
    "Sigmoid", "Softplus", "Softsign", "Sqrt", "Squeeze", "Sub", "Sum", "Tanh", "Unsqueeze",
    "Where", "QuantizeLinear",
])  # fmt: skip
"""Operators that runtimes fuse into the preceding layer, or that only reinterpret the shape of that layer's output."""

_RESIZES = frozenset(("Resize", "Upsample"))
"""Operators that ONNX Runtime computes faster if the preceding layer outputs ONNX Runtime's internal layout."""

_DYNAMIC = "DynamicQuantizeLinear"
_INTEGER_PRODUCTS = frozenset(("ConvInteger", "MatMulInteger"))

_POOLS = frozenset(("AveragePool", "MaxPool"))
"""Pooling operators. Pooling of integers is ten times slower if the layout is not ONNX Runtime's internal layout
(NHWC).
"""

_PLAIN_POOL_BYTES = 1 << 40
"""Cost of a slow pool in the partition. This cost is so high that any other cut is better."""


def groups(graph: Graph) -> list[Piece]:
    """Returns groups of layers that runtimes fuse, in topological order, branch by branch.

    A group is a layer with the element-wise layers after it, as long as no other layer reads its output. The group also
    contains the DequantizeLinear nodes before the layer, because the layer would compute in floats without these nodes.
    """
    head: dict[int, int] = {}
    for node in graph.layers:
        before = _fused_with(graph, node)
        head[node.index] = node.index if before is None else head[before.index]
    for node in reversed(graph.layers):
        if node.op_type == DEQUANTISE:
            maker = graph.producer.get(node.inputs[0])
            beside = (*graph.consumers.get(node.outputs[0], ()), *filter(None, [maker]))
            # layers that are not in `head` are folded
            with_it = (head[n.index] for n in beside if n.index in head)
            head[node.index] = next(with_it, node.index)
        elif node.op_type == _DYNAMIC:
            _join_its_reader(graph, node, head)
    members: dict[int, list[Node]] = {}
    for node in graph.layers:
        members.setdefault(head[node.index], []).append(node)
    try:
        return [tuple(members[h]) for h in _branch_by_branch(graph, head, list(members))]
    except CycleError:  # two groups depend on each other, so they stay separate
        return [(node,) for node in graph.layers]


def _join_its_reader(graph: Graph, node: Node, head: dict[int, int]) -> None:
    """Joins a quantisation with the integer product that reads its output, unless another layer also reads this output.
    One kernel computes the quantisation and the product, and also the conversion to floats.
    """
    readers = [n for name in node.outputs for n in graph.consumers.get(name, ())]
    products = {head[n.index] for n in readers if n.op_type in _INTEGER_PRODUCTS}
    if len(products) == 1 and {head[n.index] for n in readers} <= {*products, node.index}:
        (product,) = products
        for index, own in head.items():
            if own == node.index:
                head[index] = product


def _fused_with(graph: Graph, node: Node) -> Node | None:
    """Returns the layer with which `node` is fused. If `node` joins two layers, returns the later layer."""
    if node.op_type not in _ELEMENTWISE | _RESIZES or node.domain:
        return None
    makers = [
        maker
        for name in node.inputs
        if (maker := graph.producer.get(name)) is not None
        and not (maker.from_constants or maker.op_type == DEQUANTISE)
        and len(graph.consumers[name]) == 1
        and name not in graph.outputs
    ]
    return max(makers, key=lambda n: n.index, default=None)


def _branch_by_branch(graph: Graph, head: dict[int, int], heads: list[int]) -> list[int]:
    """Orders groups depth first, so that each branch ends before the next branch begins."""
    needs: dict[int, set[int]] = {h: set() for h in heads}
    for node in graph.layers:
        for name in node.inputs:
            maker = _maker(graph, name)
            if maker is not None and not maker.from_constants:
                needs[head[node.index]].add(head[maker.index])
    sorter = TopologicalSorter({h: before - {h} for h, before in needs.items()})
    sorter.prepare()
    ready, order = sorted(sorter.get_ready(), key=heads.index, reverse=True), list[int]()
    while ready:
        order.append(ready.pop())
        sorter.done(order[-1])
        ready += sorted(sorter.get_ready(), reverse=True)
    return order


def _maker(graph: Graph, name: str) -> Node | None:
    """Returns the layer that must run before `name` is read. A DequantizeLinear is skipped, because every reader gets a
    separate copy of this node.
    """
    maker = graph.producer.get(name)
    if maker is not None and maker.op_type == DEQUANTISE:
        return graph.producer.get(maker.inputs[0])
    return maker


def _length(piece: Sequence[Node]) -> int:
    """Counts the layers of a piece. Quantisation nodes do not count, because runtimes have no kernels for them."""
    return max(1, sum(node.op_type not in (DEQUANTISE, QUANTISE) for node in piece))


def _join_where_shapes_are_unknown(graph: Graph, parts: Sequence[Piece]) -> list[Piece]:
    """Handles tensors with data-dependent shapes separately, because they cannot be generated as inputs. Joins each
    reader of such a tensor with the layer that computes the tensor and with all layers between them, regardless of the
    resulting length.
    """
    joined: list[Piece] = []
    for part in parts:
        joined.append(part)
        while unknown := _unknown_makers(graph, joined[-1]):
            first = next(i for i, one in enumerate(joined) if unknown & {n.index for n in one})
            joined[first:] = [_concatenated(joined[first:])]
    return joined


def _unknown_makers(graph: Graph, piece: Piece) -> set[int]:
    """Returns the layers outside the piece that compute tensors that cannot be made up as inputs of the piece."""
    inside = {node.index for node in piece}
    names = (name for name in entering(graph, piece) if not can_be_made_up(graph, name))
    makers = (graph.producer.get(name) for name in names)
    return {m.index for m in makers if m is not None and m.index not in inside}


def _single_layers(group: Piece) -> list[Piece]:
    """Returns each layer alone, with its quantisation nodes."""
    parts: list[list[Node]] = []
    before: list[Node] = []
    for node in group:
        if node.op_type == DEQUANTISE:
            before.append(node)
        elif node.op_type == QUANTISE and parts:
            parts[-1].append(node)
        else:
            parts.append([*before, node])
            before = []
    if before:
        parts.append(before)
    return [tuple(part) for part in parts]


def by_groups(graph: Graph, most: int) -> list[Piece]:
    """Returns pieces of at most `most` layers, made of whole groups unless a group is longer.

    Each piece can run alone, with the tensors at its ends as inputs and outputs. The chosen partition has the lowest
    cost. The cost is the number of activation bytes that cross the cuts, plus each piece's work divided by the number
    of places in this model where an identical piece fits.
    """
    parts: list[Piece] = []
    for group in groups(graph):
        parts += [group] if _length(group) <= most else _single_layers(group)
    parts = _join_where_shapes_are_unknown(graph, parts)
    costs = _costs(graph, parts, most)
    begins: dict[int, list[int]] = {}
    for begin, end in costs:
        begins.setdefault(end, []).append(begin)
    # Entry i: the minimum cost of the first i parts, and the pieces that reach it
    best: list[tuple[float, list[Piece]]] = [(0.0, [])]
    for end in range(1, len(parts) + 1):
        cost, begin = min((best[begin][0] + costs[begin, end], begin) for begin in begins[end])
        best.append((cost, [*best[begin][1], _concatenated(parts[begin:end])]))
    return best[-1][1]


def _concatenated(parts: Sequence[Piece]) -> Piece:
    return tuple(node for part in parts for node in part)


def _costs(graph: Graph, parts: Sequence[Piece], most: int) -> Mapping[tuple[int, int], float]:
    """Returns the cost in bytes of each piece that is short enough, by the piece's beginning and exclusive end."""
    pieces: dict[tuple[int, int], Cut] = {}
    for end in range(1, len(parts) + 1):
        for begin in range(end - 1, -1, -1):
            piece = _concatenated(parts[begin:end])
            if _length(piece) > most and end - begin > 1:
                break
            pieces[begin, end] = Cut(graph, piece)
    places = _places(pieces)
    node_macs = [cost.macs or 0 for cost in graph_costs(graph)]
    macs = {span: sum(node_macs[node.index] for node in cut.nodes) for span, cut in pieces.items()}
    return {
        span: _crossing_bytes(cut)
        + BYTES_PER_MAC * macs[span] / places[cut.brick.digest]
        + _PLAIN_POOL_BYTES * _pools_in_plain_layout(cut)
        for span, cut in pieces.items()
    }


def _pools_in_plain_layout(cut: Cut) -> bool:
    """Whether an integer pool reads an input of the piece directly or through layers that accept both layouts."""
    graph, inside = cut.graph, {node.index for node in cut.nodes}
    pools = (node for node in cut.nodes if node.op_type in _POOLS)
    todo = [name for node in pools for name in node.inputs if _is_dequantised(graph, name)]
    while todo:
        maker = graph.producer.get(todo.pop())
        if maker is None or (maker.op_type != DEQUANTISE and maker.index not in inside):
            return True
        if maker.op_type in (DEQUANTISE, QUANTISE, *EITHER_LAYOUT):
            todo += [name for name in maker.inputs if name and not is_known(graph, name)]
    return False


def _is_dequantised(graph: Graph, name: str) -> bool:
    maker = graph.producer.get(name)
    return maker is not None and maker.op_type == DEQUANTISE


def _places(pieces: Mapping[tuple[int, int], Cut]) -> Mapping[str, int]:
    """Returns the number of non-overlapping occurrences of each digest. pieces: pieces by beginning and exclusive end,
    in ascending order of the end.
    """
    count: Counter[str] = Counter()
    last: dict[str, int] = {}
    for (begin, end), cut in pieces.items():
        if begin >= last.get(cut.brick.digest, 0):
            count[cut.brick.digest] += 1
            last[cut.brick.digest] = end
    return count


def _crossing_bytes(cut: Cut) -> int:
    """Counts the bytes that cross the piece's ends. Adds PIECE_BYTES, so that even a cut that no bytes cross has a
    cost.
    """
    tensors = (*cut.brick.inputs, *cut.brick.outputs)
    return PIECE_BYTES + sum(tensor.size_bytes or 0 for tensor in tensors)


def by_chains(graph: Graph, most: int) -> list[Piece]:
    """Applies the published rule. Takes up to `most` layers in the file's order if they are a chain, otherwise the
    first layer alone. Continues in the same way with the next layer.
    Source: DLBricks (Li et al., ICPE 2020), algorithms 1 and 2.
    """
    layers, pieces, begin = graph.layers, list[Piece](), 0
    while begin < len(layers):
        stretch = layers[begin : begin + most]
        if len(stretch) > 1 and not _is_chain(graph, stretch):
            stretch = stretch[:1]
        pieces.append(stretch)
        begin += len(stretch)
    return pieces


def _is_chain(graph: Graph, piece: Sequence[Node]) -> bool:
    """Whether at most one activation enters the piece, at the first layer, and only the last layer's output leaves
    it.
    """
    outside = entering(graph, piece)
    first = set(piece[0].inputs)
    last = set(piece[-1].outputs)
    return len(outside) <= 1 and set(outside) <= first and set(leaving(graph, piece)) <= last


EITHER_LAYOUT = (
    "Add", "Concat", "Mul", "Relu", "Sigmoid", "Sum", "Tanh", "QLinearAdd", "QLinearConcat",
    "QLinearLeakyRelu", "QLinearMul", "QLinearSigmoid",
)  # fmt: skip
"""Operators that ONNX Runtime computes in the layout of their inputs.

Source: microsoft/onnxruntime, core/optimizer/nchwc_transformer.cc, and for integers
core/optimizer/nhwc_transformer.cc.
"""
