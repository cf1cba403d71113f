"""Replaces the driver's dataset if the nodes hold the samples. A batch then consists of sample indices."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from harness.models.opened.node import INDICES
from harness.types import Batch, Dataset


class NodeData:
    """The driver's dataset, whose samples the nodes load."""

    def __init__(self, dataset: Dataset, load: Callable[[Sequence[int]], None]) -> None:
        """load: makes every node load these samples and drop its earlier samples."""
        self._dataset = dataset
        self._load = load
        self.synthetic = bool(getattr(dataset, "synthetic", False))

    def __len__(self) -> int:
        return len(self._dataset)

    @property
    def performance_count(self) -> int:
        return int(getattr(self._dataset, "performance_count", len(self._dataset)))

    def load(self, indices: Sequence[int]) -> None:
        self._load(indices)

    def unload(self, indices: Sequence[int]) -> None:
        """Does nothing, because the nodes keep the samples until they load other samples."""

    def batch(self, indices: Sequence[int]) -> Batch:
        return Batch(len(indices), {INDICES: np.asarray(indices, np.int32)})

    def label(self, index: int) -> object:
        return self._dataset.label(index)

    def describe(self) -> Mapping[str, object]:
        return self._dataset.describe()
