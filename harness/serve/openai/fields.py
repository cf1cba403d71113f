"""Checks the fields of a request, and refuses unsupported fields that would change the answer."""

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from harness.serve.answers import Refusal

BAD_REQUEST = 400

MOST_CHOICES = 1024
"""A request for more answers is refused, because it could delay all other requests. OpenAI's API allows 128 answers per
prompt.
"""

_READ = (
    *("model", "prompt", "messages", "max_tokens", "max_completion_tokens", "min_tokens"),
    *("ignore_eos", "stop", "stop_token_ids", "include_stop_str_in_output", "n", "echo"),
    *("stream", "stream_options", "return_token_ids"),
    *("tools", "tool_choice", "chat_template_kwargs", "separate_reasoning"),
)
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "temperature": (0,),
    "suffix": ("",),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "use_beam_search": (False,),
    "bad_words": ([],),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "documents": ([],),
    "continue_final_message": (False,),
    "return_tokens_as_token_ids": (False,),
    "logits_processors": ([],),
    "kv_transfer_params": ({},),
    "vllm_xargs": ({},),
    "mm_processor_kwargs": ({},),
}
"""Maps each field that can change an answer to the values that leave the answer unchanged. The value null also leaves
the answer unchanged.
"""

_NUMBERS = ("temperature", "top_p", "top_k", "min_p", "seed", "best_of", "length_penalty")
_WITHOUT_EFFECT = (
    *("top_p", "top_k", "min_p", "seed", "best_of", "length_penalty", "early_stopping"),
    *("user", "store", "metadata", "service_tier", "safety_identifier", "request_id", "priority"),
    *("prompt_cache_key", "prompt_cache_retention", "cache_salt", "prediction"),
    *("parallel_tool_calls", "reasoning_effort", "include_reasoning", "verbosity"),
    *("skip_special_tokens", "spaces_between_special_tokens", "add_special_tokens"),
    *("add_generation_prompt", "chat_template_content_format"),
)
"""Fields that the server ignores, because it always selects the most likely token and uses no chat template."""


def check_fields(request: Mapping[str, Any]) -> None:
    """Raises Refusal with the name of the field that is wrong."""
    for name, value in request.items():
        if value is None or name in _READ:
            continue
        if name in _NUMBERS and (isinstance(value, bool) or not isinstance(value, int | float)):
            refuse(name, f"{name} is {value!r:.40}, but must be a number")
        if name in _NEUTRAL:
            if not _is_neutral(name, value, request):
                refuse(
                    name,
                    f"{name} is {value!r:.40}: this server always takes the likeliest token; leave {name} out, or "
                    f"send {json.dumps(_NEUTRAL[name][0])}",
                )
        elif name not in _WITHOUT_EFFECT:
            refuse(name, f"this server does not support the field {name!r:.40}: leave it out")


def _is_neutral(name: str, value: object, request: Mapping[str, Any]) -> bool:
    if name == "temperature" and request.get("top_k") == 1:
        return True  # the temperature has no effect, because only one token is a candidate
    if name == "logit_bias" and isinstance(value, dict):
        return all(bias == 0 for bias in value.values())
    if name == "logprobs":
        # 0 differs from false, because 0 requests the probability of each token
        return value is False
    return value in _NEUTRAL[name]


def refuse(name: str, text: str) -> NoReturn:
    """Raises Refusal. name: the field that is wrong."""
    raise Refusal(BAD_REQUEST, text, param=name)


def is_on(owner: Mapping[str, Any], name: str) -> bool:
    """Reads a field that is true, false or null. Returns False if the field is null or missing."""
    value = owner.get(name)
    if value is not None and not isinstance(value, bool):
        refuse(name, f"{name} is {value!r:.40}, but must be true or false")
    return bool(value)


def whole_number(owner: Mapping[str, Any], name: str, least: int, most: int) -> int:
    """Reads a field that is a whole number or null. Returns `least` if the field is null or missing."""
    value = owner.get(name)
    if value is None:
        return least
    if type(value) is not int or not least <= value <= most:
        refuse(
            name, f"{name} is {value!r:.40}, but must be a whole number from {least} to {most:,}"
        )
    return value


def texts(owner: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Reads a field that is a string, a list of strings or null. Raises Refusal for empty strings."""
    value = owner.get(name)
    found = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(text, str) and text for text in found):
        refuse(name, f"{name} is {value!r:.40}, but must be a string or a list of strings")
    return tuple(found)


def tokens(owner: Mapping[str, Any], name: str) -> frozenset[int]:
    """Reads a field that is a list of token ids or null."""
    value = owner.get(name)
    if value is not None and not (
        isinstance(value, list) and all(type(token) is int for token in value)
    ):
        refuse(name, f"{name} is {value!r:.40}, but must be a list of token ids")
    return frozenset(value or ())
