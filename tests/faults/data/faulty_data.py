"""Datasets and metrics with one fault each, named as faulty_data.py:Class."""

import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from harness.types import Answer, Batch, DatasetSetup, Score

COUNT = 40


class Good:
    """Serves forty black images, for which the null backend's answer, 0, is always right."""

    def __init__(self, setup: DatasetSetup) -> None:
        self.loads = 0

    def __len__(self) -> int:
        return COUNT

    def load(self, indices: Sequence[int]) -> None:
        self.loads += 1

    def unload(self, indices: Sequence[int]) -> None:
        return None

    def batch(self, indices: Sequence[int]) -> Batch:
        return Batch(len(indices), {"image": np.zeros((len(indices), 1, 8, 8), np.float32)})

    def label(self, index: int) -> int:
        return 0

    def describe(self) -> Mapping[str, object]:
        return {"name": "good", "count": len(self)}


class Changes(Good):
    """Yields different data in each process that opens it."""

    def describe(self) -> dict[str, object]:
        return {"name": "changes", "digest": str(os.getpid())}


class Small(Good):
    performance_count = 10_000


class Empty(Good):
    def __len__(self) -> int:
        return 0


class RaisesInInit(Good):
    def __init__(self, setup: DatasetSetup) -> None:
        raise FileNotFoundError("images/00001.jpg")


class RaisesInWarmUp(Good):
    def load(self, indices: Sequence[int]) -> None:
        raise OSError("image 3 is truncated")


class RaisesInLoad(Good):
    """Fails only when LoadGen loads samples, after a successful warm-up."""

    def load(self, indices: Sequence[int]) -> None:
        super().load(indices)
        if self.loads > 1:
            raise OSError("image 3 is truncated")


class RaisesInBatch(Good):
    def batch(self, indices: Sequence[int]) -> Batch:
        if self.loads > 1:
            raise IndexError("no such row")
        return super().batch(indices)


class ForgetsLengths(Good):
    """Returns one number for all samples together instead of one per sample."""

    def lengths(self, indices: Sequence[int]) -> Any:
        return np.asarray([3])


class RaisesInLabel(Good):
    def label(self, index: int) -> int:
        raise KeyError(index)


class BlocksInScoring(Good):
    """Returns labels that pass the checks before the run, but blocks while they are scored."""

    def label(self, index: int) -> int:
        # Only the measured process loads this module.
        if "harness.results.verdict.score" in sys.modules:
            time.sleep(1e6)
        return super().label(index)


class Unlabelled(Good):
    def label(self, index: int) -> None:  # type: ignore[override]
        return None


class BlocksInLoad(Good):
    def load(self, indices: Sequence[int]) -> None:
        super().load(indices)
        if self.loads > 1:
            time.sleep(1e6)


class LoadsInSets(Good):
    """Loads sets of ten samples; each set after the first takes longer than --hang-timeout."""

    performance_count = 10

    def load(self, indices: Sequence[int]) -> None:
        super().load(indices)
        if self.loads > 2:
            time.sleep(1.5)


class LoadsSlowly(Good):
    """Takes longer to load than the tests' --hang-timeout, but reports its progress."""

    def __init__(self, setup: DatasetSetup) -> None:
        super().__init__(setup)
        self.progress = setup.progress

    def load(self, indices: Sequence[int]) -> None:
        super().load(indices)
        for i in range(8):
            time.sleep(0.5)
            self.progress(i, 8)


class RaisesInScore:
    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    def score(self, answers: Iterable[Answer], labels: Mapping[int, object]) -> Score:
        raise ZeroDivisionError("no samples of class 3")


class GivesNan(RaisesInScore):
    def score(self, answers: Iterable[Answer], labels: Mapping[int, object]) -> Score:
        return Score(metric="x", value=float("nan"), unit="%", samples=1, line="x=nan")


class GivesNothing(RaisesInScore):
    def score(self, answers: Iterable[Answer], labels: Mapping[int, object]) -> Any:
        return None


class ScoresLess(RaisesInScore):
    def score(self, answers: Iterable[Answer], labels: Mapping[int, object]) -> Score:
        return Score(metric="x", value=1.0, unit="%", samples=1, line="x=1")


class ScoresOther(RaisesInScore):
    def score(self, answers: Iterable[Answer], labels: Mapping[int, object]) -> Score:
        return Score(metric="x", value=1.0, unit="%", samples=len(labels), line="x=1")


class Leaves(RaisesInScore):
    def score(self, answers: Iterable[Answer], labels: Mapping[int, object]) -> Score:
        raise SystemExit(0)
