"""Holds samples in memory as rows of arrays, in the order in which LoadGen loaded them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from harness.errors import ConfigError
from harness.types import Array, Batch, Take, show_shape

FEW = 8
"""Up to this batch size, lists are faster than NumPy. With 8 samples, lists take 3.5 us and NumPy takes 4.5 us; with 32
samples, lists take 6.2 us and NumPy takes 4.8 us.
"""


class LoadedRows:
    """Holds the loaded samples and gathers batches of them.

    A batch of adjacent rows is a view; any other batch is one copy.
    """

    def __init__(self, total: int) -> None:
        """total: size of the dataset. Indices lie in [0, total)."""
        self._position = np.full(total, -1, np.int64)
        # A memoryview returns items three times as fast as NumPy.
        self._item = memoryview(self._position.data)
        self._arrays: dict[str, Array] = {}
        self._order: list[int] = []

    def __len__(self) -> int:
        return len(self._position)

    def hold(self, indices: Sequence[int], arrays: Mapping[str, Array]) -> None:
        """Holds samples. arrays: maps an input name to (len(indices), ...) rows in the order of `indices`.

        If an index is repeated, as in MultiStream's padding, its first row is kept.
        """
        self._position[:] = -1
        self._position[np.asarray(indices, np.int64)[::-1]] = np.arange(len(indices))[::-1]
        self._arrays, self._order = dict(arrays), list(indices)
        for array in self._arrays.values():
            # Batches are views, so a backend could otherwise change the data.
            array.setflags(write=False)

    def hold_objects(self, indices: Sequence[int], name: str, objects: Iterable[object]) -> None:
        """Holds one object per index, e.g. a request, for the input `name`."""
        self.hold(indices, {name: np.fromiter(objects, object, len(indices))})

    def unload(self, indices: Sequence[int]) -> None:
        """Drops all samples, because LoadGen holds only one set at a time."""
        self._position[:] = -1
        self._arrays, self._order = {}, []

    def batch(self, indices: Sequence[int]) -> Batch:
        rows = self._places(indices)
        inputs = {}
        if type(rows) is slice:
            for name, array in self._arrays.items():
                inputs[name] = array[rows]
        else:
            for name, array in self._arrays.items():
                inputs[name] = array.take(rows, axis=0)
        return Batch(len(indices), inputs)

    def batch_into(self, indices: Sequence[int], into: Mapping[str, Array], take: Take) -> Batch:
        """Writes a batch to the arrays in `into`. New arrays would cause page faults, which take twice as long as the
        copy.
        """
        rows = self._places(indices)
        if type(rows) is slice or any(
            (into[name].dtype, into[name].shape[1:]) != (array.dtype, array.shape[1:])
            for name, array in self._arrays.items()
        ):
            return self.batch(indices)
        for name, array in self._arrays.items():
            take(array, rows, into[name])
        return Batch(len(indices), {name: into[name] for name in self._arrays})

    def _places(self, indices: Sequence[int]) -> slice | list[int] | Array:
        """Returns the positions of the samples. Returns a slice if the samples are adjacent."""
        count = len(indices)
        if count == 1:
            first = self._item[indices[0]]
            if first < 0:
                raise self._not_loaded(indices)
            return slice(first, first + 1)
        # Adjacent rows are tried first, because Offline issues samples in the order in which they were loaded, and
        # comparing two lists is ten times as fast as looking up rows.
        first = self._item[indices[0]]
        end = first + count
        if first >= 0 and isinstance(indices, list) and indices == self._order[first:end]:
            return slice(first, end)
        if count <= FEW:
            places = [self._item[i] for i in indices]
            if min(places) < 0:
                raise self._not_loaded(indices)
            end = places[0] + count
            return slice(places[0], end) if places == list(range(places[0], end)) else places
        rows = self._position[np.fromiter(indices, np.int64, count)]
        if rows.min() < 0:
            raise self._not_loaded(indices)
        first, end = int(rows[0]), int(rows[-1]) + 1
        return slice(first, end) if end - first == count and (np.diff(rows) == 1).all() else rows

    def _not_loaded(self, indices: Sequence[int]) -> KeyError:
        missing = next(i for i in indices if self._position[i] < 0)
        return KeyError(f"sample {missing} is not loaded")


class RaggedRows:
    """Holds rows of different shapes. A batch is one copy, padded with zeros to its longest row.

    A batch with a single row is a view. With pad=False, for data that padding would change, such as volumes, a batch of
    rows with different shapes raises a ConfigError.
    """

    def __init__(self, total: int, *, pad: bool = True) -> None:
        """total: size of the dataset. Indices lie in [0, total). pad: whether rows in a batch may be padded."""
        self._position = [-1] * total
        self._pad = pad
        self._rows: dict[str, list[_RaggedRow]] = {}

    def hold(self, indices: Sequence[int], rows: Mapping[str, Sequence[Array]]) -> None:
        """Holds samples. rows: maps an input name to one array per index, without the axis of the batch.

        If an index is repeated, as in MultiStream's padding, its first row is kept.
        """
        self.unload(indices)
        for position in reversed(range(len(indices))):
            self._position[indices[position]] = position
        self._rows = {name: [_RaggedRow.of(row) for row in held] for name, held in rows.items()}

    def unload(self, indices: Sequence[int]) -> None:
        """Drops all samples, because LoadGen holds only one set at a time."""
        self._position = [-1] * len(self._position)
        self._rows = {}

    def batch(self, indices: Sequence[int]) -> Batch:
        positions = [self._position[i] for i in indices]
        if min(positions) < 0:
            missing = indices[positions.index(-1)]
            raise KeyError(f"sample {missing} is not loaded")
        if len(positions) == 1:
            (first,) = positions
            return Batch(
                len(indices), {name: rows[first].alone for name, rows in self._rows.items()}
            )
        return Batch(
            len(indices),
            {name: self._gather([rows[p] for p in positions]) for name, rows in self._rows.items()},
        )

    def lengths(self, indices: Sequence[int]) -> Array:
        """Returns the (n,) numbers of elements per sample, summed over all inputs."""
        sizes: Array = np.sum([[r.data.size for r in rows] for rows in self._rows.values()], axis=0)
        return np.take(sizes, [self._position[i] for i in indices])

    def _gather(self, rows: Sequence["_RaggedRow"]) -> Array:
        shapes = {row.shape for row in rows}
        if len(shapes) == 1:
            return np.concatenate([row.alone for row in rows])
        if not self._pad:
            two = " and ".join(show_shape(shape) for shape in sorted(shapes)[:2])
            raise ConfigError(
                f"samples of the shapes {two} cannot form one batch: run with --max-batch 1"
            )
        gathered = np.zeros((len(rows), *map(max, *shapes)), rows[0].data.dtype)
        for target, row in zip(gathered, rows, strict=True):
            target[row.corner] = row.data
        return gathered


class _RaggedRow(NamedTuple):
    """One sample of a ragged dataset."""

    data: Array
    alone: Array
    """The sample as a batch with one row, which is a view."""
    shape: tuple[int, ...]
    corner: tuple[slice, ...]
    """Position of the sample within a larger, padded sample."""

    @classmethod
    def of(cls, data: Array) -> "_RaggedRow":
        # Batches are views, so a backend could otherwise change the data.
        data.setflags(write=False)
        return cls(data, data[np.newaxis], data.shape, tuple(slice(n) for n in data.shape))
