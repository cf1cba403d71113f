"""Impossible token counts, unexplained ends of answers, and error messages in a server's own words."""

import json
from contextlib import suppress
from typing import Any

import pytest

from harness.backends.openai import OpenAiRemote
from harness.backends.parts.openai import counts
from harness.backends.parts.openai.counts import counts_in, usage_of
from harness.backends.parts.openai.replies import Completion, Reading
from harness.backends.parts.openai.streams import Streamed
from harness.remote import BadAnswer, CutOff, Refused, Reply, Usage
from harness.types import BackendSetup

TEXT = "eight words of text"


def told(usage: Any, text: str = TEXT, ids: list[int] | None = None, **more: Any) -> Usage:
    return usage_of(counts_in({"usage": usage}), ids, text, "stop", **more)


@pytest.mark.parametrize(
    ("usage", "ids", "why"),
    [
        ({"completion_tokens": 3}, [1, 2, 3], ""),
        ({"completion_tokens": 4}, [1, 2, 3], counts.NOT_THE_IDS),
        ({"completion_tokens": 2}, [1, 2, 3], counts.NOT_THE_IDS),
        ({"completion_tokens": len(TEXT) + 17}, None, ""),
        ({"prompt_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}}, None, counts.CACHED),
        ({"completion_tokens": 90, "completion_tokens_details": {"reasoning_tokens": 80}}, None, ""),
        ({"completion_tokens": 90, "completion_tokens_details": {"reasoning_tokens": 9}}, None, counts.NOT_TEXT),
        ({"completion_tokens": 90, "completion_tokens_details": {"reasoning_tokens": 80}}, [1] * 10, ""),
        ({"completion_tokens": 6, "completion_tokens_details": {"reasoning_tokens": 1_000_000}}, None, counts.REASONED),
        ({"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 91, "completion_tokens_details": {"reasoning_tokens": 80}}, None, ""),
    ],
)  # fmt: skip
def test_a_count_that_cannot_be_right_is_a_contradiction(
    usage: Any, ids: list[int] | None, why: str
) -> None:
    assert told(usage, ids=ids).contradiction == why


def test_a_count_that_may_be_right_is_a_doubt() -> None:
    assert told({"completion_tokens": len(TEXT) + 4}).doubt == ""
    assert told({"completion_tokens": len(TEXT) + 5}).doubt == counts.HIDDEN
    whole = {"prompt_tokens": 5, "completion_tokens": 4}
    assert told({**whole, "total_tokens": 9}).doubt == ""
    assert told({**whole, "total_tokens": 10}).doubt == counts.NO_SUM


@pytest.mark.parametrize("count", [6.0, "6", -6, float("nan"), True, [6]])
def test_a_count_that_is_not_a_whole_number_is_a_doubt(count: Any) -> None:
    """Bug: a count that is not a whole number was treated as if the server had counted nothing."""
    found = told({"prompt_tokens": 5, "completion_tokens": count})
    assert (found.output, found.doubt) == (None, counts.UNREADABLE)
    assert told({"completion_tokens": 6, "prompt_tokens": None}).doubt == ""


SHORT_TEXT = "4"


@pytest.mark.parametrize("streams", [True, False])
def test_tokens_after_the_text_are_right_if_the_request_ignores_the_end(streams: bool) -> None:
    """Bug: an honest server whose model ended early was doubted, although `ignore_eos` requires the tokens."""
    whole = chunk(SHORT_TEXT, "length", tokens=90)
    if streams:
        events = [chunk(SHORT_TEXT, tokens=1), chunk("", "length", tokens=90), "[DONE]"]
        reader: Streamed | Completion = streamed(*events, ignores_end=True)
        reader.answer(EMPTY)
    else:
        reader = Completion(Reading(ignores_end=True))
        reader.answer(Reply(200, b"", memoryview(json.dumps(whole).encode())))
    assert (reader.usage.contradiction, reader.usage.doubt) == ("", "")


def test_tokens_before_the_text_are_doubted_even_then() -> None:
    events = [chunk("", tokens=89), chunk(SHORT_TEXT, "length", tokens=90), "[DONE]"]
    reader = streamed(*events, ignores_end=True)
    reader.answer(EMPTY)
    assert (reader.usage.doubt, reader.usage.silent) == (counts.HIDDEN, 0)


def test_texts_may_follow_an_ignored_end() -> None:
    """Bug: a model that wrote a digit after ignoring an end token, as tinylm does, was doubted."""
    events = [chunk("4", tokens=1), *[chunk("", tokens=n) for n in range(2, 60)]]
    reader = streamed(*events, chunk("9", "length", tokens=60), "[DONE]", ignores_end=True)
    reader.answer(EMPTY)
    assert (reader.usage.doubt, reader.usage.silent) == ("", 58)


CALL = {
    "index": 0,
    "id": "call-1",
    "type": "function",
    "function": {"name": "now", "arguments": "{}"},
}


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize(("tokens", "doubt"), [(25, ""), (26, counts.HIDDEN)])
def test_the_form_of_a_call_has_tokens(streams: bool, tokens: int, doubt: str) -> None:
    """Bug: calls were doubted, because `<tool_call>` and the keys of its JSON take tokens but add no text to the reply."""
    message = {"tool_calls": [CALL]}
    about = {"usage": {"completion_tokens": tokens}}
    if streams:
        choice = {"delta": message, "finish_reason": "tool_calls"}
        reader: Streamed | Completion = streamed({"choices": [choice], **about}, "[DONE]")
        reader.answer(EMPTY)
    else:
        whole = {"choices": [{"message": message, "finish_reason": "tool_calls"}], **about}
        reader = Completion(Reading())
        reader.answer(Reply(200, b"", memoryview(json.dumps(whole).encode())))
    assert (reader.usage.contradiction, reader.usage.doubt) == ("", doubt)


def test_three_calls_in_one_chunk_are_not_a_contradiction() -> None:
    """Bug: a parser that sends all calls in one chunk made an honest run INVALID."""
    calls = {"choices": [{"delta": {"tool_calls": [CALL] * 3}, "finish_reason": "tool_calls"}]}
    usage = {"usage": {"completion_tokens": 61}}
    reader = streamed(chunk("a", tokens=1), {**calls, **usage}, "[DONE]")
    reader.answer(EMPTY)
    assert (reader.usage.contradiction, reader.usage.doubt) == ("", "")


def test_a_stop_string_has_tokens_and_no_text() -> None:
    whole = chunk(SHORT_TEXT, "stop", tokens=10)
    body = memoryview(json.dumps(whole).encode())
    for stop_bytes, doubt in ((0, counts.HIDDEN), (len("</answer>"), "")):
        reader = Completion(Reading(stop_bytes=stop_bytes))
        reader.answer(Reply(200, b"", body))
        assert reader.usage.doubt == doubt


def test_the_stop_strings_of_body_and_prompts_are_known() -> None:
    options = {"stream": "off", "body": "{stop: '</answer>'}"}
    remote = OpenAiRemote(BackendSetup(model=None, model_name="m", options=options))
    body = memoryview(json.dumps(chunk(SHORT_TEXT, "stop", tokens=10)).encode())
    reader = remote.reader()
    reader.answer(Reply(200, b"", body))
    assert reader.usage.doubt == ""


@pytest.mark.parametrize("usage", [None, {}, {"completion_tokens": 0, "prompt_tokens": 0}, [1],
                                   {"completion_tokens": 8.0}, {"completion_tokens": True}])  # fmt: skip
def test_missing_or_invalid_count_is_unknown(usage: Any) -> None:
    assert told(usage)[:4] == (None, None, "", "stop")


def streamed(*events: Any, **more: Any) -> Streamed:
    reader = Streamed(Reading(**more))
    for event in events:
        text = event if isinstance(event, str) else json.dumps(event)
        reader.feed(f"data: {text}\n\n".encode())
    return reader


def chunk(text: str, finish: Any = None, tokens: int | None = None) -> dict[str, Any]:
    usage = {} if tokens is None else {"usage": {"completion_tokens": tokens}}
    return {"choices": [{"text": text, "finish_reason": finish}], **usage}


EMPTY = Reply(200, b"", memoryview(b""))


@pytest.mark.parametrize("lead", ["", " ", "\n\t", "\u200b"])
def test_chunk_without_visible_text_is_not_the_first_token(lead: str) -> None:
    reader = Streamed(Reading())
    assert reader.feed(f"data: {json.dumps(chunk(lead, tokens=1))}\n\n".encode()) == 0
    assert reader.feed(f"data: {json.dumps(chunk('word', tokens=2))}\n\n".encode()) == 2


def test_a_count_that_falls_is_a_contradiction() -> None:
    reader = streamed(chunk("a", tokens=1), chunk("b", tokens=9), chunk("c", "stop", tokens=3))
    reader.answer(EMPTY)
    assert reader.usage.contradiction == counts.FELL


def test_stream_with_more_tokens_than_bytes_is_a_contradiction() -> None:
    forged = streamed(*[chunk("word ", tokens=10 * i) for i in range(1, 9)], "[DONE]")
    forged.answer(EMPTY)
    assert forged.usage.contradiction == counts.NOT_TEXT


@pytest.mark.parametrize(
    "counted",
    [
        [chunk("", tokens=400), chunk("wo", tokens=401), chunk("rd", "stop", tokens=402)],
        [chunk("wo", tokens=401), chunk("rd", "stop", tokens=402)],
        [chunk("wo", tokens=1), chunk("rd", tokens=2), chunk("", "length", tokens=400)],
        [chunk("wo"), chunk("rd", "stop"), {"choices": [], "usage": {"completion_tokens": 400}}],
    ],
)
def test_tokens_hidden_before_a_text_or_behind_it_are_a_doubt(counted: list[Any]) -> None:
    """Bug: an honest server that hid its reasoning, or continued after the end, made a run INVALID."""
    reader = streamed(*counted, "[DONE]")
    reader.answer(EMPTY)
    assert (reader.usage.contradiction, reader.usage.doubt) == ("", counts.HIDDEN)


@pytest.mark.parametrize("end", [{}, {"choices": []}, {"choices": None}])
def test_a_usage_without_a_choice_is_taken(end: Any) -> None:
    reader = streamed(chunk("word", "stop"), {**end, "usage": {"completion_tokens": 1}}, "[DONE]")
    reader.answer(EMPTY)
    assert (reader.usage.output, reader.usage.source) == (1, "usage")


def test_zero_count_beside_a_text_is_unknown() -> None:
    reader = streamed(chunk("word", tokens=0), chunk("s", "stop", tokens=0))
    assert reader.answer(EMPTY)[0].tobytes() == b"words"
    assert (reader.usage.output, reader.chunks) == (None, 2)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("finish", "told"),
    [
        *(("stop", ""), ("length", ""), ("eos_token", ""), ("tool_calls", ""), ("STOP", "")),
        *((reason, repr(reason)) for reason in ("abort", "error", "content_filter", "timeout", 7)),
        (None, "without a finish_reason"),
    ],
)
def test_answer_that_is_cut_off_is_refused(stream: bool, finish: Any, told: str) -> None:
    whole = chunk("word", finish)
    reply = EMPTY if stream else Reply(200, b"", memoryview(json.dumps(whole).encode()))
    reader = (
        streamed(whole, "[DONE]", needs_end=True) if stream else Completion(Reading(needs_end=True))
    )
    if not told:
        assert reader.answer(reply)[0].tobytes() == b"word"
        return
    with pytest.raises(CutOff, match=told):
        reader.answer(reply)


def test_answer_that_is_cut_off_counts_in_warm_up() -> None:
    remote = OpenAiRemote(BackendSetup(model=None, model_name="m", options={"stream": "off"}))
    body = memoryview(json.dumps(chunk("word", "abort")).encode())
    assert remote.answer(Reply(200, b"", body), 1)[0].tobytes() == b"word"
    with pytest.raises(CutOff):
        remote.reader().answer(Reply(200, b"", body))


@pytest.mark.parametrize(
    "error",
    [
        {"object": "error", "message": "no memory", "code": 500},
        *({"error": "no memory"}, {"error": {"message": "no memory"}}, {"detail": "no memory"}),
        *({"message": "no memory", "status": 500}, {"error": True, "message": "no memory"}),
        "no memory",
    ],
)
def test_error_message_of_the_server_is_quoted(error: Any) -> None:
    with pytest.raises((Refused, BadAnswer), match="no memory"):
        streamed(chunk("word"), error, "[DONE]").answer(EMPTY)
    body = error if isinstance(error, str) else json.dumps(error)
    with pytest.raises((Refused, BadAnswer), match="no memory"):
        Completion(Reading()).answer(Reply(200, b"", memoryview(body.encode())))


@pytest.mark.parametrize("key", ["choices", "usage", "text", "finish_reason", "token_ids", "delta", "message", "logprobs", "error"])  # fmt: skip
@pytest.mark.parametrize("value", [None, [], {}, "", "\ud800", 7, -1, 1e308, 10**30, True, [[[]]], {"tool_calls": 7}, {"content": 5}])  # fmt: skip
def test_any_value_of_any_key_is_an_answer_or_an_error(key: str, value: Any) -> None:
    """Bug: a number in place of a list of calls ended the receiving thread."""
    whole = chunk("word", "stop", tokens=1)
    for place in (whole, whole["choices"][0]):
        before = place.get(key)
        place[key] = value
        for wants_text in (True, False):
            reader = Streamed(Reading(wants_text, needs_end=True))
            reader.feed(f"data: {json.dumps(whole)}\n\ndata: [DONE]\n\n".encode())
            body = Reply(200, b"", memoryview(json.dumps(whole).encode()))
            for one, reply in ((reader, EMPTY), (Completion(Reading(wants_text)), body)):
                with suppress(Refused, BadAnswer):
                    one.answer(reply)
                    assert (one.usage.output or 0) < 2**31
        place[key] = before


@pytest.mark.parametrize("index", [1, -1, "0"])
def test_choice_that_was_not_requested_is_refused(index: Any) -> None:
    """Bug: the chunks of two choices were merged into one answer with twice the tokens, and the run was VALID."""
    choice = {"index": index, "text": "word", "finish_reason": "stop"}
    with pytest.raises(BadAnswer, match="a choice with index"):
        streamed({"choices": [choice]}).answer(EMPTY)
    body = json.dumps({"choices": [choice]}).encode()
    with pytest.raises(BadAnswer, match="but one choice was requested"):
        Completion(Reading()).answer(Reply(200, b"", memoryview(body)))


@pytest.mark.parametrize(
    ("events", "told"),
    [
        ([chunk("a", "abort"), chunk("b", "stop")], "'abort' and then 'stop'"),
        ([chunk("a", "stop"), "[DONE]", chunk("b")], "tokens after"),
    ],
)
def test_stream_that_contradicts_its_own_end_is_refused(events: list[Any], told: str) -> None:
    with pytest.raises(BadAnswer, match=told):
        streamed(*events).answer(EMPTY)


def test_finish_reason_may_come_twice() -> None:
    assert streamed(chunk("a", "stop"), chunk("", "stop"), "[DONE]").answer(EMPTY)


def test_a_reasoning_text_under_old_and_new_names_counts_once() -> None:
    delta = {"reasoning": "1", "reasoning_content": "1", "content": "2"}
    reader = streamed({"choices": [{"delta": delta, "finish_reason": "stop"}]})
    assert reader.answer(EMPTY)[0].tobytes() == b"12"


def test_empty_list_of_ids_beside_a_text_is_ignored() -> None:
    """Bug: the message said that the model returns no token ids."""
    choice = {"text": "word", "token_ids": [], "finish_reason": "stop"}
    body = json.dumps({"choices": [choice]}).encode()
    (answer,) = Completion(Reading()).answer(Reply(200, b"", memoryview(body)))
    assert answer.tobytes() == b"word"
