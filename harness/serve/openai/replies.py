"""Writes replies in the format of OpenAI's API. If a request asks for token IDs, adds them as vLLM does."""

import json
from collections.abc import Mapping
from time import time, time_ns
from typing import Any

from harness.errors import type_and_text
from harness.models.generation.prompts import Prompts
from harness.serve.answers import CLOSE, JSON, answer_head, connection_header, json_answer
from harness.serve.loop import Later
from harness.serve.openai.asked import Asked
from harness.serve.openai.choices import Choice
from harness.serve.requests import Head

_STREAM = {"Content-Type": "text/event-stream; charset=utf-8"}
_CHUNKED = {**_STREAM, "Transfer-Encoding": "chunked"}
_TAGS = "<think>", "</think>"
_DONE = b"data: [DONE]\n\n"
_TIMES = b"Server-Timing: queue;dur=%.6f, compute;dur=%.6f, total;dur=%.6f\r\n\r\n"
"""Header with times in ms: from arrival to the step that computes the prompt (queue), from that step to sending
(compute), and from arrival to sending (total).
"""


class Answer(Later):
    """A reply to one request, which the model is still generating."""

    __slots__ = (
        *("_about", "_asked", "_has_begun", "_head", "_keeps_prefixes"),
        *("arrived_ns", "begun_ns", "choices", "first_ns"),
    )

    def __init__(
        self,
        asked: Asked,
        head: Head,
        model: str,
        number: int,
        prompts: Prompts,
        arrived_ns: int,
        *,
        keeps_prefixes: bool = False,
    ) -> None:
        """number: the request's number. arrived_ns: wall-clock time at which the request's last byte arrived.

        keeps_prefixes: whether a prefix cache exists, so that `usage` reports the cached tokens.
        """
        super().__init__()
        self.closes = asked.streams and head.is_old  # HTTP/1.0 does not support chunks
        kind, prefix = (
            ("chat.completion", "chatcmpl") if asked.is_chat else ("text_completion", "cmpl")
        )
        if asked.is_chat and asked.streams:
            kind += ".chunk"
        self._about = {
            "id": f"{prefix}-{number}",
            "object": kind,
            "created": int(time()),
            "model": model,
        }
        self._asked, self._head, self._keeps_prefixes = asked, head, keeps_prefixes
        self.arrived_ns = arrived_ns
        self.begun_ns = self.first_ns = 0
        """Start and end of the step that computes the first prompt, or 0 before this step."""
        self._has_begun = False
        self.choices = [
            Choice(asked, index, prompts) for index in range(len(asked.prompts) * asked.copies)
        ]

    @property
    def is_complete(self) -> bool:
        return all(choice.finish_reason for choice in self.choices)

    def part(self, choice: Choice) -> bytes | None:
        """Returns the bytes to send after a step that generated a token for `choice`, or None if no bytes are due."""
        if self._asked.streams:
            return self._events(choice) or None
        return self._whole() if self.is_complete else None

    def failure(self, error: BaseException) -> bytes:
        """Returns the end of a reply that cannot be completed."""
        text = f"the model cannot answer: {type_and_text(error)}"
        if self._has_begun:
            return self._chunk(_event(problem(500, text))) + self._last_chunk()
        return refused(self._head, 500, text)

    def _whole(self) -> bytes:
        body = json.dumps(self._content()).encode()
        head = answer_head(200, {"Content-Type": JSON, "Content-Length": len(body)})
        # The limits below prevent negative times, which would occur if the clock was set back during the request.
        now_ns = time_ns()
        spans = (
            (self.arrived_ns, self.begun_ns),
            (self.begun_ns, now_ns),
            (self.arrived_ns, now_ns),
        )
        times = _TIMES % tuple(max(0, end - begin) / 1e6 for begin, end in spans)
        return head + connection_header(self._head) + times + body

    def _content(self) -> Mapping[str, Any]:
        """Returns the complete reply."""
        choices = [self._choice(choice) for choice in self.choices]
        return {**self._about, "choices": choices, "usage": self._usage()}

    def _choice(self, choice: Choice) -> Mapping[str, Any]:
        text = {"message": self._message(choice)} if self._asked.is_chat else {"text": choice.text}
        ids: dict[str, Any] = {}
        if self._asked.wants_ids:
            ids = {"token_ids": choice.tokens, "prompt_token_ids": [*choice.one.prompt]}
        return {**self._described(choice, text), **ids}

    def _message(self, choice: Choice) -> Mapping[str, Any]:
        asked = self._asked
        message: dict[str, Any] = {"role": "assistant", "content": choice.text}
        if asked.reasons and asked.has_tags:
            end = _TAGS[1] if choice.draft is not None else ""
            message["content"] = f"{_TAGS[0]}{choice.thought}{end}{choice.text}"
        elif asked.reasons:
            message["reasoning_content"] = choice.thought
        if asked.call is not None:
            call = asked.call
            arguments = f"{call.begin}{call.escaped(choice.text)}{call.end}"
            message |= {"content": None, "tool_calls": [self._call(choice, arguments)]}
        return message

    def _call(self, choice: Choice, arguments: str) -> dict[str, Any]:
        assert self._asked.call is not None
        return {
            "id": f"call-{self._about['id']}-{choice.index}",
            "type": "function",
            "function": {"name": self._asked.call.name, "arguments": arguments},
        }

    def _described(self, choice: Choice, text: Mapping[str, Any]) -> Mapping[str, Any]:
        return {
            "index": choice.index,
            **text,
            "logprobs": None,
            "finish_reason": self._finish_reason(choice),
            "stop_reason": choice.stop_reason,
        }

    def _finish_reason(self, choice: Choice) -> str | None:
        call = self._asked.call
        if call is not None and not call.is_named and choice.finish_reason == "stop":
            return "tool_calls"
        return choice.finish_reason

    def _events(self, choice: Choice) -> bytes:
        first = b"" if self._has_begun else self._opening() + self._chunk(self._first_events())
        self._has_begun = True
        events = self._next_events(choice)
        if not self.is_complete:
            return first + self._chunk(events)
        return first + self._chunk(events + self._last_events()) + self._last_chunk()

    def _opening(self) -> bytes:
        """Returns the head of the reply."""
        if self.closes:
            return answer_head(200, _STREAM) + CLOSE + b"\r\n"
        return answer_head(200, _CHUNKED) + connection_header(self._head) + b"\r\n"

    def _next_events(self, choice: Choice) -> bytes:
        """Returns the events for the new token of a choice."""
        return _event(self._delta(choice))

    def _last_events(self) -> bytes:
        """Returns the events after the last token."""
        if not self._asked.usage_at_end:
            return _DONE
        return _event({**self._about, "choices": [], "usage": self._usage()}) + _DONE

    def _first_events(self) -> bytes:
        """Returns the events before the first token. For a chat, these events are chunks that contain only the role."""
        if not self._asked.is_chat:
            return b""
        delta = {"delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        usage = {}
        if self._asked.usage_always:
            usage = {"usage": _usage(len(self.choices[0].one.prompt), 0)}
        roles = [
            _event({**self._about, "choices": [{"index": choice.index, **delta}], **usage})
            for choice in self.choices
        ]
        return b"".join(roles)

    def _delta(self, choice: Choice) -> Mapping[str, Any]:
        one, is_first = choice.one, not choice.tokens_sent
        content = (
            {"delta": self._parts(choice, is_first=is_first)}
            if self._asked.is_chat
            else {"text": choice.next_text()}
        )
        described = {**self._described(choice, content)}
        tokens = choice.tokens
        if self._asked.wants_ids:
            described["token_ids"] = tokens[choice.tokens_sent :]
        choice.tokens_sent = len(tokens)
        usage = {}
        if self._asked.usage_always:
            cached = self._cached(one.cached)
            usage = {"usage": _usage(len(one.prompt), len(tokens), cached, choice.reasoning_tokens)}
        return {**self._about, "choices": [described], **usage}

    def _parts(self, choice: Choice, *, is_first: bool) -> Mapping[str, Any]:
        """Returns the delta of a chat completion: the unsent parts of the draft, the answer and the function call."""
        asked = self._asked
        delta: dict[str, Any] = {}
        thought, text = choice.next_thought(), choice.next_text()
        if asked.reasons and asked.has_tags:
            begin = _TAGS[0] if is_first else ""
            end = _TAGS[1] if choice.draft is not None and not choice.one.tokens else ""
            text = f"{begin}{thought}{end}{text}"
        elif thought:
            delta["reasoning_content"] = thought
        if asked.call is None:
            return delta if delta and not text else {**delta, "content": text}
        if choice.is_drafting or (choice.draft is not None and not choice.one.tokens):
            return delta
        call, has_begun = asked.call, not is_first and len(choice.one.tokens) > 1
        end = call.end if choice.finish_reason else ""
        pieces = f"{'' if has_begun else call.begin}{call.escaped(text)}{end}"
        part = {"function": {"arguments": pieces}} if has_begun else self._call(choice, pieces)
        return {**delta, "tool_calls": [{"index": 0, **part}]}

    def tokens(self) -> tuple[int, int]:
        """Returns the number of tokens in the prompts, and the number in the answers so far.

        A prompt with several answers counts once.
        """
        prompts = sum(map(len, self._asked.prompts))
        return prompts, sum(len(choice.tokens) for choice in self.choices)

    def _usage(self) -> Mapping[str, Any]:
        firsts = self.choices[:: self._asked.copies]
        cached = self._cached(sum(choice.one.cached for choice in firsts))
        return _usage(*self.tokens(), cached, sum(one.reasoning_tokens for one in self.choices))

    def _cached(self, tokens: int) -> int | None:
        return tokens if self._keeps_prefixes else None

    def _chunk(self, content: bytes) -> bytes:
        """Returns part of a stream as an HTTP/1.1 chunk, or unchanged for HTTP/1.0."""
        if self.closes or not content:  # because an empty chunk would end the stream
            return content
        return b"%x\r\n%b\r\n" % (len(content), content)

    def _last_chunk(self) -> bytes:
        return b"" if self.closes else b"0\r\n\r\n"


def _usage(
    prompt: int, answer: int, cached: int | None = None, reasoning: int = 0
) -> Mapping[str, Any]:
    """Returns the field `usage`. cached: number of prompt tokens found in the cache, or None if the server has no
    cache.
    """
    details: dict[str, Any] = {}
    if cached is not None:
        details["prompt_tokens_details"] = {"cached_tokens": cached}
    if reasoning:
        details["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
        **details,
    }


def problem(status: int, text: str, param: str | None = None) -> Mapping[str, Any]:
    """Returns an error in the format of OpenAI's API. The error's code is the HTTP status, as in vLLM. param: the field
    that is wrong.
    """
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": text, "type": kind, "param": param, "code": status}}


def refused(
    head: Head,
    status: int,
    text: str,
    headers: Mapping[str, str] | None = None,
    param: str | None = None,
) -> bytes:
    return json_answer(problem(status, text, param), connection_header(head), status, headers)


def _event(content: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"
