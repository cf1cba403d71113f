"""Dice coefficient of segmented volumes or images. As MLPerf's accuracy_kits.py."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from harness.types import Answer, Array, Metric, Score

SMOOTH = 1e-6
"""Added to both sides of the fraction: a class that is in neither counts as found."""


class Dice:
    """Answers and labels: arrays of classes, 0 the background; labels may be memory-mapped.

    The coefficient of each class of the labels is averaged over samples, then over classes. With
    two of them they are KiTS19's kidney and tumour, and the line is the official one.
    """

    def __init__(self, dtype: str) -> None:
        self._dtype = np.dtype(dtype)
        if self._dtype.kind not in "iub":
            raise ValueError(
                f"dice needs classes, the answers are {dtype}: postprocess with argmax"
            )

    def score(self, answers: Iterable[Answer], labels: Mapping[int, Any]) -> Score:
        classes = max(int(np.max(label)) for label in labels.values())
        if classes < 1:
            raise ValueError("the labels hold background alone: there is nothing to find")
        each = [self._of_one(payload, labels[i], classes) for i, payload in answers]
        by_class = np.mean(each, axis=0).tolist()
        names = ("kidney", "tumor") if classes == 2 else [f"class{c + 1}" for c in range(classes)]
        details = dict(zip(names, by_class, strict=True))
        mean = float(np.mean(by_class))
        told = "".join(f", {name} = {value:.4f}" for name, value in details.items())
        return Score(
            metric="dice",
            value=mean,
            unit="of 1",
            samples=len(each),
            line=f"Accuracy: mean = {mean:.5f}{told}",
            details=details,
        )

    def _of_one(self, payload: bytes, label: Any, classes: int) -> Array:
        """(classes,) coefficients; an answer of another size finds nothing."""
        wanted = np.asarray(label).ravel()
        if len(payload) != wanted.size * self._dtype.itemsize:
            return np.zeros(classes)
        found = np.frombuffer(payload, self._dtype)
        each = range(1, classes + 1)
        shared = np.array([np.count_nonzero((found == c) & (wanted == c)) for c in each])
        sizes = np.array(
            [np.count_nonzero(found == c) + np.count_nonzero(wanted == c) for c in each]
        )
        coefficients: Array = (2.0 * shared + SMOOTH) / (sizes + SMOOTH)
        return coefficients


_: type[Metric] = Dice
