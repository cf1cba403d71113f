"""Reads the token counts in replies of OpenAI's API, and detects counts that cannot be right. This module has no side
effects.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from harness.remote import Sign, Usage

MOST = 2**31 - 1
"""The largest count that is stored. Larger counts are replaced by this value, because no answer can have that many
tokens.
"""

SPECIAL_TOKENS = 16
"""An answer may exceed the bytes of its text by at most this many tokens: the end token and marks, such as the mark of
a turn. If the excess is larger, the counts contradict the text.
"""

UNSHOWN_TOKENS = 4
"""If an answer's tokens exceed the bytes of its text by more than this number, the count is doubtful. The end token and
the bytes of an incomplete character can explain a smaller excess.
"""

CALL_TOKENS = 16
"""A tool call may exceed its name and arguments by at most this many tokens, e.g. for `<tool_call>` and `{"name":`."""

_COUNTS = (
    ("prompt_tokens", "prompt_tokens"),
    ("completion_tokens", "completion_tokens"),
    ("total", "total_tokens"),
)
"""The harness's name for a count, and its key in `usage`."""

_DETAILS = (
    ("cached", "prompt_tokens_details", "cached_tokens", 0),
    ("reasoning", "completion_tokens_details", "reasoning_tokens", 1),
)
"""The harness's name for a count, the object in `usage` that contains the count, the count's key in that object, and
the smallest valid count.
"""

_UNREADABLE = "unreadable"

NOT_THE_IDS = "`usage` is not the number of token ids"
FELL = "`usage` decreased during the answer"
CACHED = "more prompt tokens were cached than the prompt has"
NOT_TEXT = "`usage` counts more tokens than the text has bytes"
REASONED = "`usage` counts more reasoning tokens than the answer has tokens"
"""Messages for contradictions, that is, for counts that must be wrong."""

HIDDEN = "`usage` counts more tokens than the text shows"
NO_SUM = "`total_tokens` is not the sum of the other counts"
UNREADABLE = "a count in `usage` is not a whole number"
"""Messages for doubts, that is, for counts that may be right."""


def counts_in(content: Mapping[str, Any]) -> dict[str, int]:
    """Returns the whole numbers in `usage`. A count of 0 means unknown, because every prompt and every answer has at
    least one token.

    The key `unreadable` is present if a count is not a whole number.
    """
    usage = content.get("usage")
    counts: dict[str, int] = {}
    if not isinstance(usage, dict):
        return counts
    for key, name in _COUNTS:
        count = usage.get(name)
        if type(count) is int and count > 0:
            counts[key] = min(count, MOST)
        elif count:
            counts[_UNREADABLE] = 1
    for key, of, name, least in _DETAILS:
        details = usage.get(of)
        count = details.get(name) if isinstance(details, dict) else None
        if type(count) is int and count >= least:
            counts[key] = min(count, MOST)
    return counts


def usage_of(
    counts: Mapping[str, int],
    ids: Sequence[int] | None,
    text: str,
    finish_reason: str,
    *,
    fell: bool = False,
    ignores_end: bool = False,
    shown: int = 0,
    silent: int = 0,
    spare: int = 0,
    signs: Sequence[Sign] = (),
    reply_id: str = "",
    has_call: bool = False,
) -> Usage:
    """Returns the token counts that a complete answer reports.

    counts: the result of `counts_in`; for a stream, the last result.
    ids: the token ids; None if the server returned no ids.
    fell: whether an earlier count in the stream was larger.
    ignores_end: whether the model continues after its end, with tokens that add no text.
    shown: number of tokens in a stream that were counted together with text, after the first token.
    silent: with `ignores_end`, the number of tokens that add no text after the first text.
    spare: number of additional tokens that calls and stop strings may have without text.
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
        FELL if fell else _contradiction(counts, ids, text, shown - spare, ignores_end=ignores_end),
        _doubt(counts, (output or 0) - silent - spare, text),
        counts.get("reasoning"),
        signs,
        reply_id,
        has_call,
        silent=silent,
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
    if reasoning > output and _is_included(counts):
        return REASONED
    if ids:
        return "" if 0 <= output - len(ids) <= reasoning else NOT_THE_IDS
    # Tokens without text do not contradict the reply, because a server that does not report its reasoning may have
    # reasoned before the text, and tokens may follow the end.
    counted = max(shown, output - reasoning if reasoning else 0)
    return NOT_TEXT if _above_bytes(counted, text) > SPECIAL_TOKENS and not ignores_end else ""


def _is_included(counts: Mapping[str, int]) -> bool:
    """Returns whether the token count of the answer includes the reasoning. Some servers add the reasoning to
    `total_tokens` separately.
    """
    parts = (
        counts.get("prompt_tokens", 0),
        counts.get("completion_tokens", 0),
        counts["reasoning"],
    )
    return counts.get("total") != sum(parts)


def _doubt(counts: Mapping[str, int], output: int, text: str) -> str:
    if _UNREADABLE in counts:
        return UNREADABLE
    if _above_bytes(output, text) > UNSHOWN_TOKENS:
        return HIDDEN
    parts = counts.get("prompt_tokens"), counts.get("completion_tokens"), counts.get("total")
    return NO_SUM if None not in parts and parts[0] + parts[1] != parts[2] else ""  # type: ignore[operator]


def _above_bytes(tokens: int, text: str) -> int:
    """Returns the surplus of tokens over bytes of text, because each token with text takes at least one byte."""
    # The text has at least one byte per character, so the tokens cannot exceed the bytes.
    if tokens <= len(text):
        return 0
    return tokens - len(text.encode("utf-8", "replace"))
