"""Scores detections by the area under the receiver operating characteristic (ROC) curve."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from harness.types import Answer, Array, HasLabelCheck, Metric, Score


class AreaUnderCurve:
    """Probability that a positive sample gets a higher score than a negative sample. A tie counts as one half.

    An answer is a single score, or one score per frame. A label is 0 or 1, or one such number per frame. The part of an
    answer beyond the length of its label is padding. A missing score counts as wrong.
    """

    def __init__(self, dtype: str) -> None:
        self._dtype = np.dtype(dtype)
        if self._dtype.kind not in "fiu":
            raise ValueError(f"auc needs scores, but the answers are {dtype}")

    def check_labels(self, labels: Mapping[int, object]) -> None:
        for index, label in labels.items():
            row = np.asarray(label).ravel()
            if row.dtype.kind not in "iub" or not np.isin(row, (0, 1)).all():
                text = " ".join(repr(label).split())
                raise ValueError(
                    f"auc needs labels that are 0 or 1, one per frame, but the label of sample {index} is {text:.80}"
                )

    def score(self, answers: Iterable[Answer], labels: Mapping[int, Any]) -> Score:
        rows = [self._scored(answer.payload, labels[answer.sample]) for answer in answers]
        scores, right = (np.concatenate(each) for each in zip(*rows, strict=True))
        positives = int(right.sum())
        if not 0 < positives < len(right):
            raise ValueError(
                f"auc needs labels of both kinds, but {positives:,} of {len(right):,} are 1: choose other data"
            )
        value = _area(scores, right)
        return Score(
            metric="auc",
            value=value,
            unit="of 1",
            samples=len(rows),
            line=f"auc={value:.6f}, positive={positives}, frames={len(right)}, total={len(rows)}",
            details={"positive_share": positives / len(right)},
        )

    def _scored(self, payload: bytes, label: Any) -> tuple[Array, Array]:
        """Returns a sample's scores and labels. Both arrays have the same length."""
        right = np.asarray(label).ravel().astype(bool)
        whole = len(payload) // self._dtype.itemsize * self._dtype.itemsize
        scores = np.frombuffer(payload[:whole], self._dtype).astype(np.float64)[: len(right)]
        wrong = np.where(right, -np.inf, np.inf)
        known = np.concatenate([scores, wrong[len(scores) :]])
        return np.where(np.isnan(known), wrong, known), right


def _area(scores: Array, right: Array) -> float:
    """Computes the area from the ranks of the positive samples (Mann and Whitney, 1947)."""
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places.reshape(-1)]
    positives = int(right.sum())
    above = float(ranks[right].sum()) - positives * (positives + 1) / 2
    return above / (positives * (len(right) - positives))


_: type[Metric] = AreaUnderCurve
__: type[HasLabelCheck] = AreaUnderCurve
