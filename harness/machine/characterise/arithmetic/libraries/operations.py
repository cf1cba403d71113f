"""Defines the operations that every library computes: their shapes, work, operands and correct results."""

from importlib import import_module
from typing import Any, NamedTuple, Protocol

import numpy as np

from harness.errors import PluginUnavailable
from harness.types import Array, Ready

FP32, BF16, INT8 = PRECISIONS = ("fp32", "bf16", "int8")

LIBRARIES = ("numpy", "ort", "openvino", "tensorflow", "torch", "litert")
"""The modules in this folder that compute operations."""


class Filter(NamedTuple):
    """A 3x3 convolution with stride 1, whose output has the same shape as its input."""

    batch: int
    channels: int
    side: int

    @property
    def flop(self) -> int:
        return 2 * self.batch * self.channels**2 * 9 * self.side**2

    @property
    def input_shape(self) -> tuple[int, int, int, int]:
        """The input's shape as NCHW."""
        return self.batch, self.channels, self.side, self.side

    @property
    def weight_shape(self) -> tuple[int, int, int, int]:
        """The weights' shape as output channels, input channels, height, width."""
        return self.channels, self.channels, 3, 3

    def __str__(self) -> str:
        return "x".join(map(str, self.input_shape))


class Library(Protocol):
    """A module in this folder. The module's functions propagate the library's errors. threads: number of computing
    threads.

    The second operand is a constant if the library supports constants, because a model's weights are constants too.
    """

    def product(self, side: int, precision: str, threads: int) -> Ready: ...

    def convolution(self, shape: Filter, precision: str, threads: int) -> Ready: ...


def library(name: str) -> Library:
    module: Any = import_module(f"harness.machine.characterise.arithmetic.libraries.{name}")
    result: Library = module
    return result


def lacks(library_name: str, what: str) -> PluginUnavailable:
    """Returns the error that explains why a library cannot measure a point."""
    return PluginUnavailable(f"{library_name} has no {what}")


def operands(*shapes: tuple[int, ...]) -> list[Array]:
    """Returns seeded float32 numbers in [0, 1), one array per shape."""
    random = np.random.default_rng(0)
    return [random.random(shape, dtype=np.float32) for shape in shapes]


def small_integers(shape: tuple[int, ...], dtype: str) -> Array:
    """Returns seeded small integers of an 8-bit type."""
    low = 0 if dtype == "uint8" else -8
    return np.random.default_rng(1).integers(low, 8, shape).astype(dtype)


CHECKED_ROWS = 16
"""Number of rows that are checked in a product. These rows are computed again in a wider, slower type that is exact or
nearly exact.
"""


def right_rows(a: Array, b: Array) -> Array:
    """Returns the first rows of the product, in int64 for integers and in float64 for all other types."""
    wide = np.int64 if a.dtype.kind in "iu" else np.float64
    rows: Array = a[:CHECKED_ROWS].astype(wide) @ b.astype(wide)
    return rows


def relative_error(answer: Array, right: Array) -> float:
    """Returns the largest difference divided by the largest correct value. right: the first rows of the correct result."""
    rows = answer[: len(right)].astype(np.float64)
    difference = np.abs(rows - right.astype(np.float64)).max()
    return float(difference / np.abs(right).max())
