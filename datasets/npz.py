"""NumPy archives: an array for each of the model's inputs, by its name, and `labels`."""

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from harness.datasets import numbers
from harness.datasets.rows import LoadedRows
from harness.datasets.sources import (
    check_steps,
    digest,
    one_file,
    refuse,
    shown_steps,
    unreadable,
)
from harness.errors import ConfigError
from harness.types import Array, Dataset, DatasetSetup

LABELS = "labels"


class NpzDataset(LoadedRows):
    """One .npz file. The first axis of every array is the sample; `labels` may be missing.

    Only the headers are read until samples or labels are asked for. A label of one number is an
    int or a float, a row of several is an array.
    """

    def __init__(self, setup: DatasetSetup) -> None:
        check_steps(setup, "npz", numbers.STEPS)
        self._setup = setup
        self._path = one_file(setup, "npz", ".npz")
        self._headers = read_headers(self._path)
        refuse([f"{self._path}: {p}" for p in self._problems()])
        self._labels: Array | None = None
        super().__init__(len(self))

    def _problems(self) -> list[str]:
        problems = []
        wanted = [i.name for i in self._setup.inputs]
        for spec in self._setup.inputs:
            shape, dtype = self._headers.get(spec.name, ((), np.dtype("O")))
            if spec.name not in self._headers:
                problems.append(
                    f"there is no array {spec.name!r}, only {', '.join(self._headers) or 'none'}"
                )
            elif dtype.kind not in "biuf":
                problems.append(f"array {spec.name!r} is {dtype}: only numbers can be an input")
            elif not shape or numbers.row_shape(shape[1:], spec) is None:
                problems.append(
                    f"array {spec.name!r} is {'x'.join(map(str, shape)) or 'one number'}, the input "
                    f"takes {numbers.shown_shape(spec)} a sample"
                )
        if LABELS in self._headers and self._headers[LABELS][1].kind not in "biufU":
            problems.append(f"array 'labels' is {self._headers[LABELS][1]}: store numbers or texts")
        lengths = {
            name: shape[0] if shape else 0
            for name, (shape, _) in self._headers.items()
            if name in (*wanted, LABELS)
        }
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{name} {length:,}" for name, length in lengths.items())
            problems.append(f"the arrays have different lengths ({told})")
        elif not problems and not max(lengths.values(), default=0):
            problems.append("it has no samples: nothing can be measured")
        return problems

    def __len__(self) -> int:
        return self._headers[self._setup.inputs[0].name][0][0]

    def load(self, indices: Sequence[int]) -> None:
        """A ConfigError where the file is damaged or a value does not fit the input's type."""
        chosen = np.asarray(indices)
        held = {}
        for spec in self._setup.inputs:
            rows = self._read(spec.name)[chosen]
            made = numbers.apply(rows, self._setup.steps.get(spec.name, ()))
            made, bad = numbers.cast(made, spec.dtype)
            if bad is not None:
                raise ConfigError(
                    f"{self._path}: array {spec.name!r}, row {int(chosen[bad])}: a value is not "
                    f"{spec.dtype}, as the input is"
                )
            shape = numbers.row_shape(rows.shape[1:], spec)
            assert shape is not None  # checked as the dataset was built
            held[spec.name] = np.ascontiguousarray(made.reshape(len(chosen), *shape))
        self.hold(indices, held)

    def label(self, index: int) -> object:
        if LABELS not in self._headers:
            return None
        if self._labels is None:
            self._labels = self._read(LABELS)
        label: object = self._labels[index]
        return label.item() if isinstance(label, np.generic) else label

    def _read(self, name: str) -> Array:
        try:
            with np.load(self._path, allow_pickle=False) as file:
                array: Array = file[name]
                return array
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as e:
            raise unreadable(self._path, e) from e

    def describe(self) -> Mapping[str, object]:
        return {
            "name": "npz",
            "count": len(self),
            "source": str(self._path),
            "label": LABELS if LABELS in self._headers else None,
            "steps": shown_steps(self._setup),
            "digest": digest({self._path.name: self._path}, self._setup),
        }


Header = tuple[tuple[int, ...], "np.dtype[np.generic]"]


def read_headers(path: Path) -> dict[str, Header]:
    """Array name -> (shape, element type), without reading the arrays."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [n for n in archive.namelist() if n.endswith(".npy")]
            return {name.removesuffix(".npy"): _header(archive, name) for name in names}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, NotImplementedError) as e:
        raise unreadable(path, e) from e


def _header(archive: zipfile.ZipFile, name: str) -> Header:
    with archive.open(name) as file:
        read = npy.read_array_header_1_0
        if npy.read_magic(file) != (1, 0):
            read = npy.read_array_header_2_0
        shape, _, dtype = read(file)
    return shape, dtype


_: type[Dataset] = NpzDataset
