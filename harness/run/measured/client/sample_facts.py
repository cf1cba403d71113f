"""Stores two facts about each sample: the model that its request names, and the duration of its audio."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from harness.loadgen.logs import SAMPLE_FACTS
from harness.remote import HasMedia, HasModels, Remote
from harness.types import Dataset


class SampleFacts:
    """The facts of the samples that were loaded so far."""

    def __init__(self, remote: Remote, dataset: Dataset) -> None:
        self._model_of = remote.model_of if isinstance(remote, HasModels) else None
        self._media_ns = remote.media_ns if isinstance(remote, HasMedia) else None
        self._dataset = dataset
        self._number: dict[str, int] = {}
        self._facts: dict[int, tuple[int, int]] = {}  # maps an index to (model number, duration)

    def note(self, loaded: Sequence[int]) -> None:
        """Stores the facts of loaded samples. Skips samples whose request cannot be made; the queries for such samples
        fail.
        """
        if self._model_of is None and self._media_ns is None:
            return
        for index in loaded:
            if index in self._facts:
                continue
            try:
                batch = self._dataset.batch([index])
                name = self._model_of(batch) if self._model_of is not None else ""
                media_ns = self._media_ns(batch) if self._media_ns is not None else 0
            except Exception:  # noqa: BLE001, S112 - an error of the plug-in or the dataset
                continue
            number = self._number.setdefault(name, len(self._number))
            self._facts[index] = number, media_ns

    def write(self, outdir: Path) -> None:
        """Writes SAMPLE_FACTS if the samples name several models or contain audio."""
        if len(self._number) < 2 and self._media_ns is None:
            return
        facts = np.array([*self._facts.values()], np.int64).reshape(-1, 2)
        np.savez(
            outdir / SAMPLE_FACTS,
            names=np.array([*self._number]),
            index=np.array([*self._facts], np.int64),
            model=facts[:, 0],
            media_ns=facts[:, 1],
        )
