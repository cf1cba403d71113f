"""Scores segmentations of volumes or images by the Dice coefficient, like MLPerf's accuracy_kits.py."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from harness.types import Answer, Array, Metric, Score

SMOOTH = 1e-6
"""Number added to both the numerator and the denominator, so that a class scores 1 if it occurs neither in the answer
nor in the label.
"""


class Dice:
    """Dice coefficient between answers and labels. Answers and labels are arrays of classes, in which 0 is the
    background. Labels may be memory-mapped.

    Each class's coefficient is averaged over the samples, and then these means are averaged over the classes. With two
    classes, class 1 is KiTS19's kidney and class 2 is the tumour, and the line in accuracy.txt has the official format.
    """

    def __init__(self, dtype: str) -> None:
        self._dtype = np.dtype(dtype)
        if self._dtype.kind not in "iub":
            raise ValueError(
                f"dice needs integer classes, but the answers are {dtype}: postprocess with argmax"
            )

    def score(self, answers: Iterable[Answer], labels: Mapping[int, Any]) -> Score:
        classes = sorted({int(c) for label in labels.values() for c in np.unique(label)} - {0})
        if not classes:
            raise ValueError(
                "the labels have only background, class 0: dice needs at least one other class"
            )
        if classes != list(range(1, len(classes) + 1)):
            raise ValueError(
                f"the labels have the classes {', '.join(map(str, classes[:5]))}: number them 1, 2, "
                "3 without a gap; 0 is the background"
            )
        each = [self._coefficients(payload, labels[i], classes) for i, payload in answers]
        by_class = np.mean(each, axis=0).tolist()
        names = ("kidney", "tumor") if len(classes) == 2 else [f"class{c}" for c in classes]
        details = dict(zip(names, by_class, strict=True))
        mean = float(np.mean(by_class))
        by_name = "".join(f", {name} = {value:.4f}" for name, value in details.items())
        return Score(
            metric="dice",
            value=mean,
            unit="of 1",
            samples=len(each),
            line=f"Accuracy: mean = {mean:.5f}{by_name}",
            details=details,
        )

    def _coefficients(self, payload: bytes, label: Any, classes: Sequence[int]) -> Array:
        """Returns (classes,) coefficients, which are all 0 if the answer and the label differ in size."""
        truth = np.asarray(label).ravel()
        if len(payload) != truth.size * self._dtype.itemsize:
            return np.zeros(len(classes))
        answer = np.frombuffer(payload, self._dtype)
        shared = np.array([np.count_nonzero((answer == c) & (truth == c)) for c in classes])
        sizes = np.array(
            [np.count_nonzero(answer == c) + np.count_nonzero(truth == c) for c in classes]
        )
        coefficients: Array = (2.0 * shared + SMOOTH) / (sizes + SMOOTH)
        return coefficients


_: type[Metric] = Dice
