"""Reads the papers that R-GAT classifies, from MLCommons' download of the Illinois Graph Benchmark.

A sample is the number of a paper in the graph, from the file `val_idx.pt` that MLCommons' split_seeds.py writes. The
label of a paper is one of 2,983 topics. The system under test holds the graph and its features (2.2 TB), and samples
the neighbours of each paper.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from harness.core.formats.torch_tensor import read_tensor
from harness.datasets.parts import sources
from harness.datasets.parts.rows import LoadedRows
from harness.errors import ConfigError
from harness.types import Array, Dataset, DatasetSetup

SEEDS, LABELS = "val_idx.pt", "paper/node_label_2K.npy"
SIZES = ("full", "large", "medium", "small", "tiny")
_MAGIC = b"\x93NUMPY"


class IgbhDataset(LoadedRows):
    """Papers. --data-dir is the folder of the download, which contains <size>/processed, or the folder `processed`
    itself.

    The model's only input receives the number of each paper.
    """

    def __init__(self, setup: DatasetSetup) -> None:
        sources.check_steps(setup, "igbh", ())
        if len(setup.inputs) != 1 or setup.inputs[0].dtype not in ("int64", "int32"):
            raise ConfigError(
                "dataset 'igbh' needs a model with one input, the papers, of dtype int64 or int32"
            )
        self._setup, self._spec = setup, setup.inputs[0]
        self._folder = processed(sources.given_folder(setup, "igbh", f"<size>/processed/{SEEDS}"))
        self._papers = papers(self._folder / SEEDS)
        super().__init__(len(self._papers))

    def load(self, indices: Sequence[int]) -> None:
        rows = self._papers[np.asarray(indices, np.int64)].astype(self._spec.dtype)
        self.hold(
            indices, {self._spec.name: rows.reshape(len(rows), *[1] * (len(self._spec.shape) - 1))}
        )

    def label(self, index: int) -> int:
        return int(self._topics[index])

    @cached_property
    def _topics(self) -> Array:
        """Returns the (n,) topics of the samples."""
        topics = labels(self._folder / LABELS)
        highest = int(self._papers.max())
        if highest >= len(topics):
            raise ConfigError(
                f"{self._folder / SEEDS} names paper {highest:,}, but {LABELS} has the topics of "
                f"{len(topics):,} papers: both must belong to one graph"
            )
        return np.asarray(topics[self._papers]).astype(np.int64)

    def describe(self) -> Mapping[str, object]:
        files = {name: self._folder / name for name in (SEEDS, LABELS)}
        return {
            "name": "igbh",
            "count": len(self),
            "source": str(self._folder),
            "digest": sources.digest(files, self._setup),
        }


def processed(folder: Path) -> Path:
    """Returns the folder `processed` of the graph in the download. Raises a ConfigError unless the download contains
    exactly one graph.
    """
    places = [folder, folder / "processed", *(folder / size / "processed" for size in SIZES)]
    found = [place for place in places if (place / SEEDS).is_file()]
    if len(found) != 1:
        names = ", ".join(str(place.relative_to(folder)) for place in found) or "none"
        raise ConfigError(
            f"{folder} must contain exactly one graph with {SEEDS}, but contains {names}: run MLCommons' split_seeds.py, or "
            "pass the folder `processed` of one graph"
        )
    return found[0]


def papers(path: Path) -> Array:
    found = read_tensor(path)
    if found.ndim != 1 or found.dtype.kind != "i" or not len(found) or found.min() < 0:
        raise ConfigError(f"{path} is not a list of papers: run MLCommons' split_seeds.py again")
    return found.astype(np.int64)


def labels(path: Path) -> Array:
    """Returns the topic of every paper, memory-mapped. The files of the largest graphs contain float32 numbers without
    a header.
    """
    try:
        with path.open("rb") as file:
            has_header = file.read(len(_MAGIC)) == _MAGIC
        if has_header:
            found: Array = np.load(path, mmap_mode="r", allow_pickle=False)
        else:
            found = np.memmap(path, np.float32, "r")
    except (OSError, ValueError) as e:
        raise sources.unreadable(path, e) from e
    if found.ndim != 1 or found.dtype.kind not in "fi":
        raise ConfigError(f"{path} does not contain one number per paper")
    return found


_: type[Dataset] = IgbhDataset
