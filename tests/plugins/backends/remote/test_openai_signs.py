"""Signs of dishonest answers: each sign appears in one stream or reply, and an honest answer shows none."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from harness.backends.parts.openai.bodies import demands_call, stop_bytes, text_bytes
from harness.backends.parts.openai.replies import Completion, Reading
from harness.backends.parts.openai.signs import repeats
from harness.backends.parts.openai.streams import Streamed
from harness.remote import Reply, Sign, Usage

WORDS = [f" word{i}" for i in range(40)]


def chunk(text: str, count: int | None = None, finish: str | None = None) -> dict[str, Any]:
    usage = {} if count is None else {"usage": {"prompt_tokens": 3, "completion_tokens": count}}
    choice = {"index": 0, "text": text, "finish_reason": finish}
    return {"id": "cmpl-7", "choices": [choice], **usage}


def streamed(events: Sequence[dict[str, Any]], **reading: Any) -> Usage:
    """Returns the usage of a stream whose last event is the end of the answer."""
    reader = Streamed(Reading(**reading))
    for event in events:
        reader.feed(f"data: {json.dumps(event)}\n\n".encode())
    reader.feed(b"data: [DONE]\n\n")
    reader.answer(Reply(200, b"", memoryview(b"")))
    return reader.usage._replace(signs=[*reader.usage.signs])


def honest(words: Sequence[str] = WORDS, finish: str = "stop") -> list[dict[str, Any]]:
    found = [chunk(word, number) for number, word in enumerate(words, 1)]
    found[-1]["choices"][0]["finish_reason"] = finish
    return found


def test_an_honest_stream_has_no_sign() -> None:
    usage = streamed(honest())
    assert (usage.signs, usage.reply_id, usage.has_call) == ([], "cmpl-7", False)


def test_more_chunks_than_tokens_are_a_sign() -> None:
    events = [chunk(word) for word in WORDS]
    assert streamed([*events, chunk("", 33, "stop")]).signs == []
    assert streamed([*events, chunk("", 30, "stop")]).signs == [Sign.FEWER]


def test_tokens_of_empty_chunks_are_a_sign_if_the_text_is_ascii() -> None:
    events = [
        chunk(word if place == 0 else "", 3 * number + place + 1)
        for number, word in enumerate(WORDS[:8])
        for place in range(3)
    ]
    assert streamed([*events, chunk("", 24, "stop")]).signs == [Sign.UNSEEN]
    events[0]["choices"][0]["text"] = " 日本"
    assert streamed([*events, chunk("", 24, "stop")]).signs == []


def test_tokens_without_text_are_no_sign_if_the_request_ignores_the_end() -> None:
    events = [chunk(word, number) for number, word in enumerate(WORDS[:8], 1)]
    events += [chunk("", count) for count in range(9, 41)]
    events[-1]["choices"][0]["finish_reason"] = "length"
    assert streamed(events).signs == [Sign.UNSEEN]
    usage = streamed(events, ignores_end=True)
    assert (usage.signs, usage.silent) == ([], 32)
    assert usage.texts_at == [*range(1, 9)]


@pytest.mark.parametrize(("tokens", "silent"), [(48, 0), (60, 12)])
def test_without_counts_only_tokens_beyond_the_bytes_follow_the_text(
    tokens: int, silent: int
) -> None:
    """Several tokens may share a chunk, so up to 48 tokens, one per byte of the text, may belong to the text."""
    events = [*[chunk(word) for word in WORDS[:8]], chunk("", tokens, "length")]
    usage = streamed(events, ignores_end=True)
    assert (usage.doubt, usage.silent) == ("", silent)


def test_a_count_at_the_end_only_has_no_sign() -> None:
    events = [chunk(word) for word in WORDS]
    assert streamed([*events, chunk("", 40, "stop")]).signs == []


def test_a_count_that_stays_is_a_sign() -> None:
    events = [chunk(word, 1) for word in WORDS]
    assert streamed([*events, chunk("", 40, "stop")]).signs == [Sign.LATE_COUNT]


@pytest.mark.parametrize(
    ("words", "finish", "signs"),
    [
        (["<think>", " so", " then", "</think>", " 7", " 8"], "stop", []),
        (["<think>", " so", " then", " and"], "stop", [Sign.NO_ANSWER]),
        (["<think>", " so", "</think>", "\n"], "stop", [Sign.NO_ANSWER]),
        (["<think>", " so", " then", " and"], "length", []),
    ],
)
def test_reasoning_that_the_model_ends_without_an_answer_is_a_sign(
    words: list[str], finish: str, signs: list[Sign]
) -> None:
    assert streamed(honest(words, finish)).signs == signs
    whole = {"choices": [{"text": "".join(words), "finish_reason": finish}]}
    reader = Completion(Reading())
    reader.answer(Reply(200, b"", memoryview(json.dumps(whole).encode())))
    assert [*reader.usage.signs] == signs


def test_a_call_is_an_answer_after_the_reasoning() -> None:
    call = {"function": {"name": "look", "arguments": "{}"}}
    message = {"reasoning": "so", "tool_calls": [call]}
    whole = {"choices": [{"message": message, "finish_reason": "tool_calls"}]}
    reader = Completion(Reading())
    reader.answer(Reply(200, b"", memoryview(json.dumps(whole).encode())))
    assert (reader.usage.signs, reader.usage.has_call) == ((), True)


def test_filler_is_a_sign_unless_the_request_ignores_the_end() -> None:
    events = honest([*WORDS[:20], *[" x"] * 20])
    assert streamed(events).signs == [Sign.REPEATED]
    assert streamed(events, ignores_end=True).signs == []


@pytest.mark.parametrize(("parts", "told"), [([1] * 31, False), ([1] * 32, True),
                                             ([*range(16), *[1, 2, 3, 4] * 4], True),
                                             ([*range(16), *[1, 2, 3, 4, 5, 6] * 3], False)])  # fmt: skip
def test_four_values_in_the_second_half_are_repetition(parts: list[int], told: bool) -> None:
    assert repeats(parts) == told


@pytest.mark.parametrize(
    ("choice", "demanded"),
    [
        ("required", True),
        ({"type": "function", "function": {"name": "look"}}, True),
        ({"type": "any"}, True),
        ({"type": "auto"}, False),
        ("auto", False),
        (None, False),
    ],
)
def test_only_a_forced_choice_demands_a_call(choice: Any, demanded: bool) -> None:
    assert demands_call({"tools": [{}], "tool_choice": choice}) == demanded
    assert not demands_call({"tool_choice": choice})


@pytest.mark.parametrize(
    ("stop", "size"), [("###", 3), (["a", "né"], 3), (None, 0), ([], 0), (7, 0), ([None], 0)]
)
def test_the_longest_stop_string_counts(stop: Any, size: int) -> None:
    assert stop_bytes({"stop": stop}) == size


def test_the_texts_of_a_prompt_are_counted_without_its_images() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:" + "x" * 1000}}
    parts = [{"type": "text", "text": "née"}, image]
    assert text_bytes({"messages": [{"content": parts}, {"content": "abc"}]}) == 7
    assert text_bytes({"prompt": "née"}) == 4
    assert text_bytes({"prompt": [1, 2]}) == 0
