"""Matrix products and convolutions with ONNX Runtime. ONNX Runtime's threads may spin, because the benchmark measures
peaks.
"""

from typing import Any

import numpy as np

from harness.machine.characterise.arithmetic.libraries import operations as op
from harness.types import Array, Ready

_OPSET, _IR_VERSION = 21, 10
_ERRORS = 3


def session(model: bytes, threads: int) -> Any:
    """Returns an onnxruntime.InferenceSession that runs on the CPU."""
    import onnxruntime as ort

    ort.set_default_logger_severity(_ERRORS)
    options = ort.SessionOptions()
    options.log_severity_level = _ERRORS
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def model(
    nodes: list[Any], constants: dict[str, Array], x: tuple[int, Any], y: tuple[int, Any]
) -> bytes:
    """Returns an ONNX file with input `x` and output `y`, each given by (element type, shape)."""
    from onnx import helper, numpy_helper

    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", *x)],
        [helper.make_tensor_value_info("y", *y)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opset = helper.make_opsetid("", _OPSET)
    made = helper.make_model(graph, opset_imports=[opset], ir_version=_IR_VERSION)
    content: bytes = made.SerializeToString()
    return content


def product(side: int, precision: str, threads: int) -> Ready:
    from onnx import TensorProto, helper

    shape = (side, side)
    if precision == op.INT8:
        a, b = op.small_integers(shape, "uint8"), op.small_integers(shape, "int8")
        nodes = [helper.make_node("MatMulInteger", ["x", "b"], ["y"])]
        content = model(nodes, {"b": b}, (TensorProto.UINT8, shape), (TensorProto.INT32, shape))
        return _ready(content, a, op.right_rows(a, b), threads)
    if precision == op.BF16:
        return _bf16_product(side, threads)
    a, b = op.operands(shape, shape)
    nodes = [helper.make_node("MatMul", ["x", "b"], ["y"])]
    content = model(nodes, {"b": b}, (TensorProto.FLOAT, shape), (TensorProto.FLOAT, shape))
    return _ready(content, a, op.right_rows(a, b), threads)


def _bf16_product(side: int, threads: int) -> Ready:
    """Prepares a product surrounded by casts, so that the caller does not need bfloat16 arrays."""
    from onnx import TensorProto, helper

    a, b = op.operands((side, side), (side, side))
    nodes = [
        helper.make_node("Cast", ["x"], ["xb"], to=TensorProto.BFLOAT16),
        helper.make_node("Cast", ["b"], ["bb"], to=TensorProto.BFLOAT16),
        helper.make_node("MatMul", ["xb", "bb"], ["yb"]),
        helper.make_node("Cast", ["yb"], ["y"], to=TensorProto.FLOAT),
    ]
    kind = (TensorProto.FLOAT, (side, side))
    return _ready(model(nodes, {"b": b}, kind, kind), a, op.right_rows(a, b), threads)


def convolution(shape: op.Filter, precision: str, threads: int) -> Ready:
    from onnx import TensorProto, helper

    if precision == op.BF16:
        raise op.lacks("ONNX Runtime", "bf16 convolution on the processor")
    pads = {"pads": [1, 1, 1, 1], "kernel_shape": [3, 3]}
    if precision == op.INT8:
        x = op.small_integers(shape.input_shape, "uint8")
        w = op.small_integers(shape.weight_shape, "int8")
        names = ["x", "one", "zero", "w", "one", "w_zero", "y_scale", "zero"]
        constants: dict[str, Array] = {
            "one": np.array(1, np.float32),
            "zero": np.array(0, np.uint8),
            "w_zero": np.array(0, np.int8),
            "y_scale": np.array(64, np.float32),
            "w": w,
        }
        nodes = [helper.make_node("QLinearConv", names, ["y"], **pads)]
        kind = (TensorProto.UINT8, shape.input_shape)
        return _ready(model(nodes, constants, kind, kind), x, None, threads)
    x, w = op.operands(shape.input_shape, shape.weight_shape)
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], **pads)]
    kind = (TensorProto.FLOAT, shape.input_shape)
    return _ready(model(nodes, {"w": w}, kind, kind), x, None, threads)


def _ready(content: bytes, x: Array, right: Array | None, threads: int) -> Ready:
    opened = session(content, threads)
    feed = {"x": x}
    facts = {}
    if right is not None:
        facts["relative_error"] = op.relative_error(opened.run(None, feed)[0], right)
    return Ready(lambda: opened.run(None, feed), facts=facts)
