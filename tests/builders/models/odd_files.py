"""Writes small ONNX files with rare features of exporters: unknown sizes, maps, states, old opsets."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING
BFLOAT16 = TensorProto.BFLOAT16

OPEN_SIZES: Mapping[str, Any] = {
    "minus one": -1,
    "zero": 0,
    "question mark": "?",
    "None": "None",
    "tf2onnx": "unk__7",
    "number as name": "-1",
    "empty": "",
}
"""The ways in which exporters write a size without a name."""

_FOREST = {"coefficients": [0.1] * 12, "intercepts": [0.1] * 3, "post_transform": "SOFTMAX"}


def value(name: str, shape: Sequence[Any] | None, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def write(
    path: Path,
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    weights: Mapping[str, Any] = {},
    opset: int = 17,
    ir: int = 8,
    **domains: int,
) -> Path:
    """weights: arrays by name. domains: opset version by domain, with _ for each dot."""
    given = [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()]
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), given)
    others = [helper.make_opsetid(name.replace("_", "."), n) for name, n in domains.items()]
    opsets = [helper.make_opsetid("", opset), *others]
    save(helper.make_model(graph, opset_imports=opsets, ir_version=ir), path)
    return path


def pooled(path: Path, size: int | str) -> Path:
    """Writes an image model [size, 3, size, size] whose inner shapes use the same symbolic name."""
    ends = value("x", (size, 3, size, size)), value("y", (size, 3, 1, 1))
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["y"]),
    ]
    return write(path, nodes, ends[:1], ends[1:])


def two_texts(path: Path) -> Path:
    """Writes a model with two inputs [?, ?] whose lengths may differ."""
    nodes = [
        helper.make_node("ReduceMean", [name], [f"mean_{name}"], axes=[1], keepdims=1)
        for name in ("x", "z")
    ]
    nodes.append(helper.make_node("Add", ["mean_x", "mean_z"], ["y"]))
    inputs = [value("x", ("?", "?")), value("z", ("?", "?"))]
    return write(path, nodes, inputs, [value("y", ("?", 1))])


def quantised_shape(path: Path) -> Path:
    """Writes an int8 tensor with a fixed shape; a folded layer reads only the shape."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("Shape", ["d"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
        helper.make_node("Add", ["x", "zeros"], ["y"]),
    ]
    weights = {"s": np.float32(0.1), "z": np.uint8(0)}
    return write(path, nodes, [value("x", ("n", 4))], [value("y", ("n", 4))], weights)


def classifier(path: Path, *, zipmap: bool = True, label: bool = True) -> Path:
    """Writes a classifier as skl2onnx does: a label, and probabilities as a sequence of maps."""
    kinds = helper.make_map_type_proto(INT64, helper.make_tensor_type_proto(FLOAT, []))
    maps = helper.make_value_info("probabilities", helper.make_sequence_type_proto(kinds))
    nodes = [
        helper.make_node(
            "LinearClassifier",
            ["x"],
            ["label", "scores"],
            domain="ai.onnx.ml",
            classlabels_ints=[0, 1, 2],
            **_FOREST,
        ),
        helper.make_node(
            "ZipMap",
            ["scores"],
            ["probabilities"],
            domain="ai.onnx.ml",
            classlabels_int64s=[0, 1, 2],
        ),
    ]
    outputs = [value("label", ("n",), INT64)] * label + [maps] * zipmap
    return write(path, nodes, [value("x", ("n", 4))], outputs, ai_onnx_ml=3)


def sequence(path: Path) -> Path:
    """Writes a model whose only output is a sequence with one tensor per row."""
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, None))
    node = helper.make_node("SplitToSequence", ["x"], ["s"], axis=0)
    return write(path, [node], [value("x", ("n", 4))], [helper.make_value_info("s", kind)])


def of_sequence(path: Path) -> Path:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, None))
    node = helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0)
    return write(path, [node], [helper.make_value_info("s", kind)], [value("y", None)])


def of_bfloat16(path: Path) -> Path:
    node = helper.make_node("Cast", ["x"], ["y"], to=FLOAT)
    inputs = [value("x", ("n", 4), TensorProto.BFLOAT16)]
    return write(path, [node], inputs, [value("y", ("n", 4))])


def recurrent(
    path: Path, layers: int = 2, batch: int | str = "batch", *, rate: bool = True
) -> Path:
    """Writes a model with a state [layers, batch, 128], the samples `input` [batch, 512], and a scalar `sr`.

    The output is the sum of the samples and the state, multiplied by the scalar.
    """
    nodes = [
        helper.make_node("ReduceSum", ["input", "one"], ["samples"]),
        helper.make_node("ReduceSum", ["state", "outer"], ["held"], keepdims=0),
        helper.make_node("Unsqueeze", ["held", "one"], ["column"]),
        helper.make_node("Add", ["samples", "column"], ["sum"]),
        helper.make_node("Cast", ["sr"], ["factor"], to=FLOAT),
        helper.make_node("Mul", ["sum", "factor"], ["output"]),
    ]
    inputs = [value("input", (batch, 512)), value("state", (layers, batch, 128))]
    weights: dict[str, Any] = {"one": np.array([1]), "outer": np.array([0, 2])}
    if rate:
        inputs.append(value("sr", (), INT64))
    else:
        weights["sr"] = np.int64(1)
    return write(path, nodes, inputs, [value("output", (batch, 1))], weights)


def without_inputs(path: Path) -> Path:
    node = helper.make_node("Identity", ["w"], ["y"])
    return write(path, [node], [], [value("y", (2, 2))], {"w": np.eye(2, dtype=np.float32)})


def without_outputs(path: Path) -> Path:
    return write(path, [helper.make_node("Relu", ["x"], ["y"])], [value("x", ("n", 4))], [])


def reduced_to_one(path: Path) -> Path:
    """Writes a model that returns one number for the whole batch."""
    node = helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)
    return write(path, [node], [value("x", ("n", 4))], [value("y", ())])


def fixed(path: Path, batch: int) -> Path:
    ends = value("x", (batch, 4)), value("y", (batch, 4))
    return write(path, [helper.make_node("Relu", ["x"], ["y"])], ends[:1], ends[1:])


def of_opset(path: Path, opset: int, ir: int = 8) -> Path:
    old = {"consumed_inputs": [0]} if opset < 6 else {}
    node = helper.make_node("Relu", ["x"], ["y"], **old)
    return write(path, [node], [value("x", ("n", 4))], [value("y", ("n", 4))], opset=opset, ir=ir)


def of_vendor(path: Path) -> Path:
    node = helper.make_node("Foo", ["x"], ["y"], domain="vendor")
    return write(path, [node], [value("x", ("n", 4))], [value("y", ("n", 4))], vendor=1)


def doubled(path: Path, opset: int, kind: int) -> Path:
    """Writes x + x, computed in the type `kind`."""
    nodes = [
        helper.make_node("Cast", ["x"], ["k"], to=kind),
        helper.make_node("Add", ["k", "k"], ["sum"]),
        helper.make_node("Cast", ["sum"], ["y"], to=FLOAT),
    ]
    return write(path, nodes, [value("x", ("n", 4))], [value("y", ("n", 4))], opset=opset)


def of_three(path: Path, batch: int = 3) -> Path:
    """Writes a graph that accepts only batches of three samples, although its file declares any batch size."""
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    ends = value("x", ("n", 4)), value("y", ("n", 4))
    return write(path, [node], ends[:1], ends[1:], {"shape": np.array([batch, 4])})


def without_batch(path: Path) -> Path:
    """Writes a model x [8] -> y [8]."""
    node = helper.make_node("Relu", ["x"], ["y"])
    return write(path, [node], [value("x", (8,))], [value("y", (8,))])


def of_another_library(path: Path) -> Path:
    """Writes an operator that ONNX Runtime does not know."""
    node = helper.make_node("Foo", ["x"], ["y"], domain="my.library")
    ends = value("x", ("n", 4)), value("y", ("n", 4))
    return write(path, [node], ends[:1], ends[1:], my_library=1)


def matching(path: Path) -> Path:
    """Writes a graph that adds rows of three samples, although its file declares any batch size."""
    node = helper.make_node("Add", ["x", "rows"], ["y"])
    ends = value("x", ("n", 4)), value("y", ("n", 4))
    return write(path, [node], ends[:1], ends[1:], {"rows": np.zeros((3, 4), np.float32)})
