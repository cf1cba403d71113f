"""NumPy's matrix product, which runs in NumPy's BLAS library."""

from typing import Any

import numpy as np

from harness.machine.characterise.arithmetic.libraries import operations as op
from harness.types import Ready


def product(side: int, precision: str, threads: int) -> Ready:
    """Prepares the product. threads: unused, because the BLAS library reads the number of threads from an environment
    variable when the library is loaded.
    """
    del threads
    if precision != op.FP32:
        raise op.lacks("NumPy", f"{precision} product in its BLAS library")
    a, b = op.operands((side, side), (side, side))
    out = np.empty_like(a)
    right = op.right_rows(a, b)
    facts = {"kernels": _blas(), "relative_error": op.relative_error(a @ b, right)}
    return Ready(lambda: np.matmul(a, b, out=out), facts=facts)


def convolution(shape: op.Filter, precision: str, threads: int) -> Ready:
    del shape, precision, threads
    raise op.lacks("NumPy", "convolution of images")


def _blas() -> str:
    """Returns the BLAS library that NumPy was built with, for example `scipy-openblas 0.3.30`."""
    config: Any = np.show_config(mode="dicts")
    blas = config["Build Dependencies"]["blas"]
    return " ".join(str(blas[key]) for key in ("name", "version") if key in blas)
