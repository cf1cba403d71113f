"""Decodes streamed replies of OpenAI's API as they arrive. A chunk may contain several tokens or none."""

from collections.abc import Sequence
from typing import Any

from harness.backends.parts.openai.calls import Calls
from harness.backends.parts.openai.counts import CALL_TOKENS, counts_in, usage_of
from harness.backends.parts.openai.reasoning import AnswerStart
from harness.backends.parts.openai.replies import (
    Completion,
    Reading,
    as_answer,
    checked,
    end_of,
    id_of,
    json_in,
    model_of,
    only_choice,
    parts_of,
)
from harness.backends.parts.openai.signs import ChunkCounts, lacks_answer, repeats
from harness.backends.parts.refusals import words
from harness.core.formats.sse import DONE, BadEvents, EventParser
from harness.remote import BadAnswer, CutOff, Refused, Reply, Sign, Usage
from harness.types import Array

_OK = 200


class Streamed:
    """Decodes one stream. Call `feed` with each piece of the body, or only `answer`, which feeds the complete body."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._endpoint = reading.endpoint
        self._events = EventParser()
        self._texts: list[str] = []
        self._calls = Calls()
        self._ids: list[int] | None = None
        self._counts: dict[str, int] = {}
        self._finish: Any = None
        self._done = self._fed = self._fell = False
        self._has_begun = False  # true after a chunk with a visible token
        self._fault: Exception | None = None
        self._tokens = self._shown = 0
        self._has_uncounted = False  # true after a chunk with text but without a count
        self.chunks = 0
        """Number of chunks with tokens, as sent by the server."""
        self.is_exact = False
        """True if the server reports the token count of each chunk. Otherwise, `feed` counts the chunks that contain
        tokens.
        """
        self._counts_of_chunks = ChunkCounts()
        self._has_call = False
        self._named_calls = 0
        self._reply_id = ""
        self._start = AnswerStart()
        self.answer_starts = 0
        """Number of times that the answer after the reasoning has started; 0 before its first visible text."""
        self.usage = Usage()
        self.model = ""
        """The model's name in the last chunk that contains a name."""

    def feed(self, piece: bytes) -> int:
        """Returns the number of tokens so far. Only `answer` raises an error for a fault in the piece."""
        self._fed = True
        if self._fault is None:
            try:
                for event in self._events.feed(piece):
                    self._take(event)
            except (Refused, BadAnswer) as e:
                self._fault = e
            except BadEvents as e:
                self._fault = BadAnswer(f"the stream cannot be read: {e}")
        return self._tokens

    @property
    def first_token(self) -> int | None:
        return self._ids[0] if self._ids else None

    def _take(self, event: bytes) -> None:
        if event == DONE:
            self._done = True
            return
        content = json_in(event, "an event of the stream")
        if self._endpoint is not None and isinstance(content, dict):
            content = self._endpoint.chunk(content)
        content = checked(content)
        self.model = model_of(content, self._reading) or self.model
        self._reply_id = self._reply_id or id_of(content)
        counts = counts_in(content)
        told = counts.get("completion_tokens")
        self._fell |= told is not None and told < self._counts.get("completion_tokens", 0)
        self._counts.update(counts)
        choice = only_choice(content)
        if choice is None:  # this chunk contains only the usage, after the last token
            return
        parts = parts_of(choice)
        text, ids = parts.text, parts.ids
        if self._reading.wants_calls:
            self._calls.add(choice)
        if text:
            start = self._start
            start.take(parts.reasoning, parts.answer)
            self.answer_starts = start.times if start.is_answer else 0
        finish = choice.get("finish_reason")
        if finish and self._finish and finish != self._finish:
            raise BadAnswer(
                f"the stream has the finish_reason {self._finish!r:.40} and then {finish!r:.40}"
            )
        if (text or ids) and self._done:
            raise BadAnswer("the stream has tokens after [DONE]")
        self._finish = finish or self._finish
        if text:
            self._texts.append(text)
        self._has_call |= parts.has_call
        self._named_calls += parts.calls
        if ids is not None:
            self._ids = ids if self._ids is None else self._ids + ids
        count = told if told is not None or self._ids is None else len(self._ids)
        self._counts_of_chunks.take(count, text)
        self._count(count, text)

    def _count(self, count: int | None, text: str) -> None:
        """Counts the tokens of one chunk. White space does not count as a first token, because a server can send white
        space before the answer begins.
        """
        before = self._tokens
        self._has_uncounted |= bool(text) and count is None
        self._has_begun = self._has_begun or bool(self._ids) or _is_visible(text)
        if not self._has_begun:
            self.chunks += bool(text)
            return
        # If some text arrived without a count, a later count covers the whole answer.
        if self._has_uncounted:
            self.is_exact = False
            self._tokens += bool(text)
        elif count is not None:
            self.is_exact = True
            self._tokens = max(self._tokens, count)
            if text and before:
                self._shown += self._tokens - before
        self.chunks += self._tokens > before

    def answer(self, reply: Reply) -> list[Array]:
        """Returns one answer, in the same form as Completion. Raises Refused if the server reports an error, and
        BadAnswer if the reply is invalid or cut off.
        """
        if reply.status != _OK:
            return Completion(self._reading).answer(reply)
        if not self._fed:
            self.feed(bytes(reply.body))
        if self._fault is not None:
            raise self._fault
        if not (self._done or self._finish):
            raise self._no_end(reply)
        if not (self._finish or self._texts or self._ids or self._has_call):
            raise BadAnswer("the stream has no choice with an answer or a finish_reason")
        finish = end_of(self._finish, self._reading)
        text = "".join(self._texts)
        self.usage = usage_of(
            self._counts,
            self._ids,
            text,
            finish,
            fell=self._fell,
            ignores_end=self._reading.ignores_end,
            shown=self._shown,
            silent=self._silent(text),
            spare=CALL_TOKENS * self._named_calls + self._reading.stop_bytes,
        )
        if self._reading.wants_calls:
            text = self._calls.answer(text)
        self.usage = self.usage._replace(
            signs=self._signs(text, finish),
            reply_id=self._reply_id,
            has_call=self._has_call,
            texts_at=self._counts_of_chunks.texts_at if self.usage.silent else (),
        )
        return [as_answer(text, self._ids, self.usage.output, wants_text=self._reading.wants_text)]

    def _silent(self, text: str) -> int:
        """Returns the number of tokens without text after the first text, if the request demands such tokens."""
        if not self._reading.ignores_end:
            return 0
        told = self._counts.get("completion_tokens")
        output = len(self._ids or ()) if told is None else told
        return self._counts_of_chunks.silent(output, text)

    def _signs(self, text: str, finish: str) -> Sequence[Sign]:
        ignores_end = self._reading.ignores_end
        found = self._counts_of_chunks.signs(
            self.usage.output, text, has_call=self._has_call, ignores_end=ignores_end
        )
        if not ignores_end and repeats(self._ids or self._texts):
            found.append(Sign.REPEATED)
        start = self._start
        has_answer = start.is_answer or self._has_call
        if lacks_answer(finish, has_reasoning=start.has_reasoning, has_answer=has_answer):
            found.append(Sign.NO_ANSWER)
        return tuple(found)

    def _no_end(self, reply: Reply) -> Exception:
        begin = bytes(reply.body[:2000]).lstrip()
        # A single JSON object is an error, or the reply of a server that does not stream.
        if begin.startswith(b"{"):
            try:
                checked(json_in(bytes(reply.body), "the reply"))
            except Refused as e:
                return e
            except BadAnswer:
                pass
            return BadAnswer("the reply is not a stream: add --backend-option stream=off")
        if begin and not begin.startswith((b"data", b"event", b"id", b"retry", b":")):
            return BadAnswer(f"the reply is not a stream of events: {words(begin)[:200]}")
        return CutOff("the stream ended before the answer did")


def _is_visible(text: str) -> bool:
    return any(c.isprintable() and c != " " for c in text)


def fields() -> tuple[dict[str, Any], ...]:
    """Returns the fields that request a stream with token counts, in order of preference, because servers accept
    different fields.
    """
    counts = {"include_usage": True}
    each = {**counts, "continuous_usage_stats": True}
    return (
        {"stream": True, "stream_options": each, "return_token_ids": True},
        {"stream": True, "stream_options": each},
        {"stream": True, "stream_options": counts, "return_token_ids": True},
        {"stream": True, "stream_options": counts},
        {"stream": True},
    )
