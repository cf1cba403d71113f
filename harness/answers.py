"""What is told to LoadGen: one array of rows, or rows that differ in length."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from harness.types import Array


class AnswerRow(NamedTuple):
    """What every answer of a run is like. shape: the first entry is None where lengths differ."""

    shape: tuple[int | None, ...]
    dtype: np.dtype[Any]

    @property
    def least_bytes(self) -> int:
        """Of one answer; where lengths differ, of one of length 1."""
        return self.dtype.itemsize * math.prod(size or 1 for size in self.shape)


class Ragged:
    """n answers that differ in their first dimension, and in nothing else.

    shape: (n, None, ...) as an array of them would have it; dtype: of every row.
    A ValueError when rows differ in dtype, rank or trailing dimensions.
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
                    f"{rows[0].shape} and {row.dtype} of shape {row.shape}"
                )
        self.shape: tuple[int | None, ...] = (len(rows), None, *trailing)

    def __len__(self) -> int:
        return len(self.rows)


Answers = Array | Ragged


def row_of(answers: Answers) -> AnswerRow:
    """A ValueError for objects: LoadGen takes bytes, and theirs would be addresses."""
    if answers.dtype.hasobject:
        raise ValueError(f"answers must be numbers, these are {answers.dtype}")
    return AnswerRow(answers.shape[1:], answers.dtype)
