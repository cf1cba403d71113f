"""Maps each operator to the rule that counts its work, and lists the operators that only move data."""

from collections.abc import Mapping, Sequence

from harness.models.graph import flop_rules as rules

VIEWS = frozenset(
    ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout", "Shape", "Size")
)
"""Operators for which ONNX Runtime reuses the input's memory and changes only the shape."""

_PICKS = frozenset(("Gather", "GatherElements", "GatherND", "Slice", "Split"))

PICKED_FROM: Mapping[str, Sequence[int]] = {
    **dict.fromkeys(_PICKS, (0,)),
    "EmbedLayerNormalization": (2, 3, 4),
    **dict.fromkeys(("embedding", "index_select", "gather", "index"), (0,)),  # PyTorch's operators
    # operators of TensorFlow and OpenVINO
    **dict.fromkeys(("GatherV2", "ResourceGather", "StridedSlice"), (0,)),
}
"""Maps an operator to the inputs from which the operator reads only some rows."""

_MOVES = (
    "Transpose", "Concat", "Cast", "Pad", "Expand", "Tile", "DepthToSpace", "SpaceToDepth",
    "Constant", "ConstantOfShape", "Range", "Where", "OneHot", "ScatterND", "ScatterElements",
    "EyeLike", "Trilu", "CastLike", "ReverseSequence", "Unique", "Compress", "NonZero",
    "QLinearConcat", "QLinearWhere", "BiasDropout",
    # operators that only ONNX Runtime defines
    "ReorderInput", "ReorderOutput", "MemcpyFromHost", "MemcpyToHost",
)  # fmt: skip

_ONE_EACH = (
    "Relu", "Neg", "Abs", "Exp", "Log", "Sqrt", "Erf", "Floor", "Ceil", "Round", "Sign", "Not",
    "Reciprocal", "Sin", "Cos", "Tan", "Tanh", "IsNaN", "IsInf", "ThresholdedRelu",
    "Add", "Sub", "Mul", "Div", "Pow", "Mod", "PRelu", "LeakyRelu", "BitShift", "And", "Or",
    "Xor", "Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual",
)  # fmt: skip

_SEVERAL_EACH = {
    # the four parameters per channel are combined in advance into a factor and an offset
    "BatchNormalization": 2,
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
    "Softmax": 5,  # five operations: maximum, difference, exp, sum and quotient
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
    "QuantizeLinear": 4,  # four operations: quotient, rounding, offset and limits
    "DequantizeLinear": 2,
    "QLinearAdd": 6,
    "QLinearMul": 5,
    "QLinearSigmoid": 8,
    "QLinearSoftmax": 9,
    "BiasSoftmax": 6,
    "QLinearLeakyRelu": 6,
}

_FOLDED = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "CumSum",
    "GlobalAveragePool", "GlobalMaxPool", "QLinearGlobalAveragePool", "ArgMax", "ArgMin",
    "GlobalLpPool", "QLinearReduceMean",
)  # fmt: skip

_MATRIX_PRODUCTS = (
    "MatMul", "MatMulInteger", "QLinearMatMul", "FusedMatMul", "MatMulIntegerToFloat",
    "DynamicQuantizeMatMul",
)  # fmt: skip

PRODUCTS: Mapping[str, rules.Rule] = {
    "Conv": rules.conv,
    "ConvInteger": lambda work: rules.conv(work, bias=None),
    "QLinearConv": lambda work: rules.conv(work, kernel=3, bias=8),
    "FusedConv": rules.fused_conv,
    "ConvTranspose": rules.conv_transpose,
    "Gemm": rules.gemm,
    "FusedGemm": rules.gemm,
    "QGemm": rules.qgemm,
    **dict.fromkeys(_MATRIX_PRODUCTS, rules.matmul),
    "MatMulNBits": rules.matmul_of_few_bits,
    "Einsum": rules.einsum,
    "Attention": rules.attention,
    "QAttention": rules.attention,
    "MultiHeadAttention": rules.attention_products,
    "DynamicQuantizeLSTM": rules.quantised_lstm,
    **dict.fromkeys(("LSTM", "GRU", "RNN"), rules.recurrent),
}
"""Operators that multiply and accumulate. Other operators have no MACs."""

_POOLS = ("MaxPool", "NhwcMaxPool", "AveragePool", "LpPool", "QLinearAveragePool")

RULES: Mapping[str, rules.Rule] = {
    **dict.fromkeys((*VIEWS, *_PICKS, *_MOVES), rules.nothing),
    **dict.fromkeys(_ONE_EACH, rules.per_output(1)),
    **{name: rules.per_output(flops) for name, flops in _SEVERAL_EACH.items()},
    **dict.fromkeys(_FOLDED, rules.per_input(1)),
    **dict.fromkeys(("ReduceL2", "ReduceSumSquare", "ReduceLogSumExp"), rules.per_input(2)),
    **dict.fromkeys(("Sum", "Mean", "Max", "Min"), rules.variadic),
    **dict.fromkeys(_POOLS, rules.pool),
    # minimum and maximum, then the operations of QuantizeLinear
    "DynamicQuantizeLinear": rules.per_input(6),
    "LRN": rules.lrn,
    "Resize": rules.resize,
    "Upsample": rules.resize,
    **PRODUCTS,
}
