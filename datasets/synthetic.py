"""Seeded noise in the model's own input shapes: speed without data, never accuracy."""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from harness.datasets.rows import LoadedRows
from harness.errors import ConfigError
from harness.types import Array, Dataset, DatasetSetup, TensorSpec

COUNT = 1024
"""Samples; a run holds at most this many, fewer where they are large."""

MEMORY_LIMIT_BYTES = 256 << 20
_NAMED_SHAPE_HINT = "give its size with --input-shape"


class SyntheticDataset(LoadedRows):
    """Sample i is the same for the same seed, shapes and dtypes. No labels."""

    synthetic = True

    def __init__(self, setup: DatasetSetup) -> None:
        if not setup.inputs:
            raise ConfigError(
                "dataset 'synthetic' needs the model's inputs, which neither a manifest nor "
                "this backend tells: choose another --model or --dataset"
            )
        problems: list[str] = []
        unknown = set(setup.shapes) - {i.name for i in setup.inputs}
        if unknown:
            names = ", ".join(i.name for i in setup.inputs)
            problems.append(f"--input-shape {min(unknown)}: the model's inputs are {names}")
        self._specs = {i.name: i for i in setup.inputs}
        self._shapes = {i.name: _row_shape(i, setup, problems) for i in setup.inputs}
        if problems:
            raise ConfigError("\n".join(problems))
        self._seed = setup.seed
        row_bytes = sum(
            int(np.prod(shape)) * np.dtype(self._specs[name].dtype).itemsize
            for name, shape in self._shapes.items()
        )
        self.performance_count = max(1, min(COUNT, MEMORY_LIMIT_BYTES // max(row_bytes, 1)))
        super().__init__(COUNT)

    def __len__(self) -> int:
        return COUNT

    def load(self, indices: Sequence[int]) -> None:
        arrays = {name: self._draw(name, indices) for name in self._specs}
        self.hold(indices, arrays)

    def _draw(self, name: str, indices: Sequence[int]) -> Array:
        """(len(indices), ...): floats standard normal, integers 0 or 1, valid for most models."""
        dtype, shape = np.dtype(self._specs[name].dtype), self._shapes[name]
        rows = np.empty((len(indices), *shape), dtype)
        for i, index in enumerate(indices):
            random = np.random.default_rng([self._seed, index])
            if dtype.kind == "f":
                rows[i] = random.standard_normal(shape, np.float32)
            else:
                rows[i] = random.integers(0, 2, shape)
        return rows

    def label(self, index: int) -> None:
        return None

    def describe(self) -> Mapping[str, object]:
        what = repr((self._seed, sorted(self._shapes.items()), sorted(self._specs.items())))
        return {
            "name": "synthetic",
            "count": COUNT,
            "source": f"seeded noise, seed {self._seed}",
            "shapes": {name: list(shape) for name, shape in self._shapes.items()},
            "digest": hashlib.sha256(what.encode()).hexdigest(),
        }


def _row_shape(spec: TensorSpec, setup: DatasetSetup, problems: list[str]) -> tuple[int, ...]:
    """The shape of one sample: the model's own, with --input-shape where it is symbolic."""
    try:
        np.dtype(spec.dtype)
    except TypeError:
        problems.append(f"input {spec.name!r} is {spec.dtype}: no synthetic data of that type")
    given = setup.shapes.get(spec.name)
    if given is None:
        if all(isinstance(d, int) for d in spec.shape[1:]):
            return tuple(d for d in spec.shape[1:] if isinstance(d, int))
        example = "x".join(str(d) if isinstance(d, int) else "N" for d in spec.shape[1:])
        problems.append(
            f"input {spec.name!r} has the symbolic shape {_show(spec)}: "
            f"{_NAMED_SHAPE_HINT} {spec.name}=1x{example}"
        )
        return ()
    clashes = len(given) != len(spec.shape) or any(
        isinstance(want, int) and want != have
        for want, have in zip(spec.shape[1:], given[1:], strict=False)
    )
    if clashes:
        problems.append(
            f"--input-shape {spec.name}={'x'.join(map(str, given))} does not fit {_show(spec)}"
        )
    return given[1:]


def _show(spec: TensorSpec) -> str:
    return "x".join("?" if d is None else str(d) for d in spec.shape)


_: type[Dataset] = SyntheticDataset
