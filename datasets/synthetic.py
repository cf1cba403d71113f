"""Generates seeded noise in the model's input shapes: speed without data, never accuracy."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from harness.datasets.parts.lengths import draw, summary
from harness.datasets.parts.rows import LoadedRows, RaggedRows
from harness.datasets.parts.sources import needs_inputs, refuse_data_dir
from harness.errors import ConfigError
from harness.types import Array, Batch, Dataset, DatasetSetup, TensorSpec

COUNT = 1024
"""Samples; a run holds at most this many, fewer where they are large."""

MEMORY_LIMIT_BYTES = 256 << 20
_NAMED_SHAPE_HINT = "give its size with --input-shape"

Shape = tuple[int | str, ...]
"""Of one sample; a name stands for a dimension whose length differs from sample to sample."""


class SyntheticDataset:
    """Sample i is the same for the same seed, shapes, lengths and dtypes. No labels.

    With --lengths for a symbolic dimension each sample has a length of its own, the same in all inputs,
    and a batch is padded with zeros to its longest sample. An input with `mask` in its name is 1 except
    in the padding.
    """

    synthetic = True
    batch: Callable[[Sequence[int]], Batch]

    def __init__(self, setup: DatasetSetup) -> None:
        refuse_data_dir(setup, "synthetic")
        if not setup.inputs:
            raise needs_inputs("synthetic")
        problems = list(_unknown_names(setup))
        self._specs = {i.name: i for i in setup.inputs}
        self._shapes = {i.name: _row_shape(i, setup, problems) for i in setup.inputs}
        if problems:
            raise ConfigError("\n".join(problems))
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

    def __len__(self) -> int:
        return COUNT

    def load(self, indices: Sequence[int]) -> None:
        if self._lengths:
            rows = {name: [self._draw(name, i) for i in indices] for name in self._specs}
            self._ragged.hold(indices, rows)
        else:
            self._equal.hold(indices, {name: self._stacked(name, indices) for name in self._specs})

    def _stacked(self, name: str, indices: Sequence[int]) -> Array:
        """(len(indices), ...) samples of one shape."""
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
        """One sample: floats standard normal, integers 0 or 1, valid for most models."""
        dtype, declared = np.dtype(self._specs[name].dtype), self._shapes[name]
        shape = _sized(declared, {d: int(drawn[index]) for d, drawn in self._lengths.items()})
        random = np.random.default_rng([self._setup.seed, index])
        if dtype.kind == "f":
            return np.asarray(random.standard_normal(shape, np.float32), dtype)
        if shape != declared and "mask" in name.lower():
            return np.ones(shape, dtype)
        return np.asarray(random.integers(0, 2, shape), dtype)

    def label(self, index: int) -> None:
        return None

    def describe(self) -> Mapping[str, object]:
        # Not the specifications themselves: frameworks write batch and open sizes in their own ways.
        specs = sorted((name, spec.dtype, self._shapes[name]) for name, spec in self._specs.items())
        content: tuple[object, ...] = (self._setup.seed, specs)
        if self._lengths:
            content += (sorted((name, drawn.tolist()) for name, drawn in self._lengths.items()),)
        about = {
            name: summary(source, self._lengths[name])
            for name, source in self._setup.lengths.items()
        }
        integers = sorted(name for name, i in self._specs.items() if np.dtype(i.dtype).kind != "f")
        return {
            "name": "synthetic",
            **({"zero_or_one": integers} if integers else {}),
            "count": COUNT,
            "source": f"seeded noise, seed {self._setup.seed}",
            "shapes": {name: list(shape) for name, shape in self._shapes.items()},
            **({"lengths": about} if about else {}),
            "digest": hashlib.sha256(repr(content).encode()).hexdigest(),
        }


def _sized(shape: Shape, lengths: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(d if isinstance(d, int) else lengths[d] for d in shape)


def _unknown_names(setup: DatasetSetup) -> Iterator[str]:
    """Yields a problem for each name in --input-shape and --lengths that the model does not have."""
    names = [i.name for i in setup.inputs]
    unknown = set(setup.shapes) - set(names)
    if unknown:
        yield f"--input-shape {min(unknown)}: the model's inputs are {', '.join(names)}"
    symbolic = {
        d: None
        for i in setup.inputs
        for d in i.shape[1:]
        if isinstance(d, str) and i.name not in setup.shapes
    }
    for name in sorted(set(setup.lengths) - set(symbolic)):
        have = ", ".join(symbolic) or "none"
        yield f"--lengths {name}: the model's symbolic dimensions without --input-shape are {have}"


def _row_shape(spec: TensorSpec, setup: DatasetSetup, problems: list[str]) -> Shape:
    """The shape of one sample: the model's own, with --input-shape where it is symbolic."""
    try:
        np.dtype(spec.dtype)
    except TypeError:
        problems.append(
            f"input {spec.name!r} is {spec.dtype}: there is no synthetic data of that type: write a "
            "dataset of your own, with texts as an array of objects: --dataset FILE.py:CLASS"
        )
    shape = setup.shapes.get(spec.name)
    if shape is None:
        known = tuple(d for d in spec.shape[1:] if isinstance(d, int) or d in setup.lengths)
        if len(known) == len(spec.shape) - 1:
            return tuple(d for d in known if d is not None)
        example = "x".join(str(d) if isinstance(d, int) else "N" for d in spec.shape[1:])
        problems.append(
            f"input {spec.name!r} has the symbolic shape {_show(spec)}: "
            f"{_NAMED_SHAPE_HINT} {spec.name}=1x{example}"
        )
        return ()
    clashes = len(shape) != len(spec.shape) or any(
        isinstance(want, int) and want != have
        for want, have in zip(spec.shape[1:], shape[1:], strict=False)
    )
    if clashes:
        problems.append(
            f"--input-shape {spec.name}={'x'.join(map(str, shape))} does not fit {_show(spec)}"
        )
    return shape[1:]


def _show(spec: TensorSpec) -> str:
    return "x".join("?" if d is None else str(d) for d in spec.shape)


_: type[Dataset] = SyntheticDataset
