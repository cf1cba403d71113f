"""The base class for image datasets. The class decodes and preprocesses files in `load`, and caches rows for later
runs.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import numpy as np

from harness.core.console import program
from harness.core.extras import how_to_install
from harness.datasets.parts import numbers
from harness.datasets.parts.cache import RowCache
from harness.datasets.parts.image import decode, images
from harness.datasets.parts.image.images import ImageSteps
from harness.datasets.parts.listing import Sample, stamps_of
from harness.datasets.parts.parallel import BadSample, each
from harness.datasets.parts.rows import LoadedRows
from harness.datasets.parts.sources import (
    IN_MANIFEST,
    needs_inputs,
    refuse,
    shown,
    synthetic_options,
    unknown_inputs,
)
from harness.errors import MOST_PROBLEMS, ConfigError, say_once
from harness.types import Array, DatasetSetup, TensorSpec, show_shape

MEMORY_LIMIT_BYTES = 160 << 20
"""A run holds as many samples in memory as fit into this limit, unless --performance-count or the official rules set
the number of samples.
"""

MAX_FILE_BYTES = 4 * decode.MAX_PIXELS
ANY_IMAGE = TensorSpec("image", "uint8", (None,))


class ImageDataset(LoadedRows):
    """The base class for image datasets. Sample i is made from `samples[i]`, for every input with steps.

    The constructor reads the size and time of every file, but does not open the files.
    """

    name = "images"

    def __init__(self, folder: Path, samples: Sequence[Sample], setup: DatasetSetup) -> None:
        """Raises a ConfigError if there are no samples, or if files are missing (with one line per file)."""
        if not samples:
            raise ConfigError(
                f"dataset {self.name!r}: {folder} has no images: nothing can be measured"
            )
        problems = [*synthetic_options(setup, self.name, shapes={})]
        if setup.inputs:  # empty for `data check` without a model
            problems += unknown_inputs("--input-shape", setup.shapes, setup)
        refuse(problems)
        self._folder = folder
        self._samples = samples
        self._setup = setup
        bare = [spec.name for spec in setup.inputs if not setup.steps.get(spec.name)]
        if bare:
            raise ConfigError(
                f"dataset {self.name!r} has images, but no steps convert them to the input "
                f"{bare[0]!r}: declare its preprocessing steps (decode, resize, crop, normalise, "
                f"layout) {IN_MANIFEST}"
            )
        self._stamps = stamps_of(folder, samples)
        super().__init__(len(samples))

    def label(self, index: int) -> object:
        return self._samples[index].label

    @property
    def performance_count(self) -> int:
        self._check_inputs()
        return max(1, MEMORY_LIMIT_BYTES // self._row_bytes)

    def _check_inputs(self) -> None:
        if not self._setup.inputs:
            raise needs_inputs(self.name)

    def load(self, indices: Sequence[int]) -> None:
        """Reads rows from the cache. Preprocesses missing rows, and adds them to the cache."""
        self._check_inputs()
        arrays = [np.empty((len(indices), *s), d) for s, d in self._rows]
        cache, _ = self._cache
        checksums = np.full(len(self), -1)
        if cache is not None:
            checksums = cache.checksums(self._stamps)
            cache.need(int((checksums[np.unique(np.asarray(indices))] < 0).sum()))

        def fill(position: int) -> None:
            index = indices[position]
            row = [array[position] for array in arrays]
            if cache and checksums[index] >= 0 and cache.read(index, checksums[index], row):
                return
            for part, values in zip(row, self._sample(index), strict=True):
                part[...] = values
            if cache:
                cache.write(index, self._stamps[index], row)

        bad = each(fill, len(indices), self._setup.progress, enough=MOST_PROBLEMS)
        if bad:
            lines = list(say_once(bad[:MOST_PROBLEMS]))
            if len(bad) > 1:
                lines.append(f"{program()} data check {self.name} lists all of them")
            raise ConfigError("\n".join(lines))
        self.hold(indices, dict(zip(self._steps, arrays, strict=True)))

    def faults(self) -> Iterator[str]:
        """Yields a line for every file that cannot become the input, or for which libjpeg prints a warning.

        Caches no rows, and keeps no rows in memory.
        """
        can_see = decode.can_see_damage()

        def look(index: int) -> None:
            self._sample(index)
            if can_see and (damage := decode.damage(self._content(index))):
                raise BadSample(f"{self._path(index)}: {damage}")

        yield from each(look, len(self), self._setup.progress)

    def describe(self) -> Mapping[str, object]:
        """Describes the dataset. digest: SHA-256 of the files' names and sizes, of the labels and of the steps."""
        steps = {name: shown(self._setup.steps.get(name, ())) for name in self._steps}
        listing = [
            (s.file, int(size), s.label)
            for s, size in zip(self._samples, self._stamps[:, 0], strict=True)
        ]
        about = json.dumps([listing, steps], sort_keys=True)
        return {
            "name": self.name,
            "count": len(self),
            "source": str(self._folder),
            "digest": hashlib.sha256(about.encode()).hexdigest(),
            "steps": steps,
            "versions": self._versions,
            "exif_orientation": "ignored",
            "cache": self._cache[1],
            "notes": self._notes(),
        }

    def _notes(self) -> list[str]:
        if decode.can_see_damage():
            return []
        return [f"only simplejpeg reports damaged JPEGs: {how_to_install('images')}"]

    @cached_property
    def _steps(self) -> dict[str, ImageSteps]:
        """The steps of each input. The steps are created when they are first used, because importing TensorFlow takes
        ten seconds.
        """
        specs = self._setup.inputs or (ANY_IMAGE,)
        return {s.name: ImageSteps(s, self._setup.steps.get(s.name, ())) for s in specs}

    @property
    def _versions(self) -> dict[str, str]:
        return {k: v for steps in self._steps.values() for k, v in steps.versions.items()}

    @cached_property
    def _rows(self) -> list[tuple[tuple[int, ...], "np.dtype[np.generic]"]]:
        """Shape and type of each input's row. The first image determines any size that the model leaves open."""
        example: list[Array] = []
        rows = []
        for i, spec in enumerate(self._setup.inputs):
            shape = self._setup.shapes.get(spec.name, spec.shape)[1:]
            if not all(isinstance(size, int) for size in shape):
                example = example or self._first_good()
                shape = example[i].shape
            rows.append((tuple(int(size or 0) for size in shape), np.dtype(spec.dtype)))
        return rows

    def _first_good(self) -> list[Array]:
        for index in range(len(self) - 1):
            with suppress(BadSample):
                return self._preprocessed(index)
        return self._preprocessed(len(self) - 1)

    @property
    def _row_bytes(self) -> int:
        return sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in self._rows)

    @property
    def _looked_at(self) -> object:
        """Data with which each image was compared before its row was cached, as JSON content; None if the dataset does
        not compare images.
        """
        return None

    @cached_property
    def _cache(self) -> tuple[RowCache | None, str]:
        """The cache and its folder, or None and the reason why the dataset has no cache.

        The name of the folder is a digest of everything that can change a row.
        """
        if self._setup.cache_dir is None or not self._setup.inputs:
            return None, "none"
        code = b"".join(Path(m.__file__ or "").read_bytes() for m in (decode, images, numbers))
        depends: list[object] = [
            str(self._folder.resolve()),
            [s.file for s in self._samples],
            [(shape, dtype.name) for shape, dtype in self._rows],
            {name: shown(self._setup.steps[name]) for name in self._steps},
            self._versions,
            hashlib.sha256(code).hexdigest(),
        ]
        if self._looked_at is not None:
            depends.append(self._looked_at)
        key = hashlib.sha256(json.dumps(depends, sort_keys=True).encode()).hexdigest()
        folder = self._setup.cache_dir / "images" / key[:32]
        try:
            return RowCache(folder, len(self), self._row_bytes), str(folder)
        except OSError as e:
            return None, f"none: {folder} cannot be written: {e.strerror}"

    def _sample(self, index: int) -> list[Array]:
        """Returns the rows of one sample. Raises a BadSample that names the file."""
        rows = self._preprocessed(index)
        for (shape, _), row, name in zip(self._rows, rows, self._steps, strict=False):
            if row.shape != shape:
                raise BadSample(
                    f"{self._path(index)}: after its steps the image is {show_shape(row.shape)}, but the "
                    f"input {name!r} takes {show_shape(shape)}: see resize, crop and layout"
                )
        return rows

    def _preprocessed(self, index: int) -> list[Array]:
        data = self._content(index)
        try:
            return [steps(data) for steps in self._steps.values()]
        except ValueError as e:
            raise BadSample(f"{self._path(index)}: {e}") from e

    def _content(self, index: int) -> bytes:
        path = self._path(index)
        try:
            with path.open("rb", buffering=0) as f:
                now = os.fstat(f.fileno())
                if now.st_size > MAX_FILE_BYTES:
                    raise BadSample(f"{path}: the file is larger than any image that is accepted")
                data = f.read(now.st_size)
        except OSError as e:
            raise BadSample(f"{path} cannot be read: {e.strerror}") from e
        if (now.st_size, now.st_ctime_ns) != tuple(self._stamps[index].tolist()):
            raise BadSample(
                f"{path} has changed since the run began: run again, and do not change it"
            )
        return data

    def _path(self, index: int) -> Path:
        return self._folder / self._samples[index].file
