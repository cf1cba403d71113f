"""Translates OpenAI's Responses API and Anthropic's Messages API into chunks of chat completions, which the readers of
chat completions accept. This module has no side effects.

Sources: OpenAI's API reference, "Streaming events" of /v1/responses; Anthropic's API reference, "Streaming messages".
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from harness.errors import ConfigError
from harness.remote import Headers

Content = Mapping[str, Any]


class Endpoint(NamedTuple):
    """An endpoint other than OpenAI's completions endpoints."""

    path: str
    headers: Headers
    fields: Mapping[str, Any]
    """Fields of each request other than the model and the user's fields."""
    bound: str
    """Name of the field that limits the tokens of an answer."""
    least_tokens: int
    """The smallest limit that the API accepts."""
    encode: Callable[[bytes], bytes]
    """Turns a prompt's fields into the endpoint's fields; the prompt dataset writes the fields as JSON without the
    opening `{`.
    """
    chunk: Callable[[Content], Content]
    """Converts an event of a stream to a chunk of a chat completion."""
    whole: Callable[[Content], Content]
    """Converts a reply to a chat completion."""


_NOTHING: Content = {"choices": []}


def _chunk(delta: Content, finish_reason: str | None = None) -> Content:
    return {"choices": [{"delta": delta, "finish_reason": finish_reason}]}


def _message(message: Content, finish_reason: str | None, usage: Content, model: object) -> Content:
    choice = {"message": message, "finish_reason": finish_reason}
    return {"choices": [choice], "usage": usage, "model": model}


def _parsed(fields: bytes) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(b"{" + fields)
    if isinstance(content.get("prompt"), list):
        raise ConfigError(
            "this endpoint takes text and messages, but the prompts are token ids: drop --backend-option endpoint"
        )
    return content


def _joined(content: Content) -> bytes:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()[1:]


# Responses

_TEXTS = {
    "response.output_text.delta": "content",
    "response.refusal.delta": "refusal",
    "response.reasoning_text.delta": "reasoning",
    "response.reasoning_summary_text.delta": "reasoning",
}
_ENDS = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")


def _encode_input(fields: bytes) -> bytes:
    names = {"messages": "input", "prompt": "input", "max_tokens": "max_output_tokens"}
    return _joined({names.get(name, name): value for name, value in _parsed(fields).items()})


def _response_usage(response: Content) -> Content:
    usage = response.get("usage")
    if not isinstance(usage, dict):
        return {}
    return {
        "prompt_tokens": usage.get("input_tokens"),
        "completion_tokens": usage.get("output_tokens"),
        "total_tokens": usage.get("total_tokens"),
        "prompt_tokens_details": usage.get("input_tokens_details"),
        "completion_tokens_details": usage.get("output_tokens_details"),
    }


def _response_end(response: Content) -> str:
    """Returns the finish_reason that the chat completion gets."""
    if response.get("status") != "incomplete":
        return "stop" if response.get("status") == "completed" else str(response.get("status"))
    details = response.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    return "length" if reason == "max_output_tokens" else str(reason or "incomplete")


def _response_chunk(event: Content) -> Content:
    kind = event.get("type")
    if kind in _TEXTS:
        return _chunk({_TEXTS[kind]: event.get("delta")})
    if kind == "response.function_call_arguments.delta":
        return _chunk({"tool_calls": [{"function": {"arguments": event.get("delta")}}]})
    if kind in _ENDS:
        response = event.get("response")
        if not isinstance(response, dict):
            return _NOTHING
        if response.get("error"):
            return {"error": response["error"]}
        end = _chunk({}, _response_end(response))
        return {**end, "usage": _response_usage(response), "model": response.get("model")}
    return event if event.get("error") or kind == "error" else _NOTHING


def _response_whole(reply: Content) -> Content:
    if reply.get("error") or not isinstance(reply.get("output"), list):
        return reply
    message: dict[str, Any] = {"content": "", "reasoning": "", "tool_calls": []}
    for item in filter(lambda one: isinstance(one, dict), reply["output"]):
        if item.get("type") == "function_call":
            message["tool_calls"].append({"function": item})
        key = "reasoning" if item.get("type") == "reasoning" else "content"
        message[key] += _texts(item.get("content") or item.get("summary"))
    return _message(message, _response_end(reply), _response_usage(reply), reply.get("model"))


def _texts(parts: object) -> str:
    if not isinstance(parts, list):
        return ""
    texts = [part.get("text") or part.get("refusal") for part in parts if isinstance(part, dict)]
    return "".join(text for text in texts if isinstance(text, str))


# Messages

_DELTAS = {
    "text_delta": ("content", "text"),
    "thinking_delta": ("reasoning", "thinking"),
}


def _encode_messages(fields: bytes) -> bytes:
    """Moves messages of the role `system` into the field `system`, and turns a prompt into a message."""
    if fields.startswith(b'"messages":') and b'"role":"system"' not in fields:
        return fields
    content = _parsed(fields)
    if "prompt" in content:
        content["messages"] = [{"role": "user", "content": content.pop("prompt")}]
    messages: Sequence[Any] = content["messages"]
    system = [m["content"] for m in messages if m["role"] == "system"]
    content["messages"] = [m for m in messages if m["role"] != "system"]
    if system:
        content["system"] = "\n\n".join(map(str, system))
    return _joined(content)


def _message_usage(usage: object, *, with_output: bool) -> Content:
    if not isinstance(usage, dict):
        return {}
    counts: dict[str, Any] = {}
    if "input_tokens" in usage:
        parts = [
            usage.get(f"{name}input_tokens") or 0 for name in ("", "cache_read_", "cache_creation_")
        ]
        if all(type(part) is int for part in parts):
            counts["prompt_tokens"] = sum(parts)
            counts["prompt_tokens_details"] = {"cached_tokens": parts[1]}
    if with_output:
        counts["completion_tokens"] = usage.get("output_tokens")
    return counts


def _message_chunk(event: Content) -> Content:
    kind, delta = event.get("type"), event.get("delta")
    if kind == "message_start":
        message = event.get("message")
        if not isinstance(message, dict):
            return _NOTHING
        usage = _message_usage(message.get("usage"), with_output=False)
        return {**_NOTHING, "usage": usage, "model": message.get("model")}
    if kind == "content_block_delta" and isinstance(delta, dict):
        if delta.get("type") == "input_json_delta":
            arguments = delta.get("partial_json")
            return _chunk({"tool_calls": [{"function": {"arguments": arguments}}]})
        key, source = _DELTAS.get(str(delta.get("type")), ("content", ""))
        return _chunk({key: delta.get(source)}) if source else _NOTHING
    if kind == "message_delta" and isinstance(delta, dict):
        usage = _message_usage(event.get("usage"), with_output=True)
        return {**_chunk({}, delta.get("stop_reason")), "usage": usage}
    return event if event.get("error") or kind == "error" else _NOTHING


def _message_whole(reply: Content) -> Content:
    if reply.get("error") or not isinstance(reply.get("content"), list):
        return reply
    message: dict[str, Any] = {"content": "", "reasoning": "", "tool_calls": []}
    for block in filter(lambda one: isinstance(one, dict), reply["content"]):
        if block.get("type") == "tool_use":
            call = {"name": block.get("name"), "arguments": json.dumps(block.get("input"))}
            message["tool_calls"].append({"function": call})
        elif block.get("type") == "thinking":
            message["reasoning"] += str(block.get("thinking") or "")
        else:
            message["content"] += _texts([block])
    usage = _message_usage(reply.get("usage"), with_output=True)
    return _message(message, reply.get("stop_reason"), usage, reply.get("model"))


_JSON = ("Content-Type", "application/json")

ENDPOINTS: Mapping[str, Endpoint] = {
    "responses": Endpoint(
        "/v1/responses",
        (_JSON,),
        {"store": False},
        "max_output_tokens",
        16,
        _encode_input,
        _response_chunk,
        _response_whole,
    ),
    "messages": Endpoint(
        "/v1/messages",
        (_JSON, ("anthropic-version", "2023-06-01")),
        {},
        "max_tokens",
        1,
        _encode_messages,
        _message_chunk,
        _message_whole,
    ),
}
"""Maps a value of --backend-option endpoint to the endpoint."""
