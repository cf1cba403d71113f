"""Matrix products and convolutions with PyTorch. oneDNN reports the kernels that computed the results."""

import os
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from harness.machine.characterise.arithmetic.libraries import operations as op
from harness.types import Ready


def _torch(threads: int) -> Any:
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    return torch


def product(side: int, precision: str, threads: int) -> Ready:
    torch = _torch(threads)
    shape = (side, side)
    if precision == op.INT8:
        a, b = (torch.from_numpy(op.small_integers(shape, "int8")) for _ in range(2))
        right = op.right_rows(a.numpy(), b.numpy())
        return _ready(torch, lambda: torch._int_mm(a, b), right)  # noqa: SLF001 - has no other name
    kind = torch.bfloat16 if precision == op.BF16 else torch.float32
    x, y = (torch.from_numpy(one).to(kind) for one in op.operands(shape, shape))
    right = op.right_rows(x.double().numpy(), y.double().numpy())
    return _ready(torch, lambda: torch.mm(x, y), right)


def convolution(shape: op.Filter, precision: str, threads: int) -> Ready:
    torch = _torch(threads)
    if precision == op.INT8:
        return _int8_convolution(torch, shape)
    kind = torch.bfloat16 if precision == op.BF16 else torch.float32
    x, w = (torch.from_numpy(a) for a in op.operands(shape.input_shape, shape.weight_shape))
    layer = torch.nn.Conv2d(shape.channels, shape.channels, 3, padding=1, bias=False)
    layer.weight.copy_(w)
    layer = layer.to(kind).to(memory_format=torch.channels_last)
    inputs = x.to(kind).contiguous(memory_format=torch.channels_last)
    return _ready(torch, lambda: layer(inputs), None)


def _int8_convolution(torch: Any, shape: op.Filter) -> Ready:
    weights = op.small_integers(shape.weight_shape, "int8").astype(np.float32)
    images = op.small_integers(shape.input_shape, "uint8").astype(np.float32)
    w = torch.quantize_per_tensor(torch.from_numpy(weights), 1.0, 0, torch.qint8)
    x = torch.quantize_per_tensor(torch.from_numpy(images), 1.0, 0, torch.quint8)
    x = x.contiguous(memory_format=torch.channels_last)
    packed = torch.ops.quantized.conv2d_prepack(w, None, [1, 1], [1, 1], [1, 1], 1)
    return _ready(torch, lambda: torch.ops.quantized.conv2d(x, packed, 64.0, 0), None)


def _ready(torch: Any, call: Callable[[], Any], right: Any) -> Ready:
    facts: dict[str, Any] = {}
    if right is not None:
        answer = call()
        facts["relative_error"] = op.relative_error(answer.to(torch.float32).numpy(), right)
    if kernels := _onednn_kernels(torch, call):
        facts["kernels"] = kernels
    return Ready(call, facts=facts)


def _onednn_kernels(torch: Any, call: Callable[[], Any]) -> str:
    """Returns the implementations that oneDNN prints to stdout for one call, or '' if the call does not use oneDNN."""
    mkldnn = torch.backends.mkldnn
    with tempfile.TemporaryFile() as printed:
        kept = os.dup(1)
        os.dup2(printed.fileno(), 1)
        try:
            with mkldnn.verbose(mkldnn.VERBOSE_ON):
                call()
        finally:
            os.dup2(kept, 1)
            os.close(kept)
        printed.seek(0)
        return implementations(printed.read().decode(errors="replace"))


def implementations(verbose: str) -> str:
    """Parses oneDNN's output. 'onednn_verbose,v1,primitive,exec,cpu,matmul,brg:avx512_core,...' becomes 'matmul
    brg:avx512_core'.
    """
    rows = [line.split(",") for line in verbose.splitlines() if line.startswith("onednn_verbose")]
    found = []
    for row in rows:
        if "exec" in row and len(row) > row.index("exec") + 3:
            at = row.index("exec")
            if (
                row[at + 2] != "reorder" and row[at + 3]
            ):  # because oneDNN's plain gemm has an empty name
                found.append(f"{row[at + 2]} {row[at + 3]}")
    return ", ".join(dict.fromkeys(found))
