"""Scores texts by the share of texts that are identical to their labels, as MLPerf does for mathematics."""

from collections.abc import Iterable, Mapping

from harness.accuracy.parts.text import TextLabels, texts
from harness.types import Answer, Metric, Score


class ExactMatch(TextLabels):
    """Percentage of answers that equal their labels in every character.

    White space before and after a text is ignored. Labels and answers have the form that `texts`
    (accuracy/parts/text.py) describes.
    """

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype

    def score(self, answers: Iterable[Answer], labels: Mapping[int, object]) -> Score:
        total = right = empty = 0
        for text, expected in texts(answers, labels, self._dtype):
            total += 1
            right += text.strip() == expected.strip()
            empty += not text.strip()
        value = 100.0 * right / total
        return Score(
            metric="exact_match",
            value=value,
            unit="%",
            samples=total,
            line=str({"exact_match": round(value, 4), "gen_num": total}),
            details={"right": right, "empty": empty},
        )


_: type[Metric] = ExactMatch
