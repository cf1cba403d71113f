"""Infers the shapes of ONNX Runtime's custom operators from standard operators with the same shapes and types.

Files that ONNX Runtime has optimised or quantised contain operators that `onnx` does not know, and shape inference
would stop at the first unknown operator. Stand-ins therefore replace these operators during inference. Stand-ins are
never executed.

Source: docs/ContribOperators.md of ONNX Runtime 1.22, and core/optimizer/nchwc_transformer.cc.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness.models.graph.graph import DEFAULT_DOMAINS

_DOMAINS = ("com.microsoft", "com.microsoft.nchwc")
_FLOAT, _INT64 = 1, 7
"""Codes of TensorProto's element types."""

_AXES_ARE_INPUTS = 18
"""From this opset on, reductions take their axes as an input instead of an attribute."""


class _Standing:
    """Builds the nodes and constants that replace one node."""

    def __init__(
        self, onnx: Any, node: Any, constants: Mapping[str, Sequence[int]], opset: int
    ) -> None:
        """constants: the shapes of the file's constants, by name."""
        self.node = node
        self.opset = opset
        self.nodes: list[Any] = []
        self.tensors: list[Any] = []
        self._onnx = onnx
        self._constants = constants
        values = (
            (a.name, onnx.helper.get_attribute_value(a))
            for a in node.attribute
            if a.type not in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
        )
        self.attributes: dict[str, Any] = dict(values)

    def add(self, op_type: str, *inputs: str, to: str = "", **attributes: Any) -> str:
        """to: name of the output, or '' for a new name."""
        name = to or self._new()
        self.nodes.append(self._onnx.helper.make_node(op_type, list(inputs), [name], **attributes))
        return name

    def cast(self, name: str) -> str:
        """Returns the same tensor in float32."""
        output = self._new()
        self.nodes.append(self._onnx.helper.make_node("Cast", [name], [output], to=_FLOAT))
        return output

    def numbers(self, *values: int) -> str:
        name = self._new()
        tensor = self._onnx.helper.make_tensor(name, _INT64, [len(values)], list(values))
        self.tensors.append(tensor)
        return name

    def of_shape(self, *shape: int) -> str:
        """Adds a constant without values, because only its shape matters."""
        name = self._new()
        self.tensors.append(self._onnx.TensorProto(name=name, data_type=_FLOAT, dims=shape))
        return name

    def input(self, position: int) -> str:
        """Returns the name of an input, or "" if it is omitted."""
        return self.node.input[position] if position < len(self.node.input) else ""

    def constant_shape(self, position: int) -> Sequence[int]:
        """Raises KeyError if the input is not a constant."""
        return self._constants[self.input(position)]

    def without(self, *names: str) -> dict[str, Any]:
        return {name: value for name, value in self.attributes.items() if name not in names}

    def _new(self) -> str:
        return f"{self.node.output[0]}/stand-in {len(self.nodes)}.{len(self.tensors)}"


_Rule = Callable[[_Standing], str]
"""A rule adds nodes and returns the name of the tensor that has the shape and type of the replaced node's first output.
"""


def stand_ins(onnx: Any, model: Any) -> Any:
    """Returns a copy of the model with stand-ins, or the model itself if no operator needs a stand-in."""
    versions = {o.domain: o.version for o in model.opset_import}
    opset = max((versions[d] for d in DEFAULT_DOMAINS if d in versions), default=0)
    if not opset or not any(_rule(onnx, node, opset) for node in model.graph.node):
        return model
    constants = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.node[:]
    for node in model.graph.node:
        standing = _Standing(onnx, node, constants, opset)
        if _stands(standing, _rule(onnx, node, opset)):
            copy.graph.node.extend(standing.nodes)
            copy.graph.initializer.extend(standing.tensors)
        else:
            copy.graph.node.append(node)
    return copy


def _rule(onnx: Any, node: Any, opset: int) -> _Rule | None:
    """Returns the rule of a node, or None if the node needs no stand-in.

    Some operators, such as LayerNormalization, are ONNX Runtime's custom operators in earlier opsets and standard
    operators in later opsets.
    """
    rule = _RULES.get(node.op_type)
    if rule is None or node.domain in _DOMAINS:
        return rule
    is_own = node.domain in DEFAULT_DOMAINS and not onnx.defs.has(node.op_type, opset, "")
    return rule if is_own else None


def _stands(standing: _Standing, rule: _Rule | None) -> bool:
    if rule is None or not standing.node.output:
        return False
    try:
        like = rule(standing)
    # an input that the rule needs is omitted or is not a constant
    except (LookupError, ValueError):
        return False
    standing.add("Identity", like, to=standing.node.output[0])
    for position in _ALSO_LIKE_FIRST.get(standing.node.op_type, ()):
        if position < len(standing.node.output) and standing.node.output[position]:
            standing.add("Identity", like, to=standing.node.output[position])
    return True


_ALSO_LIKE_FIRST: Mapping[str, Sequence[int]] = {
    "SkipLayerNormalization": (3,),
    "SkipSimplifiedLayerNormalization": (3,),
    "EmbedLayerNormalization": (2,),
}
"""Maps an operator to its other outputs that have the shape of the first output."""


def _same(standing: _Standing) -> str:
    return standing.input(0)


def _as(op_type: str, *positions: int, drop: Sequence[str] = ()) -> _Rule:
    """Returns a rule that adds another operator, with the node's inputs at `positions` and all attributes of the node
    except `drop`.
    """

    def rule(standing: _Standing) -> str:
        inputs = [standing.input(i) for i in positions if standing.input(i)]
        return standing.add(op_type, *inputs, **standing.without(*drop))

    return rule


def _float(rule: _Rule) -> _Rule:
    """Returns the rule with its result converted to float32."""
    return lambda standing: standing.cast(rule(standing))


_ACTIVATION = ("activation", "activation_params", "activation_alpha", "activation_beta")
_ACTIVATION_GAMMA = (*_ACTIVATION, "activation_gamma")


def _pooled(op_type: str, *, last: bool = False) -> _Rule:
    """Returns the rule of an image operation whose channel axis may be the last axis."""

    def rule(standing: _Standing) -> str:
        is_last = last or standing.attributes.get("channels_last", 0)
        first, *others = standing.node.input
        if is_last:
            first = standing.add("Transpose", first, perm=[0, 3, 1, 2])
        inputs = [first, *others] if op_type == "QLinearConv" else [first]
        output = standing.add(op_type, *inputs, **standing.without("channels_last"))
        return standing.add("Transpose", output, perm=[0, 2, 3, 1]) if is_last else output

    return rule


def _blocked_input(standing: _Standing) -> str:
    if standing.attributes.get("channels_last", 0):
        return standing.add("Transpose", standing.input(0), perm=[0, 3, 1, 2])
    return standing.input(0)


def _blocked_output(standing: _Standing) -> str:
    """Removes the zero channels that pad the last block."""
    ends = (standing.numbers(n) for n in (0, int(standing.attributes["channels"]), 1))
    output = standing.add("Slice", standing.input(0), *ends)
    if standing.attributes.get("channels_last", 0):
        return standing.add("Transpose", output, perm=[0, 2, 3, 1])
    return output


def _fused_matmul(standing: _Standing) -> str:
    """Replaces alpha x A' x B', where A and B may be transposed."""
    left = "...ki" if standing.attributes.get("transA", 0) else "...ik"
    right = "...jk" if standing.attributes.get("transB", 0) else "...kj"
    equation = f"{left},{right}->...ij"
    return standing.add("Einsum", standing.input(0), standing.input(1), equation=equation)


def _qgemm(standing: _Standing) -> str:
    output = _as("Gemm", 0, 3)(standing)
    return output if standing.input(8) else standing.cast(output)


def _concat(standing: _Standing) -> str:
    return standing.add("Concat", *standing.node.input[2::3], axis=standing.attributes["axis"])


def _reduced(standing: _Standing) -> str:
    axes = standing.attributes.get("axes", ())
    kept = {"keepdims": standing.attributes.get("keepdims", 1)}
    if standing.opset >= _AXES_ARE_INPUTS:
        return standing.add("ReduceMean", standing.input(0), standing.numbers(*axes), **kept)
    return standing.add("ReduceMean", standing.input(0), axes=axes, **kept)


def _attention(standing: _Standing) -> str:
    """Maps the input (batch, length, n) and weights (n, 3 x hidden) to (batch, length, hidden)."""
    sizes = standing.attributes.get("qkv_hidden_sizes")
    hidden = sizes[2] if sizes else standing.constant_shape(1)[1] // 3
    weights = standing.of_shape(standing.constant_shape(1)[0], hidden)
    return standing.add("MatMul", standing.input(0), weights)


def _of_few_bits(standing: _Standing) -> str:
    weights = standing.of_shape(standing.attributes["K"], standing.attributes["N"])
    return standing.add("MatMul", standing.input(0), weights)


_ELEMENTWISE = (
    "Gelu", "FastGelu", "QuickGelu", "BiasGelu", "BiasSoftmax", "BiasDropout",
    "LayerNormalization", "SimplifiedLayerNormalization", "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization", "RotaryEmbedding", "GroupNorm", "Swish",
    "QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax", "MultiHeadAttention",
    "GroupQueryAttention",
)  # fmt: skip
"""Operators whose first output has the shape and type of the first input."""

_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(_ELEMENTWISE, _same),
    "FusedConv": _as("Conv", 0, 1, 2, drop=_ACTIVATION),
    "Conv": _as("Conv", 0, 1, 2, drop=_ACTIVATION),  # a convolution on blocks of channels
    "FusedGemm": _as("Gemm", 0, 1, 2, drop=_ACTIVATION_GAMMA),
    "FusedMatMul": _fused_matmul,
    "ReorderInput": _blocked_input,
    "ReorderOutput": _blocked_output,
    "MaxPool": _as("MaxPool", 0),
    "AveragePool": _as("AveragePool", 0),
    "GlobalMaxPool": _as("GlobalMaxPool", 0),
    "GlobalAveragePool": _as("GlobalAveragePool", 0),
    "NhwcMaxPool": _pooled("MaxPool", last=True),
    "QLinearConv": _pooled("QLinearConv"),
    "QLinearAveragePool": _pooled("AveragePool"),
    "QLinearGlobalAveragePool": _pooled("GlobalAveragePool"),
    "QLinearAdd": _as("Add", 0, 3),
    "QLinearMul": _as("Mul", 0, 3),
    "QLinearWhere": _as("Where", 0, 1, 4),
    "QLinearConcat": _concat,
    "QLinearReduceMean": _reduced,
    "QGemm": _qgemm,
    "MatMulIntegerToFloat": _float(_as("MatMul", 0, 1)),
    "DynamicQuantizeMatMul": _as("MatMul", 0, 1),
    "DynamicQuantizeLSTM": _as("LSTM", 0, 1, 2),
    "MatMulNBits": _of_few_bits,
    "EmbedLayerNormalization": lambda s: s.add("Gather", s.input(2), s.input(0)),
    "Attention": _attention,
    "QAttention": _float(_attention),
}
