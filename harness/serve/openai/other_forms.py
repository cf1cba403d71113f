"""Handles requests for OpenAI's Responses API and Anthropic's Messages API as chat completions.

A request is translated to a chat completion request, and the reply has the format of the original API. Only text is
supported. Sources: OpenAI's API reference for /v1/responses and its streaming events, and Anthropic's API reference
for /v1/messages.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.serve.openai.choices import Choice
from harness.serve.openai.fields import refuse
from harness.serve.openai.replies import Answer

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"

_Request = Mapping[str, Any]

_NO_TOOLS = "this server calls functions in chats only: leave it out, or use /v1/chat/completions"


def chat_of_response(request: _Request) -> dict[str, Any]:
    """Returns the equivalent chat completion request. Raises Refusal with the name of the field that is wrong."""
    own = {name: value for name, value in request.items() if value is not None}
    given, instructions = own.pop("input", None), own.pop("instructions", None)
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list):
        refuse("input", f"input is {given!r:.40}, but must be a string or a list of messages")
    text, reasoning = own.pop("text", {}), own.pop("reasoning", {})
    if text not in ({}, {"format": {"type": "text"}}):
        refuse(
            "text", f"text is {text!r:.40}, but this server writes only plain text: leave text out"
        )
    if reasoning:
        refuse("reasoning", "this server reasons in chats only: leave it out")
    if own.pop("tools", None):
        refuse("tools", _NO_TOOLS)
    for name in ("include", "truncation", "tool_choice", "background"):
        own.pop(name, None)
    most = own.pop("max_output_tokens", None)
    begin = [{"role": "system", "content": instructions}] if instructions else []
    return {**own, "messages": [*begin, *given], "max_tokens": most}


def chat_of_message(request: _Request) -> dict[str, Any]:
    """Returns the equivalent chat completion request. Raises Refusal with the name of the field that is wrong."""
    own = {name: value for name, value in request.items() if value is not None}
    if own.pop("tools", None):
        refuse("tools", _NO_TOOLS)
    if "max_tokens" not in own:
        refuse("max_tokens", "max_tokens is missing")
    system, stops = own.pop("system", None), own.pop("stop_sequences", None)
    begin = [{"role": "system", "content": system}] if system else []
    messages = own.pop("messages", None)
    if not isinstance(messages, list):
        refuse("messages", f"messages is {messages!r:.40}, but must be a list of messages")
    return {**own, "messages": [*begin, *messages], "stop": stops}


class _OneAnswer(Answer):
    """A reply with one answer; if the reply is streamed, its events have names."""

    __slots__ = ("_sequence",)

    @property
    def _choice_of_all(self) -> Choice:
        (choice,) = self.choices
        return choice

    @property
    def _number(self) -> str:
        return str(self._about["id"]).rpartition("-")[2]

    def _named(self, events: Iterator[tuple[str, Mapping[str, Any]]]) -> bytes:
        """Returns the bytes of several events. events: the name and content of each event."""
        pieces = []
        for name, content in events:
            text = json.dumps({"type": name, **content}, separators=(",", ":"))
            pieces.append(f"event: {name}\ndata: {text}\n\n")
        return "".join(pieces).encode()


class ResponsesAnswer(_OneAnswer):
    """A reply to a request for /v1/responses."""

    __slots__ = ()

    def _response(self, status: str, output: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        is_cut = status == "incomplete"
        return {
            "id": f"resp_{self._number}",
            "object": "response",
            "created_at": self._about["created"],
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "instructions": None,
            "metadata": {},
            "model": self._about["model"],
            "output": output,
            "parallel_tool_calls": True,
            "temperature": 0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "usage": self._response_usage() if output else None,
        }

    def _response_usage(self) -> Mapping[str, Any]:
        usage = self._usage()
        cached = usage.get("prompt_tokens_details", {"cached_tokens": 0})
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": cached,
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        }

    def _status(self) -> str:
        return "incomplete" if self._choice_of_all.finish_reason == "length" else "completed"

    def _part(self, text: str) -> Mapping[str, Any]:
        return {"type": "output_text", "text": text, "annotations": []}

    def _item(self, status: str, parts: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        about = {"type": "message", "id": f"msg_{self._number}", "role": "assistant"}
        return {**about, "status": status, "content": parts}

    def _content(self) -> Mapping[str, Any]:
        status = self._status()
        return self._response(status, [self._item(status, [self._part(self._choice_of_all.text)])])

    def _numbered(
        self, events: Iterator[tuple[str, Mapping[str, Any]]]
    ) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for name, content in events:
            yield f"response.{name}", {**content, "sequence_number": self._sequence}
            self._sequence += 1

    @property
    def _place(self) -> Mapping[str, Any]:
        return {"item_id": f"msg_{self._number}", "output_index": 0, "content_index": 0}

    def _first_events(self) -> bytes:
        self._sequence = 0
        response = {"response": self._response("in_progress", [])}
        item = {"output_index": 0, "item": self._item("in_progress", [])}
        events = (
            ("created", response),
            ("in_progress", response),
            ("output_item.added", item),
            ("content_part.added", {**self._place, "part": self._part("")}),
        )
        return self._named(self._numbered(iter(events)))

    def _next_events(self, choice: Choice) -> bytes:
        text = choice.next_text()
        if not text:
            return b""
        delta = {**self._place, "delta": text, "logprobs": []}
        return self._named(self._numbered(iter((("output_text.delta", delta),))))

    def _last_events(self) -> bytes:
        text, status = self._choice_of_all.text, self._status()
        part = self._part(text)
        events = (
            ("output_text.done", {**self._place, "text": text, "logprobs": []}),
            ("content_part.done", {**self._place, "part": part}),
            ("output_item.done", {"output_index": 0, "item": self._item(status, [part])}),
            (status, {"response": self._content()}),
        )
        return self._named(self._numbered(iter(events)))


class MessagesAnswer(_OneAnswer):
    """A reply to a request for /v1/messages."""

    __slots__ = ()

    def _reply(self, texts: Sequence[str], **end: Any) -> Mapping[str, Any]:
        usage = self._usage()
        cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
        return {
            "id": f"msg_{self._number}",
            "type": "message",
            "role": "assistant",
            "model": self._about["model"],
            "content": [{"type": "text", "text": text} for text in texts],
            "stop_reason": None,
            "stop_sequence": None,
            **end,
            "usage": {
                "input_tokens": usage["prompt_tokens"] - cached,
                "cache_read_input_tokens": cached,
                "cache_creation_input_tokens": 0,
                "output_tokens": usage["completion_tokens"],
            },
        }

    def _end(self) -> dict[str, Any]:
        choice = self._choice_of_all
        if isinstance(choice.stop_reason, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": choice.stop_reason}
        reason = "max_tokens" if choice.finish_reason == "length" else "end_turn"
        return {"stop_reason": reason, "stop_sequence": None}

    def _content(self) -> Mapping[str, Any]:
        return self._reply([self._choice_of_all.text], **self._end())

    def _first_events(self) -> bytes:
        block = {"index": 0, "content_block": {"type": "text", "text": ""}}
        events = (("message_start", {"message": self._reply([])}), ("content_block_start", block))
        return self._named(iter(events))

    def _next_events(self, choice: Choice) -> bytes:
        text = choice.next_text()
        if not text:
            return b""
        delta = {"index": 0, "delta": {"type": "text_delta", "text": text}}
        return self._named(iter((("content_block_delta", delta),)))

    def _last_events(self) -> bytes:
        usage = {"output_tokens": self._usage()["completion_tokens"]}
        events: tuple[tuple[str, Mapping[str, Any]], ...] = (
            ("content_block_stop", {"index": 0}),
            ("message_delta", {"delta": self._end(), "usage": usage}),
            ("message_stop", {}),
        )
        return self._named(iter(events))
