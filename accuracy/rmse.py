"""Scores regression by the root-mean-square error."""

from collections.abc import Iterable, Mapping, Sequence
from numbers import Real

import numpy as np

from harness.types import Answer, HasAnswerShape, HasLabelCheck, Metric, Score


class Rmse:
    """Root-mean-square error of the answers. Each answer and each label is one number. A run with a failed sample
    cannot be scored.
    """

    def __init__(self, dtype: str) -> None:
        self._dtype = np.dtype(dtype)

    def check_shape(self, shape: Sequence[int | None]) -> None:
        if any(size != 1 for size in shape):
            sizes = " x ".join("?" if size is None else str(size) for size in shape)
            raise ValueError(
                f"rmse needs one number per answer, but each answer has {sizes} numbers: choose a different metric, or "
                "combine them into one with the step `hook`"
            )

    def check_labels(self, labels: Mapping[int, object]) -> None:
        for index, label in labels.items():
            if _number(label) is None:
                text = " ".join(repr(label).split())
                raise ValueError(
                    f"rmse needs labels that are numbers, but the label of sample {index} is {text:.80}: write a number"
                )

    def score(self, answers: Iterable[Answer], labels: Mapping[int, object]) -> Score:
        self.check_labels(labels)
        pairs = [
            (self._value(index, payload), _number(labels[index])) for index, payload in answers
        ]
        found, right = np.array(pairs, np.float64).T
        errors = found - right
        value = float(np.sqrt(np.mean(errors**2)))
        spread = float(np.mean((right - right.mean()) ** 2))
        details = {"mae": float(np.mean(np.abs(errors)))}
        if spread:
            details["r2"] = 1 - value**2 / spread
        return Score(
            metric="rmse",
            value=value,
            unit="",
            samples=len(pairs),
            line=f"rmse={value:.6f}, total={len(pairs)}",
            details=details,
            lower_is_better=True,
        )

    def _value(self, index: int, payload: bytes) -> float:
        if len(payload) != self._dtype.itemsize:
            raise ValueError(
                f"the answer to sample {index} is {len(payload)} bytes, not one {self._dtype} number: rmse cannot "
                "score a sample that failed"
            )
        return float(np.frombuffer(payload, self._dtype)[0])


def _number(label: object) -> float | None:
    if isinstance(label, np.ndarray) and label.size == 1:
        label = label.item()
    if isinstance(label, bool | np.bool_) or not isinstance(label, Real | np.number):
        return None
    return float(label)


_: type[Metric] = Rmse
__: type[HasAnswerShape] = Rmse
___: type[HasLabelCheck] = Rmse
