"""Scores transcripts by the word error rate after applying Whisper's normaliser, like MLPerf's official script."""

import warnings
from collections.abc import Sequence
from typing import Any

from harness.accuracy.wer import WordErrorRate
from harness.types import Metric

with warnings.catch_warnings():  # Python would warn about escapes in the package's source
    warnings.simplefilter("ignore", DeprecationWarning)
    warnings.simplefilter("ignore", SyntaxWarning)
    from whisper_normalizer.english import EnglishTextNormalizer


LETTERS = frozenset(" abcdefghijklmnopqrstuvwxyz'0123456789$%+-")
"""Characters that texts may contain when MLPerf's script compares them. All other characters are removed before the
comparison.
"""


class WhisperWordErrorRate(WordErrorRate):
    """The metric `wer`, applied after numbers, abbreviations, contractions and British spelling are normalised in both
    texts.

    Source: mlcommons/inference speech2text/accuracy_eval.py, word_error_rate; reference_SUT.py.
    """

    name = "wer-whisper"

    def __init__(self, dtype: str) -> None:
        super().__init__(dtype)
        self._normalised: Any = EnglishTextNormalizer()

    def words(self, text: str) -> Sequence[str]:
        letters = "".join(character for character in text.lower() if character in LETTERS)
        words: Sequence[str] = self._normalised(letters).split()
        return words


_: type[Metric] = WhisperWordErrorRate
