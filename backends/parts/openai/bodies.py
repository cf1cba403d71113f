"""Reads the fields of requests: fields that the user sets for every request, and the fields of a prompt."""

import json
from collections.abc import Mapping
from typing import Any

import yaml

from harness.errors import ConfigError, one_line

OPTION = "--backend-option body"

_ELSEWHERE = {
    "model": "--backend-option served=NAME",
    "max_tokens": "--backend-option max_tokens=NUMBER",
    "max_completion_tokens": "--backend-option max_tokens=NUMBER",
    "ignore_eos": "--backend-option ignore_eos=on",
    "stream": "--backend-option stream=off",
    "prompt": "--data-dir",
    "messages": "--data-dir",
}
"""Maps a field that `body` must not set to the option that sets it."""

_HARNESS_FIELDS = ("stream_options", "return_token_ids", "input_ids")


def added_fields(text: str) -> dict[str, Any]:
    """Parses a mapping in YAML or JSON. Raises a ConfigError that lists every problem."""
    try:
        fields = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as e:
        raise ConfigError(f"{OPTION} is neither YAML nor JSON: {one_line(e)}") from e
    if not isinstance(fields, dict) or not all(isinstance(name, str) for name in fields):
        raise ConfigError(
            f"{OPTION} is not a mapping of fields: write e.g. body='{{temperature: 0.7, top_p: 0.9}}'"
        )
    problems = [*_problems(fields)]
    try:
        json.dumps(fields, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as e:
        problems.append(f"a value is not valid JSON ({one_line(e)})")
    if problems:
        raise ConfigError(f"{OPTION}: {'; '.join(problems)}")
    return fields


def _problems(fields: Mapping[str, Any]) -> list[str]:
    problems = [
        f"{name} has a separate option: {_ELSEWHERE[name]}" for name in fields if name in _ELSEWHERE
    ]
    problems += [f"{name} is set by the harness" for name in fields if name in _HARNESS_FIELDS]
    if fields.get("n", 1) != 1:
        problems.append("n must be 1: a sample has one answer")
    return problems


def demands_call(fields: Mapping[str, Any]) -> bool:
    """Returns whether the fields of a request force the model to call a tool."""
    choice = fields.get("tool_choice")
    if isinstance(choice, dict):
        choice = choice.get("type")
    return bool(fields.get("tools")) and choice in ("required", "any", "function", "tool")


def stop_bytes(fields: Mapping[str, Any]) -> int:
    """Returns the length of a request's longest stop string in bytes. Servers count the tokens of a stop string, but
    remove it from the text.
    """
    stop = fields.get("stop")
    texts = stop if isinstance(stop, list) else [stop]
    return max((len(text.encode()) for text in texts if isinstance(text, str)), default=0)


def text_bytes(fields: Mapping[str, Any]) -> int:
    """Returns the number of bytes in a prompt's texts; 0 for token ids. A chat's images and sounds do not count."""
    prompt = fields.get("prompt")
    if isinstance(prompt, str):
        return len(prompt.encode())
    messages = fields.get("messages")
    texts: list[Any] = []
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        parts = content if isinstance(content, list) else [{"text": content}]
        texts += [part.get("text") for part in parts if isinstance(part, dict)]
    return sum(len(text.encode()) for text in texts if isinstance(text, str))
