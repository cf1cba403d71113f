"""Finds signs that a server's replies do not show how the server really generates an answer. This module has no side
effects.
"""

from collections.abc import Sequence

from harness.remote import Sign

_LEAST_CHUNKS = 4
_LEAST_TOKENS = 32
"""A stream with fewer chunks or tokens is not checked for signs."""

LEAST_TEXT = 2 * _LEAST_TOKENS - 1
"""A text with fewer characters cannot contain _LEAST_TOKENS words."""

_FEWER_RATIO, _FEWER_EXTRA = 1.25, 2
"""A stream is suspicious if it has more chunks than _FEWER_RATIO times its number of tokens, plus _FEWER_EXTRA. A token
may be shown in two parts, for example at the end of the reasoning.
"""

_FEW_VALUES = 4
_BY_THE_MODEL = frozenset(("stop", "eos", "eos_token", "end_turn", "complete"))
"""Values of finish_reason, in lower case, for answers that the model itself ended."""


class ChunkCounts:
    """Counts the chunks of one stream, and stores the token counts that the chunks report."""

    __slots__ = (
        "_count",
        "_counted",
        "_lead",
        "_stalled",
        "_texts",
        "_uncounted",
        "_unseen",
        "texts_at",
    )

    def __init__(self) -> None:
        self._count = self._counted = self._stalled = self._texts = self._unseen = 0
        self._lead = 0  # number of tokens that add no text before the first text
        self._uncounted = 0  # number of chunks with text but without a count
        self.texts_at: list[int] = []
        """The token count of each chunk with text, if the chunk reports one."""

    def take(self, count: int | None, text: str) -> None:
        """count: tokens of the answer so far, as reported by the server; None if the server reports no count."""
        if text:
            self._texts += 1
        if count is None:
            self._uncounted += bool(text)
            return
        self._counted += 1
        grown = count - self._count
        if text:
            self._stalled += grown <= 0
            self.texts_at.append(count)
        elif grown > 0:
            self._unseen += grown
            self._lead += grown if not self._texts else 0
        self._count = count

    def silent(self, output: int, text: str) -> int:
        """Returns the number of tokens without text after the first text. If a chunk with text has no count, estimates
        the number as the surplus of tokens over bytes of text.
        """
        if self._uncounted:
            return max(0, output - len(text.encode("utf-8", "replace")))
        return self._unseen - self._lead

    def signs(
        self, output: int | None, text: str, *, has_call: bool, ignores_end: bool = False
    ) -> list[Sign]:
        """Returns the signs. output: number of tokens in the whole answer. text: the text of the answer. has_call: true
        if the answer contains a call, which has tokens that servers do not show. ignores_end: whether tokens without
        text may follow the first text.
        """
        texts = self._texts
        if output is None or texts < _LEAST_CHUNKS:
            return []
        found = []
        if texts > _FEWER_RATIO * output + _FEWER_EXTRA:
            found.append(Sign.FEWER)
        if self._counted < _LEAST_CHUNKS or 2 * self._counted < texts:
            # The checks below need a count in most chunks.
            return found
        if 2 * self._stalled > texts:
            found.append(Sign.LATE_COUNT)
        # A character that is not ASCII may take several tokens, and arrives with the last of these tokens.
        elif 2 * (self._lead if ignores_end else self._unseen) > output and (
            text.isascii() and not has_call
        ):
            found.append(Sign.UNSEEN)
        return found


def repeats(parts: Sequence[object]) -> bool:
    """Returns whether the answer's second half repeats only a few different tokens. parts: ids, words or chunks."""
    count = len(parts)
    return count >= _LEAST_TOKENS and len(set(parts[count // 2 :])) <= _FEW_VALUES


def lacks_answer(finish_reason: str, *, has_reasoning: bool, has_answer: bool) -> bool:
    """Returns whether the model ended its answer during or right after its reasoning."""
    return has_reasoning and not has_answer and finish_reason.lower() in _BY_THE_MODEL
