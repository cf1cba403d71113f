"""The benchmark `gpu-gemm`, which measures the rate of square matrix products on a GPU for several precisions."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from harness.machine.characterise.gpu import device
from harness.types import Benchmark, Point, Ready

SIDES = (1024, 4096, 8192)
PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "fp8", "int8")
_CHECKED = 64
"""Number of rows that are compared with a product in float64."""


class GpuGemm:
    """Measures products of square matrices. The work at each point is 2 side^3 FLOP, because a product takes side^3
    multiply-adds.
    """

    about = "products of square matrices on a GPU, by precision"

    def points(self, threads: int) -> Iterator[Point]:
        del threads
        for precision in PRECISIONS if device.is_here() else ():
            for side in SIDES:
                yield Point(
                    settings={"library": device.LIBRARY, "precision": precision, "side": side},
                    open=partial(_ready, precision, side),
                    work=2 * side**3,
                    unit="FLOP",
                )


@contextmanager
def _ready(precision: str, side: int) -> Iterator[Ready]:
    torch = device.torch_on_gpu()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    # The matrices are random, because a product of zeros draws less power and runs faster.
    torch.manual_seed(0)
    a, b = (torch.randn(side, side, device="cuda") for _ in range(2))
    product, exact = _product(torch, precision, a, b)
    found = product()[:_CHECKED].double()
    error = float((found - exact).abs().max() / exact.abs().max())
    about = {"relative_error": error, "device": torch.cuda.get_device_name()}
    yield Ready(device.ended(torch, product), facts=about)


def _product(torch: Any, precision: str, a: Any, b: Any) -> tuple[Callable[[], Any], Any]:
    """Returns two values: a function that computes the product, and the first rows of the product of the rounded operands.

    PyTorch offers int8 and fp8 products only through private functions.
    """
    if precision == "int8":
        a, b = ((each * 20).clamp(-127, 127).to(torch.int8) for each in (a, b))
        # `b` is column-major, because the matrix unit reads the second operand in this order.
        b = b.t().contiguous().t()
        return partial(torch._int_mm, a, b), a[:_CHECKED].double() @ b.double()  # noqa: SLF001
    if precision == "fp8":
        a, b = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
        b = b.t().contiguous().t()
        one = torch.ones((), device="cuda")
        call = partial(torch._scaled_mm, a, b, one, one, out_dtype=torch.bfloat16)  # noqa: SLF001
        return call, a[:_CHECKED].double() @ b.double()
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    a, b = a.to(dtype), b.to(dtype)
    return partial(torch.matmul, a, b), a[:_CHECKED].double() @ b.double()


_: type[Benchmark] = GpuGemm
