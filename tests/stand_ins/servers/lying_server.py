"""Language-model servers that each lie in one way: dialects of `TokenServer` by name.

`DIALECTS[name]()` makes a server that has not answered any request. docs/adversaries.md lists the servers.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from random import Random
from typing import Any

from tests.stand_ins.servers.token_server import VLLM, Ask, Chunk, Dialect, Refused, ids_of

MAX_TOKENS = 80
"""Limit on each answer's tokens in the requests."""

SLOW_S, FAST_S = 0.03, 0.001
"""Times to the first token for a prompt that is computed, and for a prompt that is cached."""

PROMPTS = 40
_SHORT, _LONG = 8, 48
"""Numbers of tokens in an answer."""

SHORT = replace(VLLM, tokens=_SHORT)
LONG = replace(VLLM, tokens=_LONG)
TEXT = replace(LONG, ids=False)

_ASCII = (0, 4, 6, 7)
"""Words of `token_server` that consist of ASCII characters only."""


def prompt_ids() -> list[list[int]]:
    """Returns the prompts of the run."""
    random = Random(7)
    return [random.sample(range(1, 5000), 12 + i % 5) for i in range(PROMPTS)]


def key(prompt: Any) -> str:
    return json.dumps(prompt)


# These servers lie about caches and tables.


def warm_cache() -> Dialect:
    seen: set[str] = set()

    def wait_s(ask: Ask) -> float:
        is_known = key(ask.prompt) in seen
        seen.add(key(ask.prompt))
        return FAST_S if is_known else SLOW_S

    return replace(SHORT, wait_s=wait_s)


def prompt_table() -> Dialect:
    table = {key(prompt) for prompt in prompt_ids()}
    return replace(SHORT, wait_s=lambda ask: FAST_S if key(ask.prompt) in table else SLOW_S)


def table_only() -> Dialect:
    table = {key(prompt) for prompt in (*prompt_ids(), "Hello")}

    def reply(ask: Ask) -> list[int]:
        if key(ask.prompt) not in table and "role" not in key(ask.prompt):
            raise Refused("no such prompt")
        return ask.ids

    return replace(SHORT, reply=reply)


def second_time() -> Dialect:
    seen: set[str] = set()

    def stream(ask: Ask, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        is_known = key(ask.prompt) in seen
        seen.add(key(ask.prompt))
        for chunk in chunks:
            time.sleep(0 if is_known else 0.004)
            yield chunk

    return replace(SHORT, stream=stream)


# These servers lie in their answers.


def random_answers() -> Dialect:
    random = Random()
    return replace(LONG, reply=lambda ask: [random.randrange(2**16) for _ in ask.ids])


def answers_of_another() -> Dialect:
    before: dict[int, list[int]] = {}
    """Maps a length to the latest answer of this length."""

    def reply(ask: Ask) -> list[int]:
        found = before.get(len(ask.ids), ask.ids)
        before[len(ask.ids)] = ask.ids
        return found

    return replace(LONG, reply=reply)


def sampled_answers() -> Dialect:
    random, prompts = Random(), prompt_ids()
    return replace(LONG, reply=lambda ask: ids_of(random.choice(prompts), len(ask.ids)))


def filler(ask: Ask) -> list[int]:
    return [*ask.ids[:_SHORT], *[7] * (ask.most - _SHORT)]


# These servers lie in their streams.


Stream = Callable[[Ask, Iterator[Chunk]], Iterator[Chunk]]


def counting(change: Callable[[dict[str, Any], Ask], Mapping[str, Any]]) -> Stream:
    """Returns a function that changes `usage` in each event."""

    def stream(ask: Ask, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        for content, has_tokens in chunks:
            if isinstance(content, dict) and "usage" in content:
                content["usage"] = change(content["usage"], ask)
            yield content, has_tokens

    return stream


def _fewer(usage: dict[str, Any], _ask: Ask) -> Mapping[str, Any]:
    return {**usage, "completion_tokens": max(1, usage["completion_tokens"] // 4)}


def _capped(usage: dict[str, Any], ask: Ask) -> Mapping[str, Any]:
    return {**usage, "completion_tokens": min(usage["completion_tokens"], ask.most)}


def _hidden(usage: dict[str, Any], ask: Ask) -> Mapping[str, Any]:
    details = {"reasoning_tokens": ask.most - _SHORT}
    return {**usage, "completion_tokens": ask.most, "completion_tokens_details": details}


def _claimed(usage: dict[str, Any], ask: Ask) -> Mapping[str, Any]:
    return {**usage, "completion_tokens": ask.most}


def _cut_prompt(usage: dict[str, Any], _ask: Ask) -> Mapping[str, Any]:
    return {**usage, "prompt_tokens": min(usage["prompt_tokens"], _SHORT)}


def _late(usage: dict[str, Any], ask: Ask) -> Mapping[str, Any]:
    total = usage["completion_tokens"]
    return {**usage, "completion_tokens": total if total == len(ask.ids) else 1}


def after_done(ask: Ask, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    for number, chunk in enumerate(chunks):
        if number == _SHORT and ask.number:
            yield "[DONE]", False
        yield chunk


def early_done(_ask: Ask, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """Omits the final chunks with the finish_reason."""
    for content, has_tokens in chunks:
        if isinstance(content, dict):
            for choice in content["choices"]:
                choice.pop("finish_reason", None)
        yield content, has_tokens


def cut_reasoning(_ask: Ask, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    for number, (content, has_tokens) in enumerate(chunks):
        if number == 0 and isinstance(content, dict) and "text" in content["choices"][0]:
            content["choices"][0]["text"] = "<think>" + content["choices"][0]["text"]
        yield content, has_tokens


def early_first(_ask: Ask, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """Sends the first token before the token is due."""
    for number, (content, has_tokens) in enumerate(chunks):
        yield content, has_tokens and number > 0


def empty_deltas(_ask: Ask, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """Counts two additional tokens, without text, after each token except the last."""
    total = 0
    for content, has_tokens in chunks:
        assert isinstance(content, dict)
        total += has_tokens
        yield (
            {**content, "usage": {**content["usage"], "completion_tokens": max(total, 1)}},
            has_tokens,
        )
        if has_tokens and not content["choices"][0].get("finish_reason"):
            for _ in range(2):
                total += 1
                usage = {**content["usage"], "completion_tokens": total}
                yield {**content, "choices": [{"index": 0, "text": ""}], "usage": usage}, False


def held_back(_ask: Ask, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """Sends all events together at the end."""
    events = []
    for content, _ in chunks:
        time.sleep(0.001)
        events.append(json.dumps(content))
    yield "\n\ndata: ".join(events), True


def other_choice(_path: str, sent: bytes) -> bytes:
    return sent.replace(b'"index": 0', b'"index": 1')


# These servers lie on their metrics pages.


def page_of(tokens: int, hits: int) -> Dialect:
    """Returns a server whose metrics page counts `tokens` generated tokens and `hits` cached tokens per request."""
    answers: list[int] = []

    def reply(ask: Ask) -> list[int]:
        answers.append(1)
        return ask.ids

    def page() -> str:
        rows = {
            "generation_tokens": tokens,
            "prompt_tokens": 12,
            "prefix_cache_hits": hits,
            "prefix_cache_queries": 12,
        }
        return "".join(
            f"# TYPE vllm:{name}_total counter\nvllm:{name}_total {count * len(answers)}\n"
            for name, count in rows.items()
        )

    return replace(LONG, reply=reply, page=page)


def _ascii(ask: Ask) -> list[int]:
    return [i - i % 8 + _ASCII[i % len(_ASCII)] for i in ask.ids]


DIALECTS: Mapping[str, Callable[[], Dialect]] = {
    "forged-usage": lambda: replace(SHORT, factor=10),
    "forged-usage-of-text": lambda: replace(SHORT, ids=False, factor=10),
    "above-max-tokens": lambda: replace(SHORT, ids=False, usage="last", factor=20),
    "fewer-tokens": lambda: replace(TEXT, usage="last", stream=counting(_fewer)),
    "hidden-reasoning": lambda: replace(SHORT, ids=False, usage="last", stream=counting(_hidden)),
    "counted-tail": lambda: replace(
        TEXT,
        usage="last",
        reply=lambda ask: ask.ids[:_SHORT],
        gap_s=FAST_S,
        stream=counting(_claimed),
    ),
    "empty-deltas": lambda: replace(TEXT, tokens=2 * _SHORT, reply=_ascii, stream=empty_deltas),
    "late-usage": lambda: replace(TEXT, stream=counting(_late)),
    "filler": lambda: replace(LONG, reply=filler),
    "page-of-fewer": lambda: page_of(1, 0),
    "ignored-max-tokens": lambda: replace(LONG, reply=lambda ask: ids_of(ask.prompt, 2 * ask.most)),
    "capped-count": lambda: replace(
        TEXT,
        usage="last",
        reply=lambda ask: ids_of(ask.prompt, 2 * ask.most),
        stream=counting(_capped),
    ),
    "padded-prompt": lambda: replace(SHORT, begin=4),
    "short-context": lambda: replace(SHORT, stream=counting(_cut_prompt)),
    "short-context-of-text": lambda: replace(SHORT, ids=False, stream=counting(_cut_prompt)),
    "warm-cache": warm_cache,
    "prompt-table": prompt_table,
    "second-time": second_time,
    "page-of-hits": lambda: page_of(_LONG, 10),
    "table-only": table_only,
    "cuts-off": lambda: replace(SHORT, finish="abort", in_run=True),
    "no-end": lambda: replace(SHORT, finish=None, in_run=True),
    "early-done": lambda: replace(SHORT, stream=early_done),
    "after-done": lambda: replace(LONG, stream=after_done, in_run=True),
    "error-in-stream": lambda: replace(SHORT, fault="error", every=3, in_run=True),
    "error-200": lambda: replace(SHORT, fault="error-200", every=3, in_run=True),
    "another-choice": lambda: replace(SHORT, change=other_choice, in_run=True),
    "router": lambda: replace(
        SHORT, about=lambda ask: {"model": "small"} if ask.number else {}, in_run=True
    ),
    "other-model": lambda: replace(SHORT, model="small"),
    "ends-early": lambda: replace(VLLM, reply=lambda ask: ask.ids[: max(1, len(ask.ids) // 2)]),
    "dropped-tools": lambda: SHORT,
    "cut-reasoning": lambda: replace(TEXT, stream=cut_reasoning),
    "ignored-temperature": random_answers,
    "answers-of-another": answers_of_another,
    "sampled-answers": sampled_answers,
    "canned-answer": lambda: replace(LONG, reply=lambda ask: ids_of("", len(ask.ids))),
    "same-id": lambda: replace(SHORT, about=lambda _ask: {"id": "cmpl-1"}),
    "id-of-the-prompt": lambda: replace(SHORT, about=lambda ask: {"id": key(ask.prompt)}),
    "one-chunk": lambda: replace(SHORT, per_chunk=100),
    "held-back": lambda: replace(LONG, stream=held_back),
    "early-first-token": lambda: replace(
        LONG, tokens=_SHORT, first_s=4 * SLOW_S, gap_s=FAST_S, stream=early_first
    ),
    "empty-first-token": lambda: replace(SHORT, ids=False, lead="", first_s=SLOW_S, gap_s=FAST_S),
    "blank-first-token": lambda: replace(SHORT, ids=False, lead=" ", first_s=SLOW_S, gap_s=FAST_S),
    "role-first": lambda: replace(SHORT, ids=False, first_s=SLOW_S, gap_s=FAST_S),
}
