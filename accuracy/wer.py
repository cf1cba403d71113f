"""Scores transcripts by the word error rate, like MLPerf's speech2text accuracy_eval.py."""

import re
from collections.abc import Iterable, Mapping, Sequence

from harness.accuracy.parts.text import TextLabels, texts
from harness.types import Answer, Metric, Score

JOINED = 3
"""Maximum number of words that may be joined into a single word without counting as errors."""

_WORD = re.compile(r"[\w'$%+-]+")


class WordErrorRate(TextLabels):
    """Number of substituted, deleted and inserted words, as a percentage of the words in the labels. Lower is better.

    Differences in case and punctuation are ignored, and up to three words that are joined into one do not count as
    errors. The official script also normalises numbers and abbreviations, as the metric `wer-whisper` does. Labels and
    answers have the form that `texts` (accuracy/parts/text.py) describes.
    """

    name = "wer"

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype

    def words(self, text: str) -> Sequence[str]:
        """Returns a text's words in the form that is compared."""
        return _WORD.findall(text.lower())

    def score(self, answers: Iterable[Answer], labels: Mapping[int, object]) -> Score:
        errors = plain = words = total = 0
        for text, right in texts(answers, labels, self._dtype):
            spoken, expected = self.words(text), self.words(right)
            total += 1
            words += len(expected)
            plain += edits(spoken, expected)
            errors += edits(*joined(spoken, expected))
        if not words:
            raise ValueError("the labels have no words: the error rate is undefined")
        value = 100.0 * errors / words
        return Score(
            metric=self.name,
            value=value,
            unit="%",
            samples=total,
            line=f"Word Error Rate: {value:.4f}%, accuracy={max(0.0, 100 - value):.4f}%",
            details={"word_accuracy": 100 - value, "wer_word_by_word": 100.0 * plain / words},
            lower_is_better=True,
        )


def edits(words: Sequence[str], expected: Sequence[str]) -> int:
    """Returns the Levenshtein distance, counted in words."""
    previous = list(range(len(expected) + 1))
    for i, word in enumerate(words, 1):
        row = [i]
        for j, right in enumerate(expected, 1):
            row.append(min(row[-1] + 1, previous[j] + 1, previous[j - 1] + (word != right)))
        previous = row
    return previous[-1]


def joined(words: Sequence[str], expected: Sequence[str]) -> tuple[list[str], list[str]]:
    """Joins up to three words on one side if the other side contains them as a single word.

    Processes the words once, from left to right, like the official helper. If two words differ, skips both of them.
    """
    left: list[str] = []
    right: list[str] = []
    i = j = 0
    while i < len(words) and j < len(expected):
        m, n = _match(words[i : i + JOINED], expected[j : j + JOINED])
        left.append("".join(words[i : i + m]))
        right.append("".join(expected[j : j + n]))
        i, j = i + m, j + n
    return left + list(words[i:]), right + list(expected[j:])


def _match(words: Sequence[str], expected: Sequence[str]) -> tuple[int, int]:
    """Returns how many words on each side form the same word; (1, 1) if the words differ."""
    for count in range(1, JOINED + 1):
        if "".join(expected[:count]) == words[0]:
            return 1, min(count, len(expected))
        if "".join(words[:count]) == expected[0]:
            return min(count, len(words)), 1
    return 1, 1


_: type[Metric] = WordErrorRate
