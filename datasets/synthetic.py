"""Generates noise from a seed in the shapes of the model's inputs, to measure speed without data. The noise cannot
measure accuracy.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from harness.core.config.parse import example_shape
from harness.datasets.parts.lengths import draw, summary
from harness.datasets.parts.ranges import FLAG, described, drawn_numbers, ranges_of
from harness.datasets.parts.rows import LoadedRows, RaggedRows
from harness.datasets.parts.sources import needs_inputs, refuse_data_dir, unknown_inputs
from harness.errors import refuse
from harness.types import Array, Batch, Dataset, DatasetSetup, TensorSpec, show_shape

COUNT = 1024
"""Number of samples in the dataset. A run holds all samples in memory, or fewer if the samples are large."""

MEMORY_LIMIT_BYTES = 256 << 20

Shape = tuple[int | str, ...]
"""Shape of one sample. A name stands for a dimension whose length differs between samples."""


class SyntheticDataset:
    """Noise without labels. Sample i depends only on the seed, shapes, lengths and dtypes.

    --input-shape for one input sets the sizes of its named dimensions in every input. With --lengths for a symbolic
    dimension, each sample has one length for all inputs, and a batch is padded with zeros to its longest sample. An
    input with `mask` in its name is 1 except in the padding. Integers select rows of the model's tables. Without a
    table, integers are 0 or 1. --input-range sets other ranges.
    """

    synthetic = True
    batch: Callable[[Sequence[int]], Batch]

    def __init__(self, setup: DatasetSetup) -> None:
        refuse_data_dir(setup, "synthetic")
        if not setup.inputs:
            raise needs_inputs("synthetic")
        sizes, problems = _sizes_by_name(setup)
        problems += _unknown_names(setup, sizes)
        missing: set[str] = set()
        self._specs = {i.name: i for i in setup.inputs}
        self._shapes = {
            i.name: _row_shape(i, setup, sizes, missing, problems) for i in setup.inputs
        }
        padded = {
            name for name, row in self._shapes.items() if any(isinstance(d, str) for d in row)
        }
        self._ranges = ranges_of(setup, padded, problems)
        refuse(problems)
        self._setup = setup
        self._lengths = {
            name: draw(source, COUNT, setup.seed, name) for name, source in setup.lengths.items()
        }
        longest = {name: int(drawn.max()) for name, drawn in self._lengths.items()}
        row_bytes = sum(
            int(np.prod(_sized(shape, longest))) * np.dtype(self._specs[name].dtype).itemsize
            for name, shape in self._shapes.items()
        )
        self.performance_count = max(1, min(COUNT, MEMORY_LIMIT_BYTES // max(row_bytes, 1)))
        self._equal, self._ragged = LoadedRows(COUNT), RaggedRows(COUNT)
        self.batch = self._ragged.batch if self._lengths else self._equal.batch
        if not self._lengths:
            self.batch_into = self._equal.batch_into

    def __len__(self) -> int:
        return COUNT

    def load(self, indices: Sequence[int]) -> None:
        if self._lengths:
            rows = {name: [self._draw(name, i) for i in indices] for name in self._specs}
            self._ragged.hold(indices, rows)
        else:
            self._equal.hold(indices, {name: self._stacked(name, indices) for name in self._specs})

    def _stacked(self, name: str, indices: Sequence[int]) -> Array:
        """Returns (len(indices), ...) samples, all of the same shape."""
        rows = np.empty((len(indices), *_sized(self._shapes[name], {})), self._specs[name].dtype)
        for row, index in enumerate(indices):
            rows[row] = self._draw(name, index)
        return rows

    def unload(self, indices: Sequence[int]) -> None:
        self._ragged.unload(indices)
        self._equal.unload(indices)

    def lengths(self, indices: Sequence[int]) -> Array | None:
        return self._ragged.lengths(indices) if self._lengths else None

    def _draw(self, name: str, index: int) -> Array:
        """Draws one sample. Floats without a range follow the standard normal distribution; all other numbers lie in
        the input's range.
        """
        dtype, declared = np.dtype(self._specs[name].dtype), self._shapes[name]
        shape = _sized(declared, {d: int(drawn[index]) for d, drawn in self._lengths.items()})
        random = np.random.default_rng([self._setup.seed, index])
        if name not in self._ranges:
            return np.asarray(random.standard_normal(shape, np.float32), dtype)
        return drawn_numbers(random, self._ranges[name].interval, shape, dtype)

    def label(self, index: int) -> None:
        return None

    def describe(self) -> Mapping[str, object]:
        # The digest covers names, types and resolved shapes, but not the specifications, because frameworks write the
        # batch and open sizes differently.
        specs = sorted((name, spec.dtype, self._shapes[name]) for name, spec in self._specs.items())
        content: tuple[object, ...] = (self._setup.seed, specs)
        if self._lengths:
            content += (sorted((name, drawn.tolist()) for name, drawn in self._lengths.items()),)
        if self._ranges:
            content += (sorted((name, *one.interval) for name, one in self._ranges.items()),)
        about = {
            name: summary(source, self._lengths[name])
            for name, source in self._setup.lengths.items()
        }
        unknown = sorted(name for name, one in self._ranges.items() if one.is_default)
        return {
            "name": "synthetic",
            **({"zero_or_one": unknown} if unknown else {}),
            "count": COUNT,
            "source": f"seeded noise, seed {self._setup.seed}",
            "shapes": {name: list(shape) for name, shape in self._shapes.items()},
            **({"lengths": about} if about else {}),
            **({"ranges": described(self._ranges)} if self._ranges else {}),
            "digest": hashlib.sha256(repr(content).encode()).hexdigest(),
        }


def _sized(shape: Shape, lengths: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(d if isinstance(d, int) else lengths[d] for d in shape)


def _sizes_by_name(setup: DatasetSetup) -> tuple[dict[str, int], list[str]]:
    """Returns the sizes that --input-shape sets, by dimension name, and a problem if two sizes differ.

    If the name of the batch also appears in other dimensions, the name is only an exporter's placeholder and sets no
    sizes.
    """
    first: dict[str, tuple[int, str]] = {}
    problems = []
    for spec in setup.inputs:
        pairs = zip(spec.shape[1:], setup.shapes.get(spec.name, ())[1:], strict=False)
        for name, size in pairs:
            if isinstance(name, str) and name != spec.shape[0]:
                before, where = first.setdefault(name, (size, spec.name))
                if before != size:
                    problems.append(
                        f"--input-shape: {name} is {before} in {where} and {size} in {spec.name}: "
                        "dimensions with the same name must have the same size"
                    )
    return {name: size for name, (size, _) in first.items()}, problems


def _unknown_names(setup: DatasetSetup, sizes: Mapping[str, int]) -> Iterator[str]:
    """Yields a problem for each name that occurs in an option but not in the model."""
    yield from unknown_inputs("--input-shape", setup.shapes, setup)
    yield from unknown_inputs(FLAG, setup.ranges, setup)
    symbolic = {
        d: None for i in setup.inputs for d in i.shape[1:] if isinstance(d, str) and d not in sizes
    }
    for name in sorted(set(setup.lengths) - set(symbolic)):
        have = ", ".join(symbolic) or "none"
        yield f"--lengths {name}: the model's symbolic dimensions without --input-shape are {have}"


def _row_shape(
    spec: TensorSpec,
    setup: DatasetSetup,
    sizes: Mapping[str, int],
    missing: set[str],
    problems: list[str],
) -> Shape:
    """Returns the shape of one sample, which is the model's shape with the user's sizes for symbolic dimensions.

    missing: receives the named dimensions without a size, so that each is reported only once.
    """
    try:
        np.dtype(spec.dtype)
    except TypeError:
        problems.append(
            f"input {spec.name!r} is {spec.dtype}, a type without synthetic data: pass "
            "--dataset FILE.py:CLASS, which returns strings as an array of objects"
        )
    shape = setup.shapes.get(spec.name)
    if shape is None:
        row = [sizes.get(d, d) if isinstance(d, str) else d for d in spec.shape[1:]]
        unknown = {d for d in row if not isinstance(d, int) and d not in setup.lengths}
        if unknown - missing:
            later = (1 if _is_batch_elsewhere(spec, size, setup) else size for size in row)
            example = example_shape(spec._replace(shape=(spec.shape[0], *later)))
            problems.append(
                f"input {spec.name!r} has the symbolic shape {show_shape(spec.shape)}"
                f"{_batch_note(spec)}: set its sizes, e.g. {example}"
            )
        missing.update(d for d in unknown if d is not None)
        return tuple(d for d in row if d is not None)
    clashes = len(shape) != len(spec.shape) or any(
        isinstance(want, int) and want != have
        for want, have in zip(spec.shape[1:], shape[1:], strict=False)
    )
    if clashes:
        given = "x".join(map(str, shape))
        lacks_batch = len(shape) + 1 == len(spec.shape)
        problems.append(
            f"--input-shape {spec.name}={given} does not fit {show_shape(spec.shape)}"
            + (f": the batch is its first size, e.g. {spec.name}=1x{given}" if lacks_batch else "")
        )
    return shape[1:]


def _is_batch_elsewhere(spec: TensorSpec, size: int | str | None, setup: DatasetSetup) -> bool:
    """Returns whether an open size of this input is the batch size of other inputs. The batch of a state, for example,
    may be on a later axis.
    """
    first = [one.shape[0] for one in setup.inputs if one.name != spec.name]
    has_it = size in first and (size is not None or len(spec.shape) > 2)
    return isinstance(spec.shape[0], int) and has_it


def _batch_note(spec: TensorSpec) -> str:
    """Returns a note if a fixed first dimension precedes open sizes, because another dimension may be the batch."""
    batch = spec.shape[0]
    return f", whose first dimension, {batch}, must be the batch" if isinstance(batch, int) else ""


_: type[Dataset] = SyntheticDataset
