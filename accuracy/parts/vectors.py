"""Reads the vectors of embeddings from the accuracy log."""

import numpy as np

from harness.types import Array


def vector_of(payload: bytes, dtype: str, size: int) -> Array:
    """The vector of an answer; zeros for a failed sample, which has no answer."""
    vector = np.frombuffer(payload, dtype).astype(np.float64) if payload else np.zeros(size)
    if vector.size != size:
        raise ValueError(f"an answer is a vector of {vector.size}, the label is one of {size}")
    return vector


def unit(vector: Array) -> Array:
    """Scaled to a length of 1; a vector of zeros stays as it is."""
    length = float(np.linalg.norm(vector))
    return vector / length if length else vector
