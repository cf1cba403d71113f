"""Scores classification by the share of samples whose best answer is the correct label."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from harness.types import (
    Answer,
    ClassName,
    HasAnswerShape,
    HasClassCheck,
    HasLabelCheck,
    Metric,
    Score,
)


class Top1:
    """Percentage of correct answers, as in MLPerf's accuracy-imagenet.py.

    An answer is one label, or several integer labels with the best one first, as the step `topk` returns them.
    """

    _name = "top1"
    _counts = 1

    def __init__(self, dtype: str) -> None:
        self._dtype = np.dtype(dtype)

    def check_shape(self, shape: Sequence[int | None]) -> None:
        """Refuses arrays of class scores and pixel classes, because such arrays are not lists of labels."""
        if len(shape) == 1 and self._dtype.kind == "f" and shape[0] is not None and shape[0] > 1:
            raise ValueError(
                f"{self._name} needs labels, but each answer has {shape[0]:,} {self._dtype} scores: "
                "postprocess with argmax or topk"
            )
        if len(shape) > 1:
            sizes = " x ".join("?" if size is None else str(size) for size in shape)
            raise ValueError(
                f"{self._name} needs one label per answer, or a row of labels, but each answer has {sizes} "
                "numbers: postprocess with argmax or topk, or choose a different metric"
            )

    def check_labels(self, labels: Mapping[int, object]) -> None:
        for index, label in labels.items():
            if isinstance(label, ClassName) and _is_other_number(label):
                raise ValueError(
                    f"{self._name} needs class numbers or class names, but the label of sample {index} is the string "
                    f"{str(label)!r}, which would be class {label.number} if read as a name: write only whole numbers, or "
                    "only names"
                )
            if _class_of(label) is None:
                text = " ".join(repr(label).split())
                raise ValueError(
                    f"{self._name} needs labels that are class numbers, but the label of sample {index} is "
                    f"{text:.80}: number the classes 0, 1, ..., or score text with exact_match"
                )

    def check_classes(self, labels: Mapping[int, object], classes: range) -> None:
        for index, label in labels.items():
            number = _class_of(label)
            if number is not None and number not in classes:
                name = f" ({label})" if isinstance(label, str) else ""
                raise ValueError(
                    f"the label of sample {index} is {number}{name}, outside the model's classes {classes[0]} to "
                    f"{classes[-1]}: number the labels like the model's classes, or shift the answers with the step `shift`"
                )

    def score(self, answers: Iterable[Answer], labels: Mapping[int, object]) -> Score:
        self.check_labels(labels)
        total = longest = 0
        good = dict.fromkeys((1, 5), 0)
        for index, payload in answers:
            total += 1
            names = self._labels(payload)
            longest = max(longest, len(names))
            for count in good:
                good[count] += _class_of(labels[index]) in names[:count]
        if not longest:
            raise ValueError(
                f"no answer is a label, because {self._name} needs one {self._dtype} number or several integers "
                "per answer: postprocess with argmax or topk"
            )
        if longest < self._counts:
            raise ValueError(
                f"{self._name} needs {self._counts} labels per answer, but the longest answer has {longest}: "
                f"postprocess with topk"
            )
        reported = {self._counts, *(count for count in good if count <= longest)}
        percent = {f"top{count}": 100.0 * good[count] / total for count in sorted(reported)}
        value = percent.pop(self._name)
        return Score(
            metric=self._name,
            value=value,
            unit="%",
            samples=total,
            line=f"accuracy={value:.3f}%, good={good[self._counts]}, total={total}",
            details=percent,
        )

    def _labels(self, payload: bytes) -> list[int]:
        """Returns the labels in an answer. If the answer is not a label, returns [], which counts as wrong."""
        if len(payload) % self._dtype.itemsize:
            return []
        values = np.frombuffer(payload, self._dtype)
        if self._dtype.kind == "f" and (len(values) != 1 or not values[0].is_integer()):
            return []  # a score, NaN or infinity is not a label
        names = [int(value) for value in values.tolist()]
        if len(set(names)) < len(names):
            raise ValueError(
                f"an answer has the same label twice, {names[:8]}: {self._name} takes one label per sample, or "
                "several with the best first: postprocess outputs of [n, classes] with argmax or topk. If argmax "
                "leaves a label per position, combine them with the step `hook`, or choose a different metric"
            )
        return names


def _is_other_number(label: ClassName) -> bool:
    try:
        return float(label) != label.number
    except ValueError:
        return False


def _class_of(label: object) -> int | None:
    """Returns the class number in a label; None if the label is not a class."""
    if isinstance(label, ClassName):
        return label.number
    return int(label) if isinstance(label, int | np.integer) else None


_: type[Metric] = Top1
__: type[HasAnswerShape] = Top1
___: type[HasLabelCheck] = Top1
____: type[HasClassCheck] = Top1
