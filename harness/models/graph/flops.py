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
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from math import prod
from typing import Any, NamedTuple

from harness.models.graph.graph import Graph, Node
from harness.profiler import CONTROL_FLOW

Attributes = Mapping[str, Any]


class Operand(NamedTuple):
    """A tensor a node takes or makes. shape: all sizes known. dtype: as ONNX or numpy name it."""

    shape: tuple[int, ...]
    dtype: str
    is_weight: bool = False

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """0 where elements have no one size, as those of strings."""
        return (self.elements * _BITS.get(self.dtype, 0) + 7) // 8


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


class _Work(NamedTuple):
    """A node as the rules see it; operands that are left out are None."""

    attributes: Attributes
    inputs: Sequence[Operand | None]
    outputs: Sequence[Operand | None]

    @property
    def made(self) -> int:
        """Elements of the first output."""
        return _elements(self.outputs, 0)

    @property
    def taken(self) -> int:
        """Elements of the first input."""
        return _elements(self.inputs, 0)

    def shape(self, position: int) -> tuple[int, ...]:
        """Of an input that the operation cannot do without."""
        operand = self.inputs[position]
        if operand is None:
            raise ValueError(f"input {position} is missing")
        return operand.shape

    def has(self, position: int) -> bool:
        return position < len(self.inputs) and self.inputs[position] is not None


_Rule = Callable[[_Work], tuple[int, int]]
"""-> MACs, FLOPs."""


def cost(
    op_type: str,
    attributes: Attributes,
    inputs: Sequence[Operand | None],
    outputs: Sequence[Operand | None],
) -> Cost:
    """Of one node. attributes: numbers, strings and lists of them; those that are left out have
    ONNX's default. None stands for an optional operand that is left out, or has no known shape.
    """
    work = _Work(attributes, inputs, outputs)
    macs = flops = None
    if op_type in _RULES:
        try:
            macs, flops = _RULES[op_type](work)
        except (ValueError, LookupError, ZeroDivisionError):  # of shapes that are not known
            macs = flops = None
    return Cost(macs, flops, *_bytes(op_type, work))


def only_moves(op_type: str) -> bool:
    """Whether the operation computes nothing: it copies, reorders, picks, or is another view."""
    return _RULES.get(op_type) is _nothing


def has_rule(op_type: str) -> bool:
    """Whether the work of such a node follows from its shapes; where these are not known, it is not."""
    return op_type in _RULES


def may_multiply(op_type: str, domain: str = "") -> bool:
    """Whether a node whose MACs are not known may have any: a product, a subgraph, a vendor's operator."""
    return (
        op_type in _PRODUCTS or op_type in CONTROL_FLOW or (bool(domain) and not has_rule(op_type))
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


def _bytes(op_type: str, work: _Work) -> tuple[int, int, int]:
    """Of weights, inputs, outputs. A view moves nothing; what picks rows reads what it picks."""
    if op_type in _VIEWS:
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
    picked_from = _PICKED_FROM.get(op_type.removeprefix("aten::"), ())
    return min(input_bytes, output_bytes) if position in picked_from else input_bytes


def _elements(operands: Sequence[Operand | None], position: int) -> int:
    operand = operands[position] if position < len(operands) else None
    if operand is None:
        raise ValueError(f"the shape of operand {position} is not known")
    return operand.elements


def _conv(work: _Work, kernel: int = 1, bias: int | None = 2) -> tuple[int, int]:
    """kernel, bias: which inputs those are. Weights: (Cout, Cin / group, kernel...)."""
    macs = work.made * prod(work.shape(kernel)[1:])
    has_bias = bias is not None and work.has(bias)
    return macs, 2 * macs + work.made * (has_bias + _fused(work))


def _fused_conv(work: _Work) -> tuple[int, int]:
    """ONNX Runtime's: Z, the sum it is added to, is input 3."""
    macs, flops = _conv(work)
    return macs, flops + work.made * work.has(3)


def _conv_transpose(work: _Work) -> tuple[int, int]:
    """Weights: (Cin, Cout / group, kernel...): every input element meets all of its channel's."""
    macs = work.taken * prod(work.shape(1)[1:])
    return macs, 2 * macs + work.made * work.has(2)


def _gemm(work: _Work) -> tuple[int, int]:
    across = -2 if work.attributes.get("transA", 0) else -1
    macs = work.made * work.shape(0)[across]
    return macs, 2 * macs + work.made * (work.has(2) + _fused(work))


def _matmul(work: _Work) -> tuple[int, int]:
    """transA: of ONNX Runtime's FusedMatMul."""
    across = -2 if work.attributes.get("transA", 0) else -1
    macs = work.made * work.shape(0)[across]
    return macs, 2 * macs


def _qgemm(work: _Work) -> tuple[int, int]:
    """ONNX Runtime's: A, a_scale, a_zero, B, b_scale, b_zero, C."""
    across = 0 if work.attributes.get("transA", 0) else 1
    macs = work.made * work.shape(0)[across]
    return macs, 2 * macs + work.made * work.has(6)


def _fused(work: _Work) -> int:
    """1 where ONNX Runtime computes an activation with it."""
    return int(bool(work.attributes.get("activation")))


def _einsum(work: _Work) -> tuple[int, int]:
    """Of one or two operands: a product for each combination of all indices, added up over those that
    the output lacks. Of more it depends on the order.
    """
    given, made = _indices(work)
    sizes: dict[str, int] = {}
    for position, indices in enumerate(given):
        for index, size in zip(indices, work.shape(position), strict=True):
            sizes[index] = max(size, sizes.get(index, 1))
    if len(given) > 2:
        raise ValueError("the order of the products is not known")
    products = prod(sizes.values())
    is_summed = bool(sizes.keys() - set(made))
    if len(given) == 1 or not is_summed:
        return 0, products * (len(given) - 1 + is_summed)
    return products, 2 * products


def _indices(work: _Work) -> tuple[list[list[str]], list[str]]:
    """Of each operand and of the output, one an axis; those of an ellipsis are numbered from the last."""
    equation = work.attributes.get("equation", "")
    text = (equation.decode() if isinstance(equation, bytes) else str(equation)).replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(work.inputs):
        raise ValueError(f"{text} is of {len(terms)} operands")
    given = []
    for position, term in enumerate(terms):
        left_out = len(work.shape(position)) - len(term.replace("...", ""))
        given.append(_expanded(term, left_out))
    most = max((len(term) for term in given), default=0)
    if arrow:
        return given, _expanded(right, most)
    counts = Counter(index for term in given for index in dict.fromkeys(term))
    return given, [index for index, count in counts.items() if count == 1 or index.isdigit()]


def _expanded(term: str, left_out: int) -> list[str]:
    before, ellipsis, after = term.partition("...")
    numbers = [str(i) for i in reversed(range(left_out))] if ellipsis else []
    return [*before, *numbers, *after]


def _attention(work: _Work) -> tuple[int, int]:
    """ONNX Runtime's, of one input and the weights of query, key and value together; the standard's
    has them as three inputs, each (batch, length, hidden) or (batch, heads, length, size).
    """
    if len(work.shape(1)) != 2:
        return _products_of_attention(work)
    batch, length, inputs = work.shape(0)
    columns = work.shape(1)[1]
    macs = batch * length * inputs * columns + 2 * batch * length * length * columns // 3
    return macs, 2 * macs + batch * length * columns


def _products_of_attention(work: _Work) -> tuple[int, int]:
    """Query by key, and the result by value. Softmax and scale are left out, as small."""
    query, key, value = work.shape(0), work.shape(1), work.shape(2)
    if len(query) == len(key) == len(value) == 4:
        lengths = prod(query[:3]) * key[2]
    elif len(query) == len(key) == len(value) == 3:
        lengths = query[0] * query[1] * key[1]
    else:
        raise ValueError("query, key and value are packed")
    macs = lengths * (query[-1] + value[-1])
    return macs, 2 * macs


def _of_few_bits(work: _Work) -> tuple[int, int]:
    """ONNX Runtime's MatMulNBits: K inputs, N outputs; the weights are unpacked on the way."""
    macs = work.made * int(work.attributes["K"])
    return macs, 2 * macs


def _quantised_lstm(work: _Work) -> tuple[int, int]:
    """ONNX Runtime's, whose weights are turned: W: (directions, inputs, gates * hidden)."""
    steps, batch, inputs = work.shape(0)
    directions, _, rows = work.shape(1)
    cells = steps * batch * directions * rows
    macs = cells * (inputs + work.shape(2)[1])
    return macs, 2 * macs + 3 * cells


def _recurrent(work: _Work) -> tuple[int, int]:
    """X: (steps, batch, inputs); W: (directions, gates * hidden, inputs); R: (.., .., hidden).

    Beside the products, of each gate: a bias, the sum of both products, a function.
    """
    steps, batch, inputs = work.shape(0)
    directions, rows, hidden = work.shape(2)
    cells = steps * batch * directions * rows
    macs = cells * (inputs + hidden)
    return macs, 2 * macs + 3 * cells


def _pool(work: _Work) -> tuple[int, int]:
    """A comparison or an addition for each tap."""
    return 0, work.made * prod(work.attributes.get("kernel_shape", (1,)))


def _lrn(work: _Work) -> tuple[int, int]:
    """Squares and their sum over `size` channels, then factor, offset, power and quotient."""
    return 0, work.made * (int(work.attributes.get("size", 1)) + 5)


def _resize(work: _Work) -> tuple[int, int]:
    """Linear: a factor and an addition for each corner; cubic: for each of four taps an axis."""
    mode = work.attributes.get("mode", "nearest")
    if isinstance(mode, bytes):
        mode = mode.decode()
    given, made = work.shape(0), work.outputs[0]
    if made is None:
        raise ValueError("the output's shape is not known")
    axes = sum(a != b for a, b in zip(given, made.shape, strict=True))
    taps = {"nearest": 0, "linear": 2**axes, "cubic": 4**axes}[str(mode)]
    return 0, 2 * taps * work.made


def _each(flops: int) -> _Rule:
    """So many for each element made."""
    return lambda work: (0, flops * work.made)


def _folded(flops: int) -> _Rule:
    """So many for each element taken: sums, means, norms."""
    return lambda work: (0, flops * work.taken)


def _variadic(work: _Work) -> tuple[int, int]:
    """a + b + c: one less than there are inputs."""
    return 0, work.made * max(len(work.inputs) - 1, 0)


def _nothing(_work: _Work) -> tuple[int, int]:
    return 0, 0


_VIEWS = frozenset(
    ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout", "Shape", "Size")
)
"""ONNX Runtime gives the same memory another shape."""

_PICKS = frozenset(("Gather", "GatherElements", "GatherND", "Slice", "Split"))

_PICKED_FROM: Mapping[str, Sequence[int]] = {
    **dict.fromkeys(_PICKS, (0,)),
    "EmbedLayerNormalization": (2, 3, 4),
    **dict.fromkeys(("embedding", "index_select", "gather", "index"), (0,)),  # PyTorch's
    **dict.fromkeys(
        ("GatherV2", "ResourceGather", "StridedSlice"), (0,)
    ),  # TensorFlow's, OpenVINO's
}
"""Operator -> the inputs of which it reads some rows only."""

_MOVES = (
    *("Transpose", "Concat", "Cast", "Pad", "Expand", "Tile", "DepthToSpace", "SpaceToDepth"),
    *("Constant", "ConstantOfShape", "Range", "Where", "OneHot", "ScatterND", "ScatterElements"),
    *("EyeLike", "Trilu", "CastLike", "ReverseSequence", "Unique", "Compress", "NonZero"),
    *("QLinearConcat", "QLinearWhere", "BiasDropout"),
    *("ReorderInput", "ReorderOutput", "MemcpyFromHost", "MemcpyToHost"),  # ONNX Runtime's own
)

_ONE_EACH = (
    *("Relu", "Neg", "Abs", "Exp", "Log", "Sqrt", "Erf", "Floor", "Ceil", "Round", "Sign", "Not"),
    *("Reciprocal", "Sin", "Cos", "Tan", "Tanh", "IsNaN", "IsInf", "ThresholdedRelu"),
    *("Add", "Sub", "Mul", "Div", "Pow", "Mod", "PRelu", "LeakyRelu", "BitShift", "And", "Or"),
    *("Xor", "Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"),
)

_SEVERAL_EACH = {
    "BatchNormalization": 2,  # its four numbers a channel are a factor and an offset
    "LayerNormalization": 8,
    "SimplifiedLayerNormalization": 5,
    "SkipLayerNormalization": 9,
    "SkipSimplifiedLayerNormalization": 6,
    "EmbedLayerNormalization": 10,
    "RMSNormalization": 5,
    "MeanVarianceNormalization": 6,
    "RotaryEmbedding": 3,
    "InstanceNormalization": 8,
    "GroupNormalization": 8,
    "Softmax": 5,  # maximum, difference, exp, sum, quotient
    "LogSoftmax": 6,
    "Sigmoid": 4,
    "HardSigmoid": 4,
    "HardSwish": 5,
    "Swish": 5,
    "QuickGelu": 6,
    "Gelu": 5,
    "FastGelu": 8,
    "BiasGelu": 6,
    "Mish": 6,
    "Elu": 3,
    "Selu": 4,
    "Celu": 5,
    "Softplus": 3,
    "Softsign": 3,
    "Clip": 2,
    "Shrink": 2,
    "QuantizeLinear": 4,  # quotient, rounding, offset, limits
    "DequantizeLinear": 2,
    "QLinearAdd": 6,
    "QLinearMul": 5,
    "QLinearSigmoid": 8,
    "QLinearSoftmax": 9,
    "BiasSoftmax": 6,
    "QLinearLeakyRelu": 6,
}

_FOLDED = (
    *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "CumSum"),
    *("GlobalAveragePool", "GlobalMaxPool", "QLinearGlobalAveragePool", "ArgMax", "ArgMin"),
    *("GlobalLpPool", "QLinearReduceMean"),
)

_PRODUCTS: Mapping[str, _Rule] = {
    "Conv": _conv,
    "ConvInteger": lambda work: _conv(work, bias=None),
    "QLinearConv": lambda work: _conv(work, kernel=3, bias=8),
    "FusedConv": _fused_conv,
    "ConvTranspose": _conv_transpose,
    "Gemm": _gemm,
    "FusedGemm": _gemm,
    "QGemm": _qgemm,
    **dict.fromkeys(
        (
            *("MatMul", "MatMulInteger", "QLinearMatMul", "FusedMatMul", "MatMulIntegerToFloat"),
            "DynamicQuantizeMatMul",
        ),
        _matmul,
    ),
    "MatMulNBits": _of_few_bits,
    "Einsum": _einsum,
    "Attention": _attention,
    "QAttention": _attention,
    "MultiHeadAttention": _products_of_attention,
    "DynamicQuantizeLSTM": _quantised_lstm,
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
}
"""Operators that multiply and add up; all others have no MACs."""

_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys((*_VIEWS, *_PICKS, *_MOVES), _nothing),
    **dict.fromkeys(_ONE_EACH, _each(1)),
    **{name: _each(flops) for name, flops in _SEVERAL_EACH.items()},
    **dict.fromkeys(_FOLDED, _folded(1)),
    **dict.fromkeys(("ReduceL2", "ReduceSumSquare", "ReduceLogSumExp"), _folded(2)),
    **dict.fromkeys(("Sum", "Mean", "Max", "Min"), _variadic),
    **dict.fromkeys(
        ("MaxPool", "NhwcMaxPool", "AveragePool", "LpPool", "QLinearAveragePool"), _pool
    ),
    "DynamicQuantizeLinear": _folded(6),  # least, largest, then as QuantizeLinear
    "LRN": _lrn,
    "Resize": _resize,
    "Upsample": _resize,
    **_PRODUCTS,
}

_BITS: Mapping[str, int] = {
    **dict.fromkeys(("float64", "double", "int64", "uint64", "complex64"), 64),
    **dict.fromkeys(("float32", "float", "int32", "uint32"), 32),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 16),
    **dict.fromkeys(("int8", "uint8", "bool", "float8e4m3fn", "float8e5m2"), 8),
    **dict.fromkeys(("int4", "uint4", "float4e2m1"), 4),
    "complex128": 128,
}
