"""Maps each operator to the rule that counts its work, and lists the operators that only move data."""

from collections.abc import Mapping, Sequence

from harness.models.graph.flop_rules import (
    Rule,
    attention,
    attention_products,
    conv,
    conv_transpose,
    einsum,
    fused_conv,
    gemm,
    lrn,
    matmul,
    matmul_of_few_bits,
    nothing,
    per_input,
    per_output,
    pool,
    qgemm,
    quantised_lstm,
    recurrent,
    resize,
    variadic,
)

VIEWS = frozenset(
    ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout", "Shape", "Size")
)
"""ONNX Runtime returns the same memory with another shape."""

_PICKS = frozenset(("Gather", "GatherElements", "GatherND", "Slice", "Split"))

PICKED_FROM: Mapping[str, Sequence[int]] = {
    **dict.fromkeys(_PICKS, (0,)),
    "EmbedLayerNormalization": (2, 3, 4),
    **dict.fromkeys(("embedding", "index_select", "gather", "index"), (0,)),  # PyTorch's
    **dict.fromkeys(
        ("GatherV2", "ResourceGather", "StridedSlice"), (0,)
    ),  # TensorFlow's, OpenVINO's
}
"""Operator -> the inputs from which it reads only some rows."""

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

PRODUCTS: Mapping[str, Rule] = {
    "Conv": conv,
    "ConvInteger": lambda work: conv(work, bias=None),
    "QLinearConv": lambda work: conv(work, kernel=3, bias=8),
    "FusedConv": fused_conv,
    "ConvTranspose": conv_transpose,
    "Gemm": gemm,
    "FusedGemm": gemm,
    "QGemm": qgemm,
    **dict.fromkeys(
        (
            *("MatMul", "MatMulInteger", "QLinearMatMul", "FusedMatMul", "MatMulIntegerToFloat"),
            "DynamicQuantizeMatMul",
        ),
        matmul,
    ),
    "MatMulNBits": matmul_of_few_bits,
    "Einsum": einsum,
    "Attention": attention,
    "QAttention": attention,
    "MultiHeadAttention": attention_products,
    "DynamicQuantizeLSTM": quantised_lstm,
    **dict.fromkeys(("LSTM", "GRU", "RNN"), recurrent),
}
"""Operators that multiply and add up; all others have no MACs."""

RULES: Mapping[str, Rule] = {
    **dict.fromkeys((*VIEWS, *_PICKS, *_MOVES), nothing),
    **dict.fromkeys(_ONE_EACH, per_output(1)),
    **{name: per_output(flops) for name, flops in _SEVERAL_EACH.items()},
    **dict.fromkeys(_FOLDED, per_input(1)),
    **dict.fromkeys(("ReduceL2", "ReduceSumSquare", "ReduceLogSumExp"), per_input(2)),
    **dict.fromkeys(("Sum", "Mean", "Max", "Min"), variadic),
    **dict.fromkeys(
        ("MaxPool", "NhwcMaxPool", "AveragePool", "LpPool", "QLinearAveragePool"), pool
    ),
    "DynamicQuantizeLinear": per_input(6),  # least, largest, then as QuantizeLinear
    "LRN": lrn,
    "Resize": resize,
    "Upsample": resize,
    **PRODUCTS,
}
