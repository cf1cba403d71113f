"""Reads embedding vectors from the accuracy log."""

import numpy as np

from harness.types import Array


def vector_of(payload: bytes, dtype: str, size: int) -> Array:
    """Returns the vector in an answer, or zeros for a failed sample, which has no answer."""
    vector = np.frombuffer(payload, dtype).astype(np.float64) if payload else np.zeros(size)
    if vector.size != size:
        raise ValueError(f"an answer has {vector.size} numbers, but its label has {size}")
    return vector


def unit(vector: Array) -> Array:
    """Scales a vector to length 1. A vector of zeros stays unchanged."""
    length = float(np.linalg.norm(vector))
    return vector / length if length else vector
