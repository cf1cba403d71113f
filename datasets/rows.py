"""Samples held in memory as rows of arrays, in the order LoadGen loaded them."""

from collections.abc import Mapping, Sequence

import numpy as np

from harness.types import Array, Batch

FEW = 8
"""Samples up to which lists find the rows faster than numpy (8: 3.5 us against 4.5; 32: 6.2, 4.8)."""


class LoadedRows:
    """index -> row: the part of a dataset that LoadGen's queries meet.

    A run of rows that lie side by side is a view; anything else is one copy.
    """

    def __init__(self, total: int) -> None:
        """total: size of the dataset; indices lie in [0, total)."""
        self._position = np.full(total, -1, np.int64)
        self._item = memoryview(self._position.data)  # single items: three times numpy's speed
        self._arrays: dict[str, Array] = {}

    def hold(self, indices: Sequence[int], arrays: Mapping[str, Array]) -> None:
        """arrays: input name -> (len(indices), ...) rows in the order of `indices`.

        An index that comes twice (multi-stream's padding) keeps its first row.
        """
        self._position[:] = -1
        self._position[np.asarray(indices)[::-1]] = np.arange(len(indices))[::-1]
        self._arrays = dict(arrays)
        for array in self._arrays.values():
            array.setflags(write=False)  # batches are views: a backend must not change the data

    def unload(self, indices: Sequence[int]) -> None:
        """Everything: LoadGen holds one set of samples at a time."""
        self._position[:] = -1
        self._arrays = {}

    def batch(self, indices: Sequence[int]) -> Batch:
        if len(indices) == 1:
            first = self._item[indices[0]]
            end = first + 1
            if first < 0:
                raise self._not_loaded(indices)
        elif len(indices) <= FEW:
            places = [self._item[i] for i in indices]
            first, end = places[0], places[0] + len(places)
            if min(places) < 0:
                raise self._not_loaded(indices)
            if places != list(range(first, end)):
                return Batch(indices, {k: v.take(places, axis=0) for k, v in self._arrays.items()})
        else:
            rows = self._position[np.fromiter(indices, np.int64, len(indices))]
            first, end = int(rows[0]), int(rows[-1]) + 1
            if rows.min() < 0:
                raise self._not_loaded(indices)
            if end - first != len(rows) or not bool((np.diff(rows) == 1).all()):
                return Batch(indices, {k: v.take(rows, axis=0) for k, v in self._arrays.items()})
        inputs = {}
        for name, array in self._arrays.items():
            inputs[name] = array[first:end]
        return Batch(indices, inputs)

    def _not_loaded(self, indices: Sequence[int]) -> KeyError:
        missing = next(i for i in indices if self._position[i] < 0)
        return KeyError(f"sample {missing} is not loaded")
