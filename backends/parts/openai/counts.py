"""Reads the counts of tokens in replies of OpenAI's API, and finds those that cannot be right. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from harness.remote import Usage

MOST = 2**31 - 1
"""Limit of a count: a larger count is taken for this one, as no answer has as many tokens."""

SPECIAL_TOKENS = 16
"""Most tokens of an answer that may show no text: its end, and marks such as a turn's."""

UNSHOWN_TOKENS = 4
"""Tokens without text that pass without a doubt: the end, and the bytes of a character that is not whole."""

NOT_THE_IDS = "`usage` is not the number of token ids"
FELL = "`usage` fell while the answer came"
CACHED = "more tokens of the prompt were cached than it has"
NOT_TEXT = "more tokens than the text has bytes"
"""Contradictions: the count is wrong."""

HIDDEN = "more tokens than the text shows"
NO_SUM = "`total_tokens` is not the sum"
"""Doubts: the count may be right."""


def counts_in(content: Mapping[str, Any]) -> dict[str, int]:
    """The counts of `usage` that are whole numbers. No prompt and no answer has 0 tokens: such a count is unknown."""
    usage = content.get("usage")
    if not isinstance(usage, dict):
        return {}
    counts = {
        "prompt_tokens": usage.get("prompt_tokens"),
        "completion_tokens": usage.get("completion_tokens"),
        "total": usage.get("total_tokens"),
        "cached": _detail(usage, "prompt_tokens_details", "cached_tokens"),
        "reasoning": _detail(usage, "completion_tokens_details", "reasoning_tokens"),
    }
    return {
        key: min(count, MOST)
        for key, count in counts.items()
        if type(count) is int and count >= (key != "cached")
    }


def _detail(usage: Mapping[str, Any], of: str, key: str) -> Any:
    details = usage.get(of)
    return details.get(key) if isinstance(details, dict) else None


def usage_of(
    counts: Mapping[str, int],
    ids: Sequence[int] | None,
    text: str,
    finish_reason: str,
    *,
    fell: bool = False,
    ignores_end: bool = False,
    shown: int = 0,
) -> Usage:
    """The token counts that a whole answer reports.

    counts: as `counts_in`, the last ones of a stream. ids: None where the server returned none. fell: an earlier
    count of the stream was larger. ignores_end: the model goes on behind its end, by tokens that show nothing. shown:
    tokens of a stream that were counted where text came, behind its first one.
    """
    output, source = counts.get("completion_tokens"), "usage"
    if output is None:
        output, source = (len(ids), "token ids") if ids else (None, "")
    return Usage(
        counts.get("prompt_tokens"),
        output,
        source,
        finish_reason,
        counts.get("cached"),
        FELL if fell else _contradiction(counts, ids, text, shown, ignores_end=ignores_end),
        _doubt(counts, output or 0, text),
    )


def _contradiction(
    counts: Mapping[str, int],
    ids: Sequence[int] | None,
    text: str,
    shown: int,
    *,
    ignores_end: bool,
) -> str:
    if counts.get("cached", 0) > counts.get("prompt_tokens", MOST):
        return CACHED
    output, reasoning = counts.get("completion_tokens"), counts.get("reasoning", 0)
    if output is None:
        return ""
    if ids:
        return "" if 0 <= output - len(ids) <= reasoning else NOT_THE_IDS
    # Where a server does not report its reasoning, it may have reasoned before its text; and tokens may follow an end.
    counted = max(shown, output - reasoning if reasoning else 0)
    return NOT_TEXT if _above_bytes(counted, text) > SPECIAL_TOKENS and not ignores_end else ""


def _doubt(counts: Mapping[str, int], output: int, text: str) -> str:
    if _above_bytes(output, text) > UNSHOWN_TOKENS:
        return HIDDEN
    parts = counts.get("prompt_tokens"), counts.get("completion_tokens"), counts.get("total")
    return NO_SUM if None not in parts and parts[0] + parts[1] != parts[2] else ""  # type: ignore[operator]


def _above_bytes(tokens: int, text: str) -> int:
    """Tokens above the bytes of the text: a token that shows has one or more."""
    if tokens <= len(text):  # a character has a byte or more
        return 0
    return tokens - len(text.encode("utf-8", "replace"))
