"""Writes replies as OpenAI's API has them, with the token ids of vLLM where they are asked for."""

import json
from collections.abc import Mapping, Sequence
from time import time, time_ns
from typing import Any

from harness.errors import type_and_text
from harness.models.generation.engine import Answering
from harness.models.generation.prompts import Prompts
from harness.serve.answers import JSON, answer_head, connection_header, json_answer
from harness.serve.loop import Later
from harness.serve.openai.asked import Asked
from harness.serve.requests import Head

_STREAM = {"Content-Type": "text/event-stream; charset=utf-8", "Transfer-Encoding": "chunked"}
_DONE = b"data: [DONE]\n\n"
_LAST_CHUNK = b"0\r\n\r\n"
_TIMES = b"Server-Timing: queue;dur=%.6f, compute;dur=%.6f, total;dur=%.6f\r\n\r\n"
"""In ms: until the prompt is computed, from then to the last token, and from arrival to sending."""


def _chunk(content: bytes) -> bytes:
    """Of HTTP's chunked coding."""
    return b"%x\r\n%b\r\n" % (len(content), content)


class Answer(Later):
    """The reply to one request while it is generated."""

    __slots__ = ("_about", "_arrived_ns", "_asked", "_head", "_prompts", "_told", "begun_ns", "one")

    def __init__(
        self, asked: Asked, head: Head, model: str, number: int, prompts: Prompts, arrived_ns: int
    ) -> None:
        """number: of the request. arrived_ns: its last byte, wall clock."""
        super().__init__()
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
        self._asked, self._head, self._prompts = asked, head, prompts
        self._arrived_ns = self.begun_ns = arrived_ns
        """`begun_ns` is set to the beginning of the step that computes the prompt."""
        self._told = 0  # tokens that were sent
        self.one = Answering(asked.prompt, asked.most, ignores_end=asked.ignores_end)

    def part(self) -> bytes | None:
        """What is to be sent after a step; None where nothing is."""
        if self._asked.streams:
            return self._events()
        return self._whole() if self.one.finish_reason else None

    def failure(self, error: BaseException) -> bytes:
        """The end of a reply that cannot be completed."""
        text = f"the model cannot answer: {type_and_text(error)}"
        if self._told:
            return _chunk(_event({"error": {"message": text, "code": 500}})) + _LAST_CHUNK
        return refused(self._head, 500, text)

    def _whole(self) -> bytes:
        one = self.one
        choice: dict[str, Any] = {
            "index": 0,
            **self._text(one.tokens, whole=True),
            "logprobs": None,
        }
        choice["finish_reason"] = one.finish_reason
        if self._asked.wants_ids:
            choice |= {"token_ids": one.tokens, "prompt_token_ids": [*one.prompt]}
        body = json.dumps({**self._about, "choices": [choice], "usage": self._usage()}).encode()
        head = answer_head(200, {"Content-Type": JSON, "Content-Length": len(body)})
        # A clock that was set back in between makes no time negative.
        now_ns = time_ns()
        spans = (
            (self._arrived_ns, self.begun_ns),
            (self.begun_ns, now_ns),
            (self._arrived_ns, now_ns),
        )
        times = _TIMES % tuple(max(0, end - begin) / 1e6 for begin, end in spans)
        return head + connection_header(self._head) + times + body

    def _events(self) -> bytes:
        one, asked = self.one, self._asked
        first = b"" if self._told else self._opening()
        new = one.tokens[self._told :]
        self._told = len(one.tokens)
        events = _event(self._delta(new, one.finish_reason or None))
        if not one.finish_reason:
            return first + _chunk(events)
        if asked.usage_at_end:
            events += _event({**self._about, "choices": [], "usage": self._usage()})
        return first + _chunk(events + _DONE) + _LAST_CHUNK

    def _opening(self) -> bytes:
        """The head of the reply, and of a chat the chunk that has the role alone."""
        head = answer_head(200, _STREAM) + connection_header(self._head) + b"\r\n"
        if not self._asked.is_chat:
            return head
        role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        usage = {"usage": self._usage(0)} if self._asked.usage_always else {}
        return head + _chunk(_event({**self._about, "choices": [role], **usage}))

    def _delta(self, new: Sequence[int], finish_reason: str | None) -> Mapping[str, Any]:
        choice: dict[str, Any] = {"index": 0, **self._text(new, whole=False), "logprobs": None}
        choice["finish_reason"] = finish_reason
        if self._asked.wants_ids:
            choice["token_ids"] = new
        usage = {"usage": self._usage()} if self._asked.usage_always else {}
        return {**self._about, "choices": [choice], **usage}

    def _text(self, tokens: Sequence[int], *, whole: bool) -> Mapping[str, Any]:
        text = self._prompts.text(tokens)
        if not self._asked.is_chat:
            return {"text": text}
        return (
            {"message": {"role": "assistant", "content": text}}
            if whole
            else {"delta": {"content": text}}
        )

    def _usage(self, tokens: int | None = None) -> Mapping[str, int]:
        """tokens: of the answer, by default all so far."""
        given, got = len(self.one.prompt), len(self.one.tokens) if tokens is None else tokens
        return {"prompt_tokens": given, "completion_tokens": got, "total_tokens": given + got}


def refused(head: Head, status: int, text: str, headers: Mapping[str, str] | None = None) -> bytes:
    """An error as OpenAI's API has it."""
    error = {"message": text, "type": "invalid_request_error" if status < 500 else "server_error"}
    return json_answer(
        {"error": {**error, "code": status}}, connection_header(head), status, headers
    )


def _event(content: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"
