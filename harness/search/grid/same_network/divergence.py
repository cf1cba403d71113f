"""Measures the distance between a model's outputs in two precisions or frameworks."""

from typing import NamedTuple

import numpy as np

from harness.results.agreement import distance
from harness.types import Array


class Divergence(NamedTuple):
    """The distance between two sets of outputs for the same samples."""

    samples: int
    relative_l2: float
    """Euclidean distance between all outputs, divided by the Euclidean length of the first set."""
    largest: float
    """Largest absolute difference between single values."""
    js_bits: float | None
    """Mean Jensen-Shannon divergence between the rows' softmax, in [0, 1]; None if the rows are not scores."""
    top1: float | None
    """Share of rows whose largest value is at the same position; None if the rows are not scores."""


def divergence(ours: Array, theirs: Array) -> Divergence | None:
    """Returns the distance, or None if the outputs cannot be compared. ours, theirs: (n, ...) raw outputs for the same
    samples.
    """
    if ours.shape != theirs.shape or not ours.size:
        return None
    a, b = (rows.astype(np.float64).reshape(len(rows), -1) for rows in (ours, theirs))
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return None
    overall = distance([(a, b)])
    assert overall is not None
    scores = sum(size > 1 for size in ours.shape[1:]) == 1
    return Divergence(
        samples=len(ours),
        relative_l2=overall.mean if overall.relative is None else overall.relative,
        largest=float(np.abs(a - b).max()),
        js_bits=_js_bits(a, b) if scores else None,
        top1=float((a.argmax(axis=1) == b.argmax(axis=1)).mean()) if scores else None,
    )


def _js_bits(a: Array, b: Array) -> float:
    p, q = _softmax(a), _softmax(b)
    middle = (p + q) / 2
    each = (_relative_entropy(p, middle) + _relative_entropy(q, middle)) / 2
    return max(0.0, float(each.mean()))


def _softmax(rows: Array) -> Array:
    """Returns the softmax of each row. Leaves the rows unchanged if they are already probabilities."""
    if (rows >= 0).all() and np.allclose(rows.sum(axis=1), 1.0, atol=1e-3):
        return rows
    grown: Array = np.exp(rows - rows.max(axis=1, keepdims=True))
    shares: Array = grown / grown.sum(axis=1, keepdims=True)
    return shares


def _relative_entropy(p: Array, q: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(p > 0, p * np.log2(p / q), 0.0)
    bits: Array = terms.sum(axis=1)
    return bits
