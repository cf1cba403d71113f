"""Matrix products and convolutions with OpenVINO. The compiled model lists the kernels that compute the results."""

from typing import Any

import numpy as np

from harness.core import signal_stack
from harness.machine.characterise.arithmetic.libraries import operations as op
from harness.types import Array, Ready

_LEVELS = 256


def product(side: int, precision: str, threads: int) -> Ready:
    import openvino.opset13 as ov

    shape = (side, side)
    a, b = op.operands(shape, shape)
    x = ov.parameter(shape, np.float32, name="x")
    left, right = _quantised(ov, x, b) if precision == op.INT8 else (x, ov.constant(b))
    answer = None if precision == op.INT8 else op.right_rows(a, b)
    return _ready(x, ov.matmul(left, right, False, False), a, precision, threads, answer)


def convolution(shape: op.Filter, precision: str, threads: int) -> Ready:
    import openvino.opset13 as ov

    images, w = op.operands(shape.input_shape, shape.weight_shape)
    x = ov.parameter(shape.input_shape, np.float32, name="x")
    left, right = _quantised(ov, x, w) if precision == op.INT8 else (x, ov.constant(w))
    node = ov.convolution(left, right, [1, 1], [1, 1], [1, 1], [1, 1])
    return _ready(x, node, images, precision, threads, None)


def _quantised(ov: Any, x: Any, weights: Array) -> tuple[Any, Any]:
    """Returns operands in [0, 1) that the compiler converts to 8-bit integers (activations u8, weights i8)."""
    low, high, below = np.float32(0), np.float32(1), np.float32(-1)
    left = ov.fake_quantize(x, low, high, low, high, _LEVELS)
    right = ov.fake_quantize(ov.constant(weights), below, high, below, high, _LEVELS - 1)
    return left, right


def _ready(
    x: Any, node: Any, data: Array, precision: str, threads: int, right: Array | None
) -> Ready:
    import openvino

    model = openvino.Model([node], [x], "g")
    hint = "bf16" if precision == op.BF16 else "f32"
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": hint,
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,
    }
    with signal_stack.kept():
        compiled = openvino.Core().compile_model(model, "CPU", settings)
    request = compiled.create_infer_request()
    request.set_input_tensor(openvino.Tensor(data, shared_memory=True))
    facts: dict[str, Any] = {"kernels": _kernels(compiled)}
    if right is not None:
        request.infer()
        answer = request.get_output_tensor().data
        facts["relative_error"] = op.relative_error(answer, right)
    # `kept` holds references, because the request does not keep these objects alive
    kept = (data, compiled)

    def infer() -> None:
        assert kept
        request.infer()

    return Ready(infer, facts=facts)


def _kernels(compiled: Any) -> str:
    """Returns the implementations of the product or convolution, for example 'MatMul brgemm_avx512_bf16'."""
    found = []
    for node in compiled.get_runtime_model().get_ordered_ops():
        info = node.get_rt_info()
        kind = str(info["layerType"].astype(str)) if "layerType" in info else ""
        if kind in ("MatMul", "FullyConnected", "Convolution"):
            found.append(f"{kind} {info['primitiveType'].astype(str)}")
    return ", ".join(dict.fromkeys(found))
