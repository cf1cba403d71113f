"""Counts the tokens of a run, as its replies tell them."""

from collections import Counter
from typing import Any

from harness.remote import Usage

_MOST_REASONS = 16
_REASON_CHARACTERS = 40
"""Kinds of finish_reason, and length of each, that are kept: they are the server's own words."""


class Tokens:
    """Sums over the answers of a run. Used by one thread."""

    def __init__(self) -> None:
        self._answers = self._input = self._output = self._cached = self._alone = 0
        self._known: Counter[str] = Counter()
        self._sources: Counter[str] = Counter()
        self._finished: Counter[str] = Counter()

    def add(self, usage: Usage) -> None:
        """usage: of one answer."""
        self._answers += 1
        if usage.input is not None:
            self._known["input"] += 1
            self._input += usage.input
        if usage.output is not None:
            self._output += usage.output
            self._alone += usage.output == 1
        if usage.cached is not None:
            self._known["cached"] += 1
            self._cached += usage.cached
        self._sources[usage.source] += 1
        reason = usage.finish_reason[:_REASON_CHARACTERS]
        if reason in self._finished or len(self._finished) < _MOST_REASONS:
            self._finished[reason] += 1

    def told(self) -> dict[str, Any]:
        """`tokens` of the last message. A sum is None where a reply did not tell its part."""
        answers = self._answers
        return {
            "answers": answers,
            "input": self._input if self._known["input"] == answers else None,
            "output": self._output if "" not in self._sources else None,
            "cached": self._cached if self._known["cached"] == answers else None,
            "one_token_answers": self._alone,
            "sources": dict(self._sources),
            "finish_reasons": dict(self._finished),
        }
