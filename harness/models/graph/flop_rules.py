"""Computes a node's multiplications and operations from the shapes of its operands.

Source: the layer formulas of Benanza (Li et al., IPDPS 2020, section III and dlperf pkg/onnx at 88ce347). One formula
differs: for a dilated kernel, this module counts the weights, whereas Benanza counts the area that the weights cover.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

Attributes = Mapping[str, Any]


class Operand(NamedTuple):
    """An input or output tensor of a node."""

    shape: tuple[int, ...]
    """The shape, with all sizes known."""
    dtype: str
    """Name of the element type in ONNX or numpy."""
    is_weight: bool = False

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Size of an element in bytes, or 0 if the elements differ in size, as strings do."""
        return (self.elements * _BITS.get(self.dtype, 0) + 7) // 8


class Work(NamedTuple):
    """A node in the form that the rules accept. An omitted operand is None."""

    attributes: Attributes
    inputs: Sequence[Operand | None]
    outputs: Sequence[Operand | None]

    @property
    def output_elements(self) -> int:
        """Number of elements in the first output."""
        return _elements(self.outputs, 0)

    @property
    def input_elements(self) -> int:
        """Number of elements in the first input."""
        return _elements(self.inputs, 0)

    def shape(self, position: int) -> tuple[int, ...]:
        """Returns the shape of a required input."""
        operand = self.inputs[position]
        if operand is None:
            raise ValueError(f"input {position} is missing")
        return operand.shape

    def has(self, position: int) -> bool:
        return position < len(self.inputs) and self.inputs[position] is not None


Rule = Callable[[Work], tuple[int, int]]
"""A rule returns (MACs, FLOPs)."""


def _elements(operands: Sequence[Operand | None], position: int) -> int:
    operand = operands[position] if position < len(operands) else None
    if operand is None:
        raise ValueError(f"the shape of operand {position} is not known")
    return operand.elements


def conv(work: Work, kernel: int = 1, bias: int | None = 2) -> tuple[int, int]:
    """kernel, bias: positions of the inputs with the weights and the bias. Weights are (Cout, Cin / group, kernel...)."""
    macs = work.output_elements * prod(work.shape(kernel)[1:])
    has_bias = bias is not None and work.has(bias)
    return macs, 2 * macs + work.output_elements * (has_bias + _fused(work))


def fused_conv(work: Work) -> tuple[int, int]:
    """Counts ONNX Runtime's FusedConv, which adds input 3, Z, to the result."""
    macs, flops = conv(work)
    return macs, flops + work.output_elements * work.has(3)


def conv_transpose(work: Work) -> tuple[int, int]:
    """Counts the products of each input element with all weights of the element's channel. Weights are (Cin, Cout /
    group, kernel...).
    """
    macs = work.input_elements * prod(work.shape(1)[1:])
    return macs, 2 * macs + work.output_elements * work.has(2)


def matmul(work: Work) -> tuple[int, int]:
    """Counts a matrix product, taking into account transA, an attribute of Gemm and of ONNX Runtime's FusedMatMul."""
    across = -2 if work.attributes.get("transA", 0) else -1
    macs = work.output_elements * work.shape(0)[across]
    return macs, 2 * macs


def gemm(work: Work, bias: int = 2) -> tuple[int, int]:
    """Counts a matrix product with a bias. bias: the position of the bias among the inputs."""
    macs, flops = matmul(work)
    return macs, flops + work.output_elements * (work.has(bias) + _fused(work))


def qgemm(work: Work) -> tuple[int, int]:
    """Counts ONNX Runtime's QGemm, with the inputs A, a_scale, a_zero, B, b_scale, b_zero, C."""
    return gemm(work, bias=6)


def _fused(work: Work) -> int:
    """Returns 1 if ONNX Runtime has fused an activation into the node, else 0."""
    return int(bool(work.attributes.get("activation")))


def einsum(work: Work) -> tuple[int, int]:
    """Counts one product per combination of indices. Products are summed over the indices that are missing from the
    output.

    Accepts one or two operands. With more operands, the count would depend on the order of multiplication.
    """
    terms_of_inputs, output_term = _indices(work)
    sizes: dict[str, int] = {}
    for position, indices in enumerate(terms_of_inputs):
        for index, size in zip(indices, work.shape(position), strict=True):
            sizes[index] = max(size, sizes.get(index, 1))
    if len(terms_of_inputs) > 2:
        raise ValueError("the order of the products is not known")
    products = prod(sizes.values())
    is_summed = bool(sizes.keys() - set(output_term))
    if len(terms_of_inputs) == 1 or not is_summed:
        return 0, products * (len(terms_of_inputs) - 1 + is_summed)
    return products, 2 * products


def _indices(work: Work) -> tuple[list[list[str]], list[str]]:
    """Returns one index per axis for each operand and for the output.

    The axes of an ellipsis are numbered from the last axis.
    """
    equation = work.attributes.get("equation", "")
    text = (equation.decode() if isinstance(equation, bytes) else str(equation)).replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(work.inputs):
        raise ValueError(f"{text} has {len(terms)} operands")
    terms_of_inputs = []
    for position, term in enumerate(terms):
        left_out = len(work.shape(position)) - len(term.replace("...", ""))
        terms_of_inputs.append(_expanded(term, left_out))
    most = max((len(term) for term in terms_of_inputs), default=0)
    if arrow:
        return terms_of_inputs, _expanded(right, most)
    counts = Counter(index for term in terms_of_inputs for index in dict.fromkeys(term))
    return terms_of_inputs, [
        index for index, count in counts.items() if count == 1 or index.isdigit()
    ]


def _expanded(term: str, left_out: int) -> list[str]:
    before, ellipsis, after = term.partition("...")
    numbers = [str(i) for i in reversed(range(left_out))] if ellipsis else []
    return [*before, *numbers, *after]


def attention(work: Work) -> tuple[int, int]:
    """Counts both operators that are named Attention.

    ONNX Runtime's operator has one input and one weight matrix for query, key and value together. The standard operator
    has three inputs, each (batch, length, hidden) or (batch, heads, length, size).
    """
    if len(work.shape(1)) != 2:
        return attention_products(work)
    batch, length, inputs = work.shape(0)
    columns = work.shape(1)[1]
    macs = batch * length * inputs * columns + 2 * batch * length * length * columns // 3
    return macs, 2 * macs + batch * length * columns


def attention_products(work: Work) -> tuple[int, int]:
    """Counts the product of query and key, and the product of the scores and value. Ignores softmax and scale, because
    both need little work.
    """
    query, key, value = work.shape(0), work.shape(1), work.shape(2)
    if len(query) == len(key) == len(value) == 4:
        lengths = prod(query[:3]) * key[2]
    elif len(query) == len(key) == len(value) == 3:
        lengths = query[0] * query[1] * key[1]
    else:
        raise ValueError("query, key and value are packed into one tensor")
    macs = lengths * (query[-1] + value[-1])
    return macs, 2 * macs


def matmul_of_few_bits(work: Work) -> tuple[int, int]:
    """Counts ONNX Runtime's MatMulNBits, in which K is the number of inputs and N the number of outputs. Ignores the
    work of unpacking the weights.
    """
    macs = work.output_elements * int(work.attributes["K"])
    return macs, 2 * macs


def recurrent(work: Work) -> tuple[int, int]:
    """Expects X: (steps, batch, inputs); W: (directions, gates * hidden, inputs); R: (.., .., hidden).

    Each gate adds both products and a bias, and computes a function of the sum.
    """
    return _recurrent(work, *work.shape(2))


def quantised_lstm(work: Work) -> tuple[int, int]:
    """Counts ONNX Runtime's DynamicQuantizeLSTM, whose W is transposed: (directions, inputs, gates * hidden)."""
    directions, _, rows = work.shape(1)
    return _recurrent(work, directions, rows, work.shape(2)[1])


def _recurrent(work: Work, directions: int, rows: int, hidden: int) -> tuple[int, int]:
    steps, batch, inputs = work.shape(0)
    cells = steps * batch * directions * rows
    macs = cells * (inputs + hidden)
    return macs, 2 * macs + 3 * cells


def pool(work: Work) -> tuple[int, int]:
    """Counts one comparison or addition per tap."""
    return 0, work.output_elements * prod(work.attributes.get("kernel_shape", (1,)))


def lrn(work: Work) -> tuple[int, int]:
    """Counts the squares and their sum over `size` channels, then the factor, offset, power and quotient."""
    return 0, work.output_elements * (int(work.attributes.get("size", 1)) + 5)


def resize(work: Work) -> tuple[int, int]:
    """Counts a multiplication and an addition per tap. Linear interpolation uses two taps per axis, and cubic
    interpolation uses four.
    """
    mode = work.attributes.get("mode", "nearest")
    if isinstance(mode, bytes):
        mode = mode.decode()
    source, output = work.shape(0), work.outputs[0]
    if output is None:
        raise ValueError("the output's shape is not known")
    axes = sum(a != b for a, b in zip(source, output.shape, strict=True))
    taps = {"nearest": 0, "linear": 2**axes, "cubic": 4**axes}[str(mode)]
    return 0, 2 * taps * work.output_elements


def per_output(flops: int) -> Rule:
    """Returns a rule that counts `flops` operations per output element."""
    return lambda work: (0, flops * work.output_elements)


def per_input(flops: int) -> Rule:
    """Returns a rule that counts `flops` operations per input element, for sums, means and norms."""
    return lambda work: (0, flops * work.input_elements)


def variadic(work: Work) -> tuple[int, int]:
    """Counts a + b + c: a sum of n inputs takes n - 1 operations per output element."""
    return 0, work.output_elements * max(len(work.inputs) - 1, 0)


def nothing(_work: Work) -> tuple[int, int]:
    return 0, 0


_BITS: Mapping[str, int] = {
    **dict.fromkeys(("float64", "double", "int64", "uint64", "complex64"), 64),
    **dict.fromkeys(("float32", "float", "int32", "uint32"), 32),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 16),
    **dict.fromkeys(("int8", "uint8", "bool", "float8e4m3fn", "float8e5m2"), 8),
    **dict.fromkeys(("int4", "uint4", "float4e2m1"), 4),
    "complex128": 128,
}
