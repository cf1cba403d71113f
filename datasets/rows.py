"""Samples held in memory as rows of arrays, in the order LoadGen loaded them."""

from collections.abc import Mapping, Sequence

import numpy as np

from harness.types import Array, Batch


class LoadedRows:
    """index -> row. A run of rows that lie side by side is a view; anything else is one copy."""

    def __init__(self, total: int) -> None:
        """total: size of the dataset; indices lie in [0, total)."""
        self._position = np.full(total, -1, np.int64)
        self._item = memoryview(
            self._position.data
        )  # single look-ups: three times as fast as numpy's
        self._arrays: dict[str, Array] = {}
        self._only: tuple[str, Array] | None = None

    def hold(self, indices: Sequence[int], arrays: Mapping[str, Array]) -> None:
        """arrays: input name -> (len(indices), ...) rows in the order of `indices`.

        An index that comes twice (multi-stream's padding) keeps its first row.
        """
        self._position[:] = -1
        self._position[np.asarray(indices)[::-1]] = np.arange(len(indices))[::-1]
        self._arrays = dict(arrays)
        for array in self._arrays.values():
            array.setflags(write=False)  # batches are views: a backend must not change the data
        self._only = next(iter(self._arrays.items())) if len(self._arrays) == 1 else None

    def release(self) -> None:
        self._position[:] = -1
        self._arrays, self._only = {}, None

    def batch(self, indices: Sequence[int]) -> Batch:
        if len(indices) == 1:
            row = self._item[indices[0]]
            if row < 0:
                raise self._not_loaded(indices)
            if self._only is not None:  # streams of one-input models live here: no loop
                name, array = self._only
                return Batch(indices, {name: array[row : row + 1]})
            return Batch(indices, {k: v[row : row + 1] for k, v in self._arrays.items()})
        rows = self._position[np.asarray(indices)]
        first = int(rows[0])
        if rows.min() < 0:
            raise self._not_loaded(indices)
        if int(rows[-1]) - first == len(rows) - 1 and bool((np.diff(rows) == 1).all()):
            end = first + len(rows)
            return Batch(indices, {k: v[first:end] for k, v in self._arrays.items()})
        return Batch(indices, {k: v.take(rows, axis=0) for k, v in self._arrays.items()})

    def _not_loaded(self, indices: Sequence[int]) -> KeyError:
        missing = next(i for i in indices if self._position[i] < 0)
        return KeyError(f"sample {missing} is not loaded")
