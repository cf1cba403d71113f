"""Reads volumes in KiTS19's layout: one folder per case, with an image and its segmentation as .npy files. The scans
must already be preprocessed (resampled to 1.6 x 1.2 x 1.2 mm and padded) with MLPerf's preprocess.py, because the
harness does not preprocess scans. The script writes pickles, which run code when they are read, so users must first
convert the files to .npy.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from harness.datasets.parts import numbers, sources
from harness.datasets.parts.rows import RaggedRows
from harness.errors import ConfigError
from harness.types import Array, Dataset, DatasetSetup, TensorSpec, show_shape

IMAGE, SEGMENTATION = "imaging.npy", "segmentation.npy"
MEMORY_LIMIT_BYTES = 4 << 30
"""A run holds as many volumes in memory as fit into this limit. A KiTS19 volume takes 100 to 600 MB."""


class Case(NamedTuple):
    name: str
    image: Path
    segmentation: Path | None
    shape: tuple[int, ...]
    bytes: int
    """Size in bytes of the image after conversion to the input's type."""


class KitsDataset(RaggedRows):
    """Volumes in <case>/imaging.npy and <case>/segmentation.npy, (depth, height, width) or with channels first.

    Cases with different shapes are processed one at a time, because padding would change the volumes. The label is the
    memory-mapped segmentation.
    """

    def __init__(self, setup: DatasetSetup) -> None:
        sources.check_steps(setup, "kits", numbers.STEPS)
        if len(setup.inputs) != 1:
            raise ConfigError(
                "dataset 'kits' has one image per case, but the model has several inputs"
            )
        self._setup, self._spec = setup, setup.inputs[0]
        self._root = sources.given_folder(setup, "kits", f"folders <case> with {IMAGE}")
        self._cases = read_cases(self._root, self._spec)
        largest = max(case.bytes for case in self._cases)
        self.performance_count = max(1, min(len(self._cases), MEMORY_LIMIT_BYTES // largest))
        super().__init__(len(self._cases), pad=False)

    def __len__(self) -> int:
        return len(self._cases)

    def load(self, indices: Sequence[int]) -> None:
        """Loads samples. Raises a ConfigError if a file is damaged or a value does not fit the input's type."""
        cases = {i: self._volume(self._cases[i]) for i in dict.fromkeys(indices)}
        self.hold(indices, {self._spec.name: [cases[i] for i in indices]})

    def _volume(self, case: Case) -> Array:
        steps = self._setup.steps.get(self._spec.name, ())
        volume = numbers.apply(np.asarray(_mapped(case.image)), steps)
        volume, bad = numbers.cast(volume, self._spec.dtype)
        if bad is not None:
            raise ConfigError(
                f"{case.image}: a value does not fit the input's type, {self._spec.dtype}"
            )
        return np.array(volume.reshape(case.shape), order="C")

    def label(self, index: int) -> Array | None:
        path = self._cases[index].segmentation
        return None if path is None else _mapped(path)

    def describe(self) -> Mapping[str, object]:
        files = {f"{c.name}/{IMAGE}": c.image for c in self._cases}
        files |= {f"{c.name}/{SEGMENTATION}": c.segmentation for c in self._cases if c.segmentation}
        return {
            "name": "kits",
            "count": len(self),
            "source": str(self._root),
            "shapes": sorted({"x".join(map(str, c.shape)) for c in self._cases}),
            "steps": sources.shown_steps(self._setup),
            "digest": sources.digest(files, self._setup),
        }


def read_cases(root: Path, spec: TensorSpec) -> list[Case]:
    """Reads the files' headers and returns the cases, sorted by name. Raises a ConfigError that lists all problems."""
    problems = list(_foreign(root))
    cases = []
    raw = {path.parent for path in root.glob("*/imaging.nii*")}
    for folder in sorted(p for p in root.iterdir() if p.is_dir()):
        if folder in raw and not (folder / IMAGE).exists():
            continue
        try:
            cases.append(_case(folder, spec))
        except ConfigError as e:
            problems.append(str(e))
    unlabelled = [c.name for c in cases if c.segmentation is None]
    if 0 < len(unlabelled) < len(cases):
        problems += [
            f"{root / name} has no {SEGMENTATION}, but other cases do" for name in unlabelled
        ]
    if not cases and not problems:
        problems.append(f"{root} has no folders with {IMAGE}: nothing can be measured")
    sources.refuse(problems)
    return cases


def _foreign(root: Path) -> Iterator[str]:
    """Yields a problem for each file of volumes in an unsupported format."""
    for path in sorted(root.glob("*.pkl")) + sorted(root.glob("*/*.pkl")):
        yield (
            f"{path} is a pickle, which runs code when it is read: if you trust it, write its two "
            f"arrays with numpy.save to {path.stem}/{IMAGE} and {path.stem}/{SEGMENTATION}, then "
            "remove it"
        )
    for path in sorted(root.glob("*/imaging.nii*")):
        if not (path.parent / IMAGE).exists():
            yield f"{path} is a raw scan: preprocess it, and write the result to {IMAGE} in its folder"


def _case(folder: Path, spec: TensorSpec) -> Case:
    image, segmentation = folder / IMAGE, folder / SEGMENTATION
    content = _mapped(image)
    # Models expect a channel axis, but a volume with a single channel may lack it.
    shapes = (content.shape, (1, *content.shape))
    fitting = [shape for shape in shapes if numbers.row_shape(shape, spec) == shape]
    if not fitting or content.dtype.kind not in "biuf":
        raise ConfigError(
            f"{image} is {content.dtype} of shape {show_shape(content.shape)}, but input {spec.name!r} takes numbers of shape "
            f"{numbers.shown_shape(spec.shape[1:])}"
        )
    if not content.size:
        raise ConfigError(f"{image} is empty")
    size_bytes = content.size * np.dtype(spec.dtype).itemsize
    if not segmentation.exists():
        return Case(folder.name, image, None, fitting[0], size_bytes)
    right = _mapped(segmentation).shape
    if right[-3:] != content.shape[-3:]:
        raise ConfigError(
            f"{segmentation} is {show_shape(right)}, but {IMAGE} is "
            f"{show_shape(content.shape)}: they must belong to the same case"
        )
    return Case(folder.name, image, segmentation, fitting[0], size_bytes)


def _mapped(path: Path) -> Array:
    try:
        content: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as e:
        raise sources.unreadable(path, e) from e
    if not isinstance(content, np.ndarray):
        raise ConfigError(f"{path} is an archive: it must be one array, as numpy.save writes it")
    return content


_: type[Dataset] = KitsDataset
