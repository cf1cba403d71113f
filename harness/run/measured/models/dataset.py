"""Presents the samples of a set of models as one dataset. Each sample comes from the dataset of one model."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from harness.types import Array, Batch, Dataset

HELD = 32
"""A run loads at most this many samples from one model's dataset. The model's queries use these samples in turn.
"""


class Request(NamedTuple):
    """A batch with one sample for one of the models. The request provides all fields of a Batch."""

    size: int
    inputs: Mapping[str, Array]
    model: int
    """Number of the model in the set."""
    indices: Sequence[int]
    """The sample's index in the dataset of its model."""


class SetDataset:
    """A dataset whose sample i is for the model `models[i]`. The samples of each model are taken in turn."""

    def __init__(
        self,
        datasets: Sequence[Dataset],
        held: Sequence[int],
        models: Array,
        about: Mapping[str, Any],
    ) -> None:
        """datasets: one dataset per model; models may share a dataset.

        held: number of samples of each dataset that may be loaded. models: (samples,) model number of each sample.
        about: returned by `describe`.
        """
        self._datasets = datasets
        self.synthetic = all(getattr(each, "synthetic", False) for each in datasets)
        self._models: list[int] = models.tolist()
        self._about = about
        each = [min(HELD, count) for count in held]
        seen = np.zeros(len(datasets), np.int64)
        self._own: list[int] = []
        for model in self._models:
            self._own.append(int(seen[model]) % each[model])
            seen[model] += 1

    def __len__(self) -> int:
        return len(self._models)

    def load(self, indices: Sequence[int]) -> None:
        for dataset, own in self._by_dataset(indices):
            dataset.load(own)

    def unload(self, indices: Sequence[int]) -> None:
        for dataset, own in self._by_dataset(indices):
            dataset.unload(own)

    def batch(self, indices: Sequence[int]) -> Request:
        (index,) = indices
        model, own = self._models[index], [self._own[index]]
        batch: Batch = self._datasets[model].batch(own)
        return Request(batch.size, batch.inputs, model, own)

    def of(self, index: int) -> Dataset:
        """Returns the dataset from which the sample comes."""
        return self._datasets[self._models[index]]

    def label(self, _index: int, /) -> object:
        return None

    def describe(self) -> Mapping[str, object]:
        return self._about

    def _by_dataset(self, indices: Sequence[int]) -> list[tuple[Dataset, list[int]]]:
        """Returns each dataset of these samples once, with the samples' indices in the dataset."""
        wanted: dict[int, tuple[Dataset, set[int]]] = {}
        for index in indices:
            dataset = self.of(index)
            wanted.setdefault(id(dataset), (dataset, set()))[1].add(self._own[index])
        return [(dataset, sorted(own)) for dataset, own in wanted.values()]
