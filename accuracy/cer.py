"""Scores texts by the character error rate, the usual measure for text recognition."""

from collections.abc import Iterable, Mapping

from harness.accuracy.parts.text import TextLabels, texts
from harness.accuracy.wer import edits
from harness.types import Answer, Metric, Score


class CharacterErrorRate(TextLabels):
    """Number of substituted, deleted and inserted characters, as a percentage of the characters in the labels. Lower is
    better.

    Differences in case, punctuation and spaces within a text count as errors. White space before and after a text is
    ignored. Labels and answers have the form that `texts` (accuracy/parts/text.py) describes.
    """

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype

    def score(self, answers: Iterable[Answer], labels: Mapping[int, object]) -> Score:
        errors = characters = right = total = 0
        for text, label in texts(answers, labels, self._dtype):
            read, expected = text.strip(), label.strip()
            total += 1
            characters += len(expected)
            errors += edits(read, expected)
            right += read == expected
        if not characters:
            raise ValueError("the labels have no characters: the error rate is undefined")
        value = 100.0 * errors / characters
        return Score(
            metric="cer",
            value=value,
            unit="%",
            samples=total,
            line=f"Character Error Rate: {value:.4f}%, accuracy={max(0.0, 100 - value):.4f}%",
            details={"character_accuracy": 100 - value, "exact_match": 100.0 * right / total},
            lower_is_better=True,
        )


_: type[Metric] = CharacterErrorRate
