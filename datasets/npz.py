"""Reads NumPy archives that contain one array per model input, under the input's name, and an array `labels`."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import prod

import numpy as np

from harness.datasets.parts import numbers
from harness.datasets.parts.archive import ArchivedArray, read_headers
from harness.datasets.parts.classes import class_names, numbered
from harness.datasets.parts.rows import LoadedRows
from harness.datasets.parts.sources import check_steps, digest, one_file, refuse, shown_steps
from harness.errors import ConfigError
from harness.types import Array, Dataset, DatasetSetup, TensorSpec

LABELS = "labels"

MEMORY_LIMIT_BYTES = 1 << 30
"""A run holds as many samples in memory as fit into this limit, unless --performance-count or the official rules set
the number of samples.
"""

BLOCK_BYTES = 16 << 20
"""Rows are converted in blocks of this size in bytes."""


class NpzDataset(LoadedRows):
    """An .npz file. The first axis of every array counts the samples; `labels` may be missing.

    Opening the dataset reads only the headers. Rows and labels are read later, and only for the requested samples (see
    datasets/parts/archive.py). A label with one number is an int if the number is whole; otherwise, it is a float. A
    label with several numbers is an array. Sorted strings are the classes 0, 1, ...
    """

    def __init__(self, setup: DatasetSetup) -> None:
        check_steps(setup, "npz", numbers.STEPS)
        self._setup = setup
        self._path = one_file(setup, "npz", ".npz")
        self._headers = read_headers(self._path)
        refuse([f"{self._path}: {p}" for p in self._problems()])
        self._archived = {
            name: ArchivedArray(self._path, name, header, setup.cache_dir, setup.progress)
            for name, header in self._headers.items()
        }
        super().__init__(self._headers[setup.inputs[0].name].shape[0])

    def _problems(self) -> list[str]:
        problems = []
        used = {LABELS, *(i.name for i in self._setup.inputs)}
        for spec in self._setup.inputs:
            if spec.name not in self._headers:
                have = f"only {', '.join(self._headers)}" if self._headers else "nor any other"
                problems.append(f"it has no array {spec.name!r}, {have}")
                continue
            shape, dtype, *_ = self._headers[spec.name]
            if dtype.kind not in "biuf":
                problems.append(f"array {spec.name!r} is {dtype}: only numbers can be an input")
            elif not shape or numbers.row_shape(shape[1:], spec) is None:
                problems.append(
                    f"array {spec.name!r} is {numbers.shown_shape(shape)}, but the input "
                    f"takes {numbers.shown_shape(spec.shape[1:])} per sample"
                )
        if LABELS in self._headers and self._headers[LABELS].dtype.kind not in "biufSU":
            problems.append(
                f"array 'labels' is {self._headers[LABELS].dtype}: store numbers or strings"
            )
        lengths = {
            name: header.shape[0] if header.shape else 0
            for name, header in self._headers.items()
            if name in used
        }
        if len(set(lengths.values())) > 1:
            each = ", ".join(f"{name} {length:,}" for name, length in lengths.items())
            problems.append(f"the arrays have different lengths ({each})")
        elif not problems and not max(lengths.values(), default=0):
            problems.append("it has no samples: nothing can be measured")
        return problems

    @property
    def performance_count(self) -> int:
        row_bytes = sum(
            prod(self._headers[spec.name].shape[1:]) * np.dtype(spec.dtype).itemsize
            for spec in self._setup.inputs
        )
        return max(1, min(len(self), MEMORY_LIMIT_BYTES // max(1, row_bytes)))

    def load(self, indices: Sequence[int]) -> None:
        """Loads samples. Raises a ConfigError if the file is damaged or a value does not fit the input's type."""
        chosen = np.asarray(indices)
        self.hold(indices, {spec.name: self._rows(spec, chosen) for spec in self._setup.inputs})

    def _rows(self, spec: TensorSpec, chosen: Array) -> Array:
        """Returns (n, ...) rows of an input. Converts blocks of rows, because the steps need float32 or float64."""
        shape = numbers.row_shape(self._headers[spec.name].shape[1:], spec)
        assert shape is not None  # `__init__` has checked the shape
        converted = np.empty((len(chosen), *shape), spec.dtype)
        block = max(1, BLOCK_BYTES // max(1, converted[:1].nbytes))
        steps = self._setup.steps.get(spec.name, ())
        for start in range(0, len(chosen), block):
            part = chosen[start : start + block]
            rows = self._archived[spec.name].rows(part)
            if (bad := numbers.not_finite(rows)) is not None:
                raise ConfigError(
                    f"{self._path}: array {spec.name!r}, row {int(part[bad])} has NaN or infinity: "
                    "replace them, or remove the row"
                )
            rows = numbers.apply(rows, steps)
            rows, bad = numbers.cast(rows, spec.dtype)
            if bad is not None:
                raise ConfigError(
                    f"{self._path}: array {spec.name!r}, row {int(part[bad])}: a value does not fit the "
                    f"input's type, {spec.dtype}"
                )
            converted[start : start + len(part)] = rows.reshape(len(part), *shape)
            self._setup.progress(start + len(part), len(chosen))
        return converted

    def label(self, index: int) -> object:
        if LABELS not in self._headers:
            return None
        if self._texts is not None:
            return self._texts[index]
        return numbers.plain_label(self._archived[LABELS].rows(np.array([index]))[0])

    @cached_property
    def _texts(self) -> list[object] | None:
        """Returns string labels with their class numbers; None if the labels are numbers, or rows of several strings."""
        header = self._headers[LABELS]
        if header.dtype.kind not in "SU" or prod(header.shape[1:]) != 1:
            return None
        rows = self._archived[LABELS].rows(np.arange(len(self))).reshape(-1)
        try:
            texts = [one if isinstance(one, str) else one.decode() for one in rows.tolist()]
        except UnicodeDecodeError as e:
            raise ConfigError(
                f"{self._path}: array 'labels' has bytes that are not UTF-8: store strings"
            ) from e
        return numbered(texts)

    def class_names(self) -> Mapping[int, str]:
        return class_names(self._texts or ()) if LABELS in self._headers else {}

    def describe(self) -> Mapping[str, object]:
        return {
            "name": "npz",
            "count": len(self),
            "source": str(self._path),
            "label": LABELS if LABELS in self._headers else None,
            "steps": shown_steps(self._setup),
            "digest": digest({self._path.name: self._path}, self._setup),
        }


_: type[Dataset] = NpzDataset
