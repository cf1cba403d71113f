"""Makes up the numbers of a piece that runs alone: its weights and its inputs."""

import numpy as np

from harness.models.graph.graph import Tensor
from harness.types import Array


def weights(random: np.random.Generator, tensor: Tensor) -> Array:
    """Makes up numbers that any layer can compute with.

    Kernels are scaled (He initialisation). Vectors and scalars are positive and near 1, because they may be variances
    or divisors. 8-bit integer kernels are random. All other integers are 0.
    """
    shape = tuple(n or 0 for n in tensor.shape)
    dtype = np.dtype(tensor.dtype)
    if dtype.kind in "iu" and dtype.itemsize == 1 and len(shape) > 1:
        return random.integers(0, 127, shape, dtype)
    if dtype.kind in "iub":
        return np.zeros(shape, dtype)
    array: Array = random.standard_normal(shape, dtype=np.float32)
    if len(shape) < 2:
        array = 1 + 0.1 * np.abs(array)
    else:
        array *= np.float32((2.0 / max(1, int(np.prod(shape[1:])))) ** 0.5)
    return np.asarray(array, dtype)


def activations(random: np.random.Generator, tensor: Tensor) -> Array:
    """Makes up an input of a brick: positive numbers, or indices 0 and 1."""
    shape = tuple(n or 0 for n in tensor.shape)
    dtype = np.dtype(tensor.dtype)
    if dtype.kind in "iub":
        return np.asarray(random.integers(0, 2, shape), dtype)
    return np.asarray(0.1 + random.random(shape, dtype=np.float32), dtype)
