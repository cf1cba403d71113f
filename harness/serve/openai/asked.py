"""Reads requests for completions and chat completions. What would change the answer and is not done is refused."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from harness.models.generation.prompts import Prompts
from harness.serve.answers import Refusal

_GREEDY: Mapping[str, tuple[Any, ...]] = {
    "temperature": (None, 0),
    "n": (None, 1),
    "best_of": (None, 1),
    "echo": (None, False),
    "stop": (None, []),
    "suffix": (None, ""),
    "logprobs": (None, False),
    "logit_bias": (None, {}),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "min_tokens": (None, 0),
    "tools": (None, []),
}
"""Fields that would change an answer, and the values with which they do not."""

_WITHOUT_EFFECT = ("user", "seed", "top_p", "top_k", "min_p")
"""Fields that change nothing where the likeliest token is always taken."""

_READ = (
    *("model", "prompt", "messages", "max_tokens", "max_completion_tokens", "ignore_eos"),
    *("stream", "stream_options", "return_token_ids"),
)
_BAD_REQUEST, _NOT_FOUND = 400, 404


class Asked(NamedTuple):
    """What a client wants."""

    prompt: list[int]
    most: int
    """Tokens of the answer."""
    is_chat: bool
    ignores_end: bool
    streams: bool
    usage_at_end: bool
    """A last chunk of a stream tells the tokens."""
    usage_always: bool
    """Each chunk of a stream does."""
    wants_ids: bool


def read(body: bytes, *, is_chat: bool, model: str, prompts: Prompts) -> Asked:
    """body: the JSON of a request. model: the name that is served. Raises a Refusal that names the field at fault."""
    try:
        request = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as e:
        raise Refusal(_BAD_REQUEST, f"the request is no JSON: {e}") from None
    if not isinstance(request, dict):
        raise Refusal(_BAD_REQUEST, "the request is no JSON object")
    if request.get("model") != model:
        raise Refusal(
            _NOT_FOUND, f"there is no model {request.get('model')!r:.80}: this server has {model!r}"
        )
    _check_fields(request)
    streams = _is_on(request, "stream")
    options = request.get("stream_options") or {}
    if not isinstance(options, dict) or (options and not streams):
        raise Refusal(_BAD_REQUEST, "stream_options must be an object, beside stream: true")
    source, other = ("messages", "prompt") if is_chat else ("prompt", "messages")
    if source not in request or other in request:
        raise Refusal(_BAD_REQUEST, f"the request needs {source}, and no {other}")
    most = request.get("max_tokens", request.get("max_completion_tokens"))
    try:
        prompt, most = prompts.tokens(request), prompts.most(most)
    except ValueError as e:
        raise Refusal(_BAD_REQUEST, str(e)) from None
    always = _is_on(options, "continuous_usage_stats")
    return Asked(
        prompt=prompt,
        most=most,
        is_chat=is_chat,
        ignores_end=_is_on(request, "ignore_eos"),
        streams=streams,
        usage_at_end=_is_on(options, "include_usage"),
        usage_always=always and _is_on(options, "include_usage"),
        wants_ids=_is_on(request, "return_token_ids"),
    )


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _check_fields(request: Mapping[str, Any]) -> None:
    for name, value in request.items():
        if name in _GREEDY and value not in _GREEDY[name]:
            neutral = _GREEDY[name][1]
            raise Refusal(
                _BAD_REQUEST,
                f"{name} is {value!r:.40}: this server takes the likeliest token each time; leave {name} out, or "
                f"send {json.dumps(neutral)}",
            )
        if name not in _GREEDY and name not in _READ and name not in _WITHOUT_EFFECT:
            raise Refusal(
                _BAD_REQUEST, f"this server does not know the field {name!r:.40}: leave it out"
            )


def _is_on(owner: Mapping[str, Any], name: str) -> bool:
    value = owner.get(name)
    if value is not None and not isinstance(value, bool):
        raise Refusal(_BAD_REQUEST, f"{name} is {value!r:.40}, and must be true or false")
    return bool(value)
