"""Share of samples whose answer is the right label."""

from collections.abc import Iterable, Mapping

import numpy as np

from harness.types import Answer, Metric, Score


class Top1:
    """Answers are one number each: the label. As MLPerf's accuracy-imagenet.py counts."""

    def __init__(self, dtype: str) -> None:
        self._dtype = np.dtype(dtype)

    def score(self, answers: Iterable[Answer], labels: Mapping[int, object]) -> Score:
        good = total = 0
        for index, payload in answers:
            total += 1
            answer = self._label(payload)
            good += answer is not None and answer == labels[index]
        value = 100.0 * good / total
        return Score(
            metric="top1",
            value=value,
            unit="%",
            samples=total,
            line=f"accuracy={value:.3f}%, good={good}, total={total}",
        )

    def _label(self, payload: bytes) -> int | None:
        """None for an answer that is not one label: it is wrong, whatever the right one is."""
        if len(payload) != self._dtype.itemsize:
            return None
        value = float(np.frombuffer(payload, self._dtype)[0])
        return int(value) if value.is_integer() else None  # NaN and infinity are no integers


_: type[Metric] = Top1
