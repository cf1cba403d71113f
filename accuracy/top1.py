"""Share of samples whose answer is the right label, or has it among its best five."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from harness.types import Answer, HasAnswerShape, Metric, Score


class Top1:
    """Answers are labels: one number each, or several integers with the best first (`topk`).
    As MLPerf's accuracy-imagenet.py counts.
    """

    _name = "top1"
    _counts = 1

    def __init__(self, dtype: str) -> None:
        self._dtype = np.dtype(dtype)

    def check_shape(self, shape: Sequence[int | None]) -> None:
        """A class for each pixel is no list of labels, though all of them may differ; a score for each
        class is none either.
        """
        if len(shape) == 1 and self._dtype.kind == "f" and shape[0] is not None and shape[0] > 1:
            raise ValueError(
                f"{self._name} needs labels, these are {shape[0]:,} scores an answer, {self._dtype}: "
                "postprocess with argmax or topk"
            )
        if len(shape) > 1:
            told = " x ".join("?" if size is None else str(size) for size in shape)
            raise ValueError(
                f"{self._name} needs one label an answer, or several in a row, these are {told} "
                "numbers: postprocess with argmax or topk, or score with another metric"
            )

    def score(self, answers: Iterable[Answer], labels: Mapping[int, object]) -> Score:
        wrong = next((v for v in labels.values() if not isinstance(v, int | np.integer)), None)
        if wrong is not None:
            raise ValueError(
                f"{self._name} needs labels that are class numbers, there is {wrong!r}"
            )
        total = longest = 0
        good = dict.fromkeys((1, 5), 0)
        for index, payload in answers:
            total += 1
            found = self._labels(payload)
            longest = max(longest, len(found))
            for count in good:
                good[count] += labels[index] in found[:count]
        if not longest:
            raise ValueError(
                f"no answer is a label: {self._name} needs one {self._dtype} number or several whole "
                "ones each: postprocess with argmax or topk"
            )
        if longest < self._counts:
            raise ValueError(
                f"{self._name} needs {self._counts} labels in an answer, these have {longest}: "
                f"postprocess with topk"
            )
        told = {self._counts, *(count for count in good if count <= longest)}
        percent = {f"top{count}": 100.0 * good[count] / total for count in sorted(told)}
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
        """Empty for an answer that is no label: it is wrong, whatever the right one is."""
        if len(payload) % self._dtype.itemsize:
            return []
        values = np.frombuffer(payload, self._dtype)
        if self._dtype.kind == "f" and (len(values) != 1 or not values[0].is_integer()):
            return []  # scores are no labels; NaN and infinity are no integers
        found = [int(value) for value in values.tolist()]
        if len(set(found)) < len(found):
            raise ValueError(
                f"an answer names a label twice, {found[:8]}: such numbers are no labels, the best "
                "first: postprocess with argmax or topk"
            )
        return found


class Top5(Top1):
    """Answers are the best five labels or more, as `topk` gives them."""

    _name = "top5"
    _counts = 5


_: type[Metric] = Top1
__: type[Metric] = Top5
___: type[HasAnswerShape] = Top1
