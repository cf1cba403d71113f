"""Stores the answers to a batch, as an array of equal rows or as rows of different lengths."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from harness.types import Array, show_shape


class AnswerRow(NamedTuple):
    """Shape and type of all answers of a run."""

    shape: tuple[int | None, ...]
    """Shape of an answer. The first entry is None if answers differ in length."""
    dtype: np.dtype[Any]


class Ragged:
    """The answers to a batch of n samples. The shapes of the answers differ only in the first dimension. `shape` is (n,
    None, ...).

    Raises ValueError if rows differ in dtype, rank or any other dimension.
    """

    __slots__ = ("dtype", "rows", "shape")

    def __init__(self, rows: Sequence[Array]) -> None:
        self.rows = rows
        self.dtype = rows[0].dtype
        trailing = rows[0].shape[1:]
        for row in rows:
            if not row.shape or row.shape[1:] != trailing or row.dtype != self.dtype:
                raise ValueError(
                    f"answers of one batch differ in more than length: {self.dtype} of shape "
                    f"{show_shape(rows[0].shape)} and {row.dtype} of shape {show_shape(row.shape)}"
                )
        self.shape: tuple[int | None, ...] = (len(rows), None, *trailing)

    def __len__(self) -> int:
        return len(self.rows)


Answers = Array | Ragged


def flattened(answers: Answers) -> Ragged:
    """Flattens each answer to one row of numbers in C order."""
    rows = answers.rows if isinstance(answers, Ragged) else answers
    return Ragged([row.reshape(-1) for row in rows])


def largest_bytes(answers: Answers) -> int:
    """Returns the size of the largest answer in bytes."""
    if isinstance(answers, Ragged):
        return max(row.nbytes for row in answers.rows)
    return answers.nbytes // len(answers)


def common_row(rows: Sequence[AnswerRow]) -> AnswerRow | None:
    """Returns the shape and type that the answers of all batches share; None if the shape depends on the batch.

    rows: one per batch. Raises ValueError if the rows differ in dtype.
    """
    dtypes = sorted({str(row.dtype) for row in rows})
    if len(dtypes) > 1:
        raise ValueError(f"answers differ in type from batch to batch: {' and '.join(dtypes)}")
    return rows[0] if len(set(rows)) == 1 else None


def row_of(answers: Answers) -> AnswerRow:
    return AnswerRow(answers.shape[1:], answers.dtype)


def is_close(ours: Array, theirs: Array, tolerance: float) -> bool:
    """Returns whether floats differ only by rounding. Returns False for other types.

    tolerance: maximum difference, relative to each number or, for small numbers, to the median magnitude of `theirs`.
    """
    if ours.dtype.kind not in "fc" or ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return False
    # Infinite values are left out, because models mask scores with -Inf.
    sizes = np.abs(theirs[np.isfinite(theirs) & (theirs != 0)])
    usual = float(np.median(sizes)) if len(sizes) else 0.0
    return bool(np.allclose(ours, theirs, rtol=tolerance, atol=tolerance * usual))
