"""Notes which model the request of each sample names."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from harness.remote import HasModels, Remote
from harness.results.tokens.by_model import SAMPLE_MODELS
from harness.types import Dataset


class ModelsBySample:
    """The models of the samples that were loaded so far."""

    def __init__(self, remote: Remote, dataset: Dataset) -> None:
        self._model_of = remote.model_of if isinstance(remote, HasModels) else None
        self._dataset = dataset
        self._number: dict[str, int] = {}
        self._of_index: dict[int, int] = {}

    def note(self, loaded: Sequence[int]) -> None:
        """Notes the models of loaded samples. A sample whose request cannot be made has none: its query fails."""
        if self._model_of is None:
            return
        for index in loaded:
            if index in self._of_index:
                continue
            try:
                name = self._model_of(self._dataset.batch([index]))
            except Exception:  # noqa: BLE001, S112 - of the plug-in or the dataset
                continue
            self._of_index[index] = self._number.setdefault(name, len(self._number))

    def write(self, outdir: Path) -> None:
        """Writes SAMPLE_MODELS if there are several models."""
        if len(self._number) < 2:
            return
        np.savez(
            outdir / SAMPLE_MODELS,
            names=np.array([*self._number]),
            index=np.array([*self._of_index], np.int64),
            model=np.array([*self._of_index.values()], np.int32),
        )
