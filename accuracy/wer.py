"""Word error rate of transcripts. As MLPerf's speech2text accuracy_eval.py."""

import re
from collections.abc import Iterable, Mapping, Sequence

from harness.accuracy.parts.text import texts
from harness.types import Answer, Metric, Score

JOINED = 3
"""Words that may be written as one without being wrong."""

_WORD = re.compile(r"[\w'$%+-]+")


class WordErrorRate:
    """Words changed, left out and put in, in percent of the right ones: the lower the better.

    Case and punctuation do not count, nor does it matter whether up to three words are written as
    one. The official script also spells numbers and abbreviations alike (Whisper's normaliser): for
    an official result give labels and answers so. Labels and answers: see `texts`.
    """

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype

    def score(self, answers: Iterable[Answer], labels: Mapping[int, object]) -> Score:
        errors = plain = words = total = 0
        for text, right in texts(answers, labels, self._dtype):
            found, wanted = _WORD.findall(text.lower()), _WORD.findall(right.lower())
            total += 1
            words += len(wanted)
            plain += edits(found, wanted)
            errors += edits(*joined(found, wanted))
        if not words:
            raise ValueError("the labels hold no words")
        value = 100.0 * errors / words
        return Score(
            metric="wer",
            value=value,
            unit="%",
            samples=total,
            line=f"Word Error Rate: {value:.4f}%, accuracy={max(0.0, 100 - value):.4f}%",
            details={"word_accuracy": 100 - value, "wer_word_by_word": 100.0 * plain / words},
            lower_is_better=True,
        )


def edits(found: Sequence[str], wanted: Sequence[str]) -> int:
    """Levenshtein's distance in words."""
    previous = list(range(len(wanted) + 1))
    for i, word in enumerate(found, 1):
        row = [i]
        for j, right in enumerate(wanted, 1):
            row.append(min(row[-1] + 1, previous[j] + 1, previous[j - 1] + (word != right)))
        previous = row
    return previous[-1]


def joined(found: Sequence[str], wanted: Sequence[str]) -> tuple[list[str], list[str]]:
    """Both, with up to three words of one side joined where they are the next word of the other.

    One pass from the left, as the official helper makes it: words that differ are passed in pairs.
    """
    left: list[str] = []
    right: list[str] = []
    i = j = 0
    while i < len(found) and j < len(wanted):
        m, n = _match(found[i : i + JOINED], wanted[j : j + JOINED])
        left.append("".join(found[i : i + m]))
        right.append("".join(wanted[j : j + n]))
        i, j = i + m, j + n
    return left + list(found[i:]), right + list(wanted[j:])


def _match(found: Sequence[str], wanted: Sequence[str]) -> tuple[int, int]:
    """How many words of each side are the same word; (1, 1) where none are."""
    for count in range(1, JOINED + 1):
        if "".join(wanted[:count]) == found[0]:
            return 1, min(count, len(wanted))
        if "".join(found[:count]) == wanted[0]:
            return min(count, len(found)), 1
    return 1, 1


_: type[Metric] = WordErrorRate
