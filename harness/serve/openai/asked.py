"""Reads requests for completions and chat completions in the same way as vLLM."""

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

from harness.models.generation.prompts import Prompts
from harness.serve.answers import Refusal
from harness.serve.openai.fields import (
    BAD_REQUEST,
    MOST_CHOICES,
    check_fields,
    is_on,
    refuse,
    texts,
    tokens,
    whole_number,
)
from harness.serve.openai.tools import Call, called


class Asked(NamedTuple):
    """The content of a client's request."""

    prompts: list[list[int]]
    copies: int
    """Number of answers to each prompt."""
    most: int
    """Maximum number of tokens in an answer."""
    least: int
    """Number of tokens that an answer must contain before an end token may end it."""
    is_chat: bool
    ignores_end: bool
    stops: tuple[str, ...]
    """Texts that end an answer."""
    stop_tokens: frozenset[int]
    """Tokens that end an answer, in addition to the model's end tokens."""
    keeps_stop: bool
    """Whether the answer's text includes the stop string or token that ended it."""
    echoes: bool
    """Whether the answer's text begins with the prompt."""
    streams: bool
    usage_at_end: bool
    """Whether the last chunk of a stream reports the number of tokens."""
    usage_always: bool
    """Whether each chunk of a stream reports the number of tokens."""
    wants_ids: bool
    model: str = ""
    """Name of the model in the reply."""
    call: Call | None = None
    """The function that the answer calls, or None if the answer is text."""
    reasons: bool = False
    """Whether the model first writes a draft, which serves as reasoning."""
    has_tags: bool = False
    """Whether the answer's text includes the draft, enclosed in tags."""

    @property
    def held_characters(self) -> int:
        """Maximum number of characters to hold back at the end of a text, because a stop string may begin there."""
        return 0 if self.keeps_stop else max(map(len, self.stops), default=1) - 1


def read(
    body: bytes,
    *,
    is_chat: bool,
    known: Callable[[object], str],
    prompts: Prompts,
    translate: Callable[[Mapping[str, Any]], dict[str, Any]] = dict,
) -> Asked:
    """Reads a request. Raises Refusal with the name of the field that is wrong.

    body: the request's JSON. known: returns the name of the requested model. translate: converts a request for another
    API to a chat completion request.
    """
    try:
        request = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as e:
        raise Refusal(BAD_REQUEST, f"the request is not valid JSON: {e}") from None
    if not isinstance(request, dict):
        raise Refusal(BAD_REQUEST, "the request is not a JSON object")
    model = known(request.get("model"))
    request = translate(request)
    check_fields(request)
    call, reasons = called(request, is_chat=is_chat), _reasons(request, is_chat=is_chat)
    streams = is_on(request, "stream")
    options = request.get("stream_options") or {}
    if not isinstance(options, dict) or (options and not streams):
        refuse("stream_options", "stream_options must be an object, and needs stream: true")
    echoes = is_on(request, "echo")
    if echoes and is_chat:
        refuse("echo", "echo is true, but chats do not support echo: leave echo out, or send false")
    given = _prompts(request, prompts, is_chat=is_chat)
    copies = whole_number(request, "n", 1, MOST_CHOICES)
    if len(given) * copies > MOST_CHOICES:
        refuse(
            "n",
            f"the request asks for {len(given) * copies:,} answers, but at most {MOST_CHOICES:,} are allowed",
        )
    most = _most(request, prompts)
    usage_at_end = is_on(options, "include_usage")
    return Asked(
        prompts=given,
        copies=copies,
        most=most,
        least=whole_number(request, "min_tokens", 0, most),
        is_chat=is_chat,
        ignores_end=is_on(request, "ignore_eos"),
        stops=texts(request, "stop"),
        stop_tokens=tokens(request, "stop_token_ids"),
        keeps_stop=is_on(request, "include_stop_str_in_output"),
        echoes=echoes,
        streams=streams,
        usage_at_end=usage_at_end,
        usage_always=is_on(options, "continuous_usage_stats") and usage_at_end,
        wants_ids=is_on(request, "return_token_ids"),
        model=model,
        call=call,
        reasons=reasons,
        has_tags=request.get("separate_reasoning") is False,
    )


def _reasons(request: Mapping[str, Any], *, is_chat: bool) -> bool:
    """Returns whether `chat_template_kwargs` enables reasoning through `enable_thinking`, as for Qwen3."""
    arguments = request.get("chat_template_kwargs") or {}
    if not isinstance(arguments, dict):
        refuse("chat_template_kwargs", "chat_template_kwargs must be an object")
    return is_chat and is_on(arguments, "enable_thinking")


def _prompts(request: Mapping[str, Any], prompts: Prompts, *, is_chat: bool) -> list[list[int]]:
    source, other = ("messages", "prompt") if is_chat else ("prompt", "messages")
    wrong = source if request.get(source) is None else other
    if wrong == source or request.get(other) is not None:
        refuse(wrong, f"the request needs {source}, and must not have {other}")
    try:
        return prompts.all_tokens(request)
    except ValueError as e:
        refuse(source, str(e))


def _most(request: Mapping[str, Any], prompts: Prompts) -> int:
    """Returns the maximum number of tokens in an answer.

    If a request uses both names of this field, the newer name counts, as in vLLM.
    """
    names = ("max_completion_tokens", "max_tokens")
    name = next((name for name in names if request.get(name) is not None), "max_tokens")
    try:
        return prompts.most(request.get(name))
    except ValueError as e:
        refuse(name, str(e))


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")
