"""Decodes replies of OpenAI's completions and chat completions: texts, token ids and token counts."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from harness.backends.parts.openai.calls import Calls
from harness.backends.parts.openai.counts import CALL_TOKENS, counts_in, usage_of
from harness.backends.parts.openai.endpoints import Endpoint
from harness.backends.parts.openai.reasoning import AnswerStart, has_mark
from harness.backends.parts.openai.signs import LEAST_TEXT, lacks_answer, repeats
from harness.backends.parts.refusals import error_text, refused, words
from harness.errors import one_line
from harness.remote import BadAnswer, CutOff, Refused, Reply, Sign, Usage
from harness.types import Array

_OK = 200

_WHOLE = frozenset(
    (
        # values that OpenAI, vLLM, SGLang and llama.cpp use
        *("stop", "length", "tool_calls", "function_call"),
        *("eos_token", "stop_sequence", "eos", "end_turn", "max_tokens", "model_length"),
        "tool_use",  # Anthropic
        "complete",
    )
)
"""Values of finish_reason, in lower case, that mark an answer as complete."""

_QUOTED = 200
"""An error message quotes at most this many characters of a reply."""


class Reading(NamedTuple):
    """Settings for reading replies."""

    wants_text: bool = False
    """If true, the text is the answer even if the reply contains token ids."""
    wants_calls: bool = False
    """If true, an answer with tool calls is the list of the calls as JSON; a text without a call stays text."""
    needs_end: bool = False
    """If true, an answer without a finish_reason counts as cut off."""
    ignores_end: bool = False
    """The argument `ignores_end` of `usage_of`."""
    stop_bytes: int = 0
    """Length in bytes of the longest stop string in the requests."""
    takes_any_end: bool = False
    """If true, incomplete answers are accepted."""
    endpoint: Endpoint | None = None
    """The endpoint whose replies are translated; None for completions and chat completions."""
    models: frozenset[str] = frozenset()
    """The names of the model in replies before the run; empty if these replies contained no name, or if names are not
    checked.
    """


class Completion:
    """The reply to one prompt, read as a single JSON object."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self.usage = Usage()
        self.first_token: int | None = None
        self.model = ""
        """The model's name in the reply."""

    def answer(self, reply: Reply) -> list[Array]:
        """Returns one answer: token ids as int32, or UTF-8 as uint8. Raises Refused if the server reports an error, and
        BadAnswer if the reply is invalid.
        """
        if reply.status != _OK:
            raise refused(reply)
        content = json_in(bytes(reply.body), "the reply")
        endpoint = self._reading.endpoint
        if endpoint is not None and isinstance(content, dict):
            content = endpoint.whole(content)
        content = checked(content)
        self.model = model_of(content, self._reading)
        choice = only_choice(content)
        if choice is None:
            raise BadAnswer(f"the reply has no choices: {content!r:.{_QUOTED}}")
        parts = parts_of(choice)
        text, ids, reading = parts.text, parts.ids, self._reading
        finish, counts = end_of(choice.get("finish_reason"), reading), counts_in(content)
        self.usage = usage_of(
            counts,
            ids,
            text,
            finish,
            ignores_end=reading.ignores_end,
            silent=counts.get("completion_tokens", 0) if reading.ignores_end else 0,
            spare=CALL_TOKENS * parts.calls + reading.stop_bytes,
            signs=self._signs(parts, text, finish),
            reply_id=id_of(content),
            has_call=parts.has_call,
        )
        self.first_token = ids[0] if ids else None
        if reading.wants_calls:
            calls = Calls()
            calls.add(choice)
            text = calls.answer(text)
        return [as_answer(text, ids, self.usage.output, wants_text=reading.wants_text)]

    def _signs(self, parts: "Parts", text: str, finish: str) -> Sequence[Sign]:
        found = []
        tokens = parts.ids or (text.split() if len(text) >= LEAST_TEXT else ())
        if not self._reading.ignores_end and repeats(tokens):
            found.append(Sign.REPEATED)
        if parts.reasoning or has_mark(parts.answer):
            start = AnswerStart()
            start.take(parts.reasoning, parts.answer)
            has_answer = start.is_answer or parts.has_call
            if lacks_answer(finish, has_reasoning=start.has_reasoning, has_answer=has_answer):
                found.append(Sign.NO_ANSWER)
        return tuple(found)


def id_of(content: Mapping[str, Any]) -> str:
    """Returns the id of a reply or chunk, or '' if the content has no id."""
    name = content.get("id")
    return name if isinstance(name, str) else ""


def checked(content: Any) -> Mapping[str, Any]:
    """Checks the JSON in a reply with status 200. Raises Refused for an error, and BadAnswer if the content is not an
    object.
    """
    if _is_error(content):
        raise Refused(_OK, one_line(error_text(content)))
    if not isinstance(content, dict):
        raise BadAnswer(f"the reply is not a JSON object: {content!r:.{_QUOTED}}")
    return content


def model_of(content: Mapping[str, Any], reading: Reading) -> str:
    """Returns the model's name in a reply or chunk, or '' if the content has no name. Raises BadAnswer if the name
    belongs to a different model.
    """
    model = content.get("model")
    if not isinstance(model, str) or not model:
        return ""
    if reading.models and model not in reading.models:
        known = " or ".join(repr(name) for name in sorted(reading.models))
        raise BadAnswer(
            f"the reply is from the model {model!r:.80}; before the run the server answered as {known:.160}"
        )
    return model


def _is_error(content: Any) -> bool:
    """Returns whether a reply is an error: it contains `error`, the `object` "error", or a message without an answer."""
    if not isinstance(content, dict):
        return False
    if content.get("error") or content.get("object") == "error":
        return True
    has_answer = "choices" in content or "usage" in content
    return not has_answer and any(content.get(key) for key in ("message", "detail", "errors"))


def json_in(text: bytes, what: str) -> Any:
    """Parses JSON. Raises a BadAnswer that quotes invalid JSON. what: name of the text in messages."""
    try:
        # The text is decoded first, because json.loads would have to guess the encoding of bytes. json.loads decodes
        # only texts that do not begin with `{`, such as a text with a byte order mark.
        return json.loads(text.decode() if text.startswith(b"{") else text)
    except (ValueError, RecursionError) as e:
        raise BadAnswer(f"{what} is not valid JSON: {words(text)[:_QUOTED]}") from e


def only_choice(content: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Returns the choice in a reply or chunk; None if the content has no choices, as in a chunk with only the usage."""
    choices = content.get("choices")
    if choices is None or choices == []:
        return None
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise BadAnswer(f"the reply's `choices` is not a list of one choice: {choices!r:.60}")
    if choices[0].get("index") not in (None, 0):
        raise BadAnswer(
            f"the reply has a choice with index {choices[0]['index']!r:.20}, but one choice was requested"
        )
    return choices[0]


class Parts(NamedTuple):
    """The parts of the choice in a reply or chunk."""

    reasoning: str
    answer: str
    """The message, a refusal, and the names and arguments of calls."""
    ids: list[int] | None
    """Token ids; None if the choice has no ids."""
    has_call: bool = False
    """True if a tool is called."""
    calls: int = 0
    """Number of calls that begin in this choice; a call begins with the name of its function."""

    @property
    def text(self) -> str:
        return self.reasoning + self.answer


def parts_of(choice: Mapping[str, Any]) -> Parts:
    """Returns the parts; raises a BadAnswer if a text is not a string, or an id is not a token id."""
    inner = choice.get("message") or choice.get("delta")
    thoughts: list[Any] = []
    texts = [choice.get("text")]
    calls: list[Any] = []
    if isinstance(inner, dict):
        old, new = inner.get("reasoning_content"), inner.get("reasoning")
        if old or new:  # some servers send the same text under both names
            thoughts = [old] if old == new else [old, new]
        texts += (inner.get("content"), inner.get("refusal"))
        if inner.get("tool_calls") or inner.get("function_call"):
            calls = _calls(inner)
            texts += calls
    for text in (*thoughts, *texts):
        if text is not None and not isinstance(text, str):
            raise BadAnswer("the text in the reply is not a string")
    ids = choice.get("token_ids")
    if ids is None:
        ids = _logged_ids(choice.get("logprobs"))
    elif not (isinstance(ids, list) and all(map(_is_id, ids))):
        raise BadAnswer(f"the reply's `token_ids` is not a list of token ids: {ids!r:.60}")
    reasoning = "".join(filter(None, thoughts)) if thoughts else ""
    answer = "".join(filter(None, texts))
    if not calls:
        return Parts(reasoning, answer, ids)
    return Parts(reasoning, answer, ids, any(calls), sum(map(bool, calls[::2])))


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31


def _logged_ids(logprobs: Any) -> list[int] | None:
    """Returns the token ids that llama.cpp adds to the log probabilities of a choice; None if the choice contains no
    ids.
    """
    tokens = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(tokens, list):
        return None
    ids: list[Any] = [token.get("id") for token in tokens if isinstance(token, dict)]
    return ids if len(ids) == len(tokens) and all(map(_is_id, ids)) else None


def _calls(inner: Mapping[str, Any]) -> list[Any]:
    calls = inner.get("tool_calls")
    functions = [c.get("function") for c in calls if isinstance(c, dict)] if isinstance(calls, list) else []  # fmt: skip
    functions.append(inner.get("function_call"))
    return [f.get(key) for f in functions if isinstance(f, dict) for key in ("name", "arguments")]


def end_of(finish_reason: Any, reading: Reading) -> str:
    """Returns the finish_reason of a complete answer; '' if the answer has no finish_reason, or if any end is accepted.
    Raises CutOff if the answer is incomplete.
    """
    if reading.takes_any_end:
        return ""
    if finish_reason is None or finish_reason == "":
        if reading.needs_end:
            raise CutOff(
                "the answer ended without a finish_reason, although the server sent one before the run"
            )
        return ""
    if not isinstance(finish_reason, str) or finish_reason.lower() not in _WHOLE:
        raise CutOff(f"the server ended the answer with finish_reason {finish_reason!r:.60}")
    return finish_reason


def as_answer(text: str, ids: list[int] | None, tokens: int | None, *, wants_text: bool) -> Array:
    """Returns the answer as an array. tokens: None if no count was reported. Raises BadAnswer if the answer has no
    token.
    """
    if tokens is None and not text:
        raise BadAnswer("the answer has no tokens")
    if ids is not None and not (wants_text or (text and not ids)):
        return np.array(ids, np.int32)
    return np.frombuffer(text.encode("utf-8", "replace"), np.uint8)
