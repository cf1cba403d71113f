"""Decodes replies of OpenAI's completions and chat completions: texts, token ids and counts of tokens."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from harness.backends.parts.refusals import refused
from harness.errors import one_line
from harness.remote import BadAnswer, Refused, Reply, Usage
from harness.types import Array

_OK = 200


class Completion:
    """The reply to one prompt, read as one JSON object.

    wants_text: give the text even where the reply has token ids.
    """

    def __init__(self, *, wants_text: bool) -> None:
        self._wants_text = wants_text
        self.usage = Usage()
        self.first_token: int | None = None

    def answer(self, reply: Reply) -> list[Array]:
        """One answer: token ids as int32, or UTF-8 as uint8. Raises Refused or BadAnswer."""
        if reply.status != _OK:
            raise refused(reply)
        content = checked(reply.status, _object(reply))
        choice = only_choice(content)
        if choice is None:
            raise BadAnswer("the reply has no choices")
        text, ids = parts_of(choice)
        finish = choice.get("finish_reason")
        counts = usage_of(content)
        output, source = counts.get("completion_tokens"), "usage"
        if output is None:
            output, source = (None, "") if ids is None else (len(ids), "token ids")
        self.usage = Usage(
            counts.get("prompt_tokens"), output, source, str(finish or ""), counts.get("cached")
        )
        self.first_token = ids[0] if ids else None
        return [as_answer(text, ids, output, wants_text=self._wants_text)]


def checked(status: int, content: Any) -> Mapping[str, Any]:
    """content: JSON that a server sent. Raises Refused where it is an error, BadAnswer where it is no object."""
    error = content.get("error") if isinstance(content, dict) else None
    if status != _OK or error:
        if isinstance(content, dict):
            error = error or content.get("detail") or content.get("message") or content
        text = error.get("message", error) if isinstance(error, dict) else error
        raise Refused(status, one_line(str(text or content or "no text")))
    if not isinstance(content, dict):
        raise BadAnswer(f"the reply is no JSON object: {content!r:.60}")
    return content


def _object(reply: Reply) -> Any:
    try:
        return json.loads(bytes(reply.body))
    except (ValueError, RecursionError) as e:
        text = bytes(reply.body[:2000]).decode("utf-8", "replace")
        if reply.status != _OK:
            return text
        raise BadAnswer(f"the reply is no JSON: {text[:60]!r}") from e


def only_choice(content: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The choice of a reply or chunk; None where it has none, as chunks that carry usage alone."""
    choices = content.get("choices")
    if choices == []:
        return None
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise BadAnswer(f"`choices` of the reply is no list of one choice: {choices!r:.60}")
    return choices[0]


def parts_of(choice: Mapping[str, Any]) -> tuple[str, list[int] | None]:
    """Text and token ids. The text of a chat is what it thought, what it said and the arguments of its calls."""
    inner = choice.get("message") or choice.get("delta")
    texts = [choice.get("text")]
    if isinstance(inner, dict):
        texts = [inner.get(key) for key in ("reasoning_content", "reasoning", "content")]
        texts += _calls(inner.get("tool_calls"))
    if any(not isinstance(text, str | None) for text in texts):
        raise BadAnswer("the text of the reply is no text")
    ids = choice.get("token_ids")
    if ids is not None and not (
        isinstance(ids, list) and all(type(i) is int and 0 <= i < 2**31 for i in ids)
    ):
        raise BadAnswer(f"`token_ids` of the reply is no list of token ids: {ids!r:.60}")
    return "".join(text for text in texts if text), ids


def _calls(calls: Any) -> list[Any]:
    functions = [call.get("function") for call in calls or () if isinstance(call, dict)]
    return [f.get(key) for f in functions if isinstance(f, dict) for key in ("name", "arguments")]


def usage_of(content: Mapping[str, Any]) -> Mapping[str, int]:
    """The counts of `usage` that are there and are numbers; `cached` of prompt_tokens_details."""
    usage = content.get("usage")
    if not isinstance(usage, dict):
        return {}
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    found = {
        "prompt_tokens": usage.get("prompt_tokens"),
        "completion_tokens": usage.get("completion_tokens"),
        "cached": cached,
    }
    return {k: v for k, v in found.items() if type(v) is int and v >= 0}


def as_answer(text: str, ids: list[int] | None, tokens: int | None, *, wants_text: bool) -> Array:
    """tokens: None where the server tells no count. Raises BadAnswer for an answer without a token."""
    if tokens == 0 or (tokens is None and not text):
        raise BadAnswer("the answer has no token")
    if ids is not None and not wants_text:
        return np.array(ids, np.int32)
    return np.frombuffer(text.encode("utf-8", "replace"), np.uint8)
