"""Tool calls in messages and streams become answers of the backend openai, in the form that metrics read."""

import json
from typing import Any

import pytest

from harness.backends.parts.openai.replies import Completion, Reading
from harness.backends.parts.openai.streams import Streamed
from harness.remote import Reply

CALLS = [
    {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},
    {"id": "call_2", "type": "function", "function": {"name": "now", "arguments": "{}"}},
]
ANSWER = [
    {"type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},
    {"type": "function", "function": {"name": "now", "arguments": "{}"}},
]


def reply(*contents: Any, stream: bool = False) -> Reply:
    texts = [content if isinstance(content, str) else json.dumps(content) for content in contents]
    body = "".join(f"data: {text}\n\n" for text in texts) if stream else texts[0]
    return Reply(200, b"HTTP/1.1 200 OK\r\n\r\n", memoryview(body.encode()))


def message(**parts: Any) -> Any:
    choice = {"index": 0, "message": {"role": "assistant", **parts}, "finish_reason": "stop"}
    return {"choices": [choice], "usage": {"completion_tokens": 7}}


def told(reply: Reply, reader: type[Completion] | type[Streamed], *, calls: bool = True) -> str:
    (answer,) = reader(Reading(wants_text=True, wants_calls=calls)).answer(reply)
    return answer.tobytes().decode()


def test_calls_of_a_message_are_a_list_without_ids() -> None:
    assert json.loads(told(reply(message(content=None, tool_calls=CALLS)), Completion)) == ANSWER
    both = message(content="I add.", tool_calls=CALLS)
    assert json.loads(told(reply(both), Completion)) == ANSWER
    assert told(reply(both), Completion, calls=False) == 'I add.add{"a": 1}now{}'


def test_message_without_a_call_stays_a_text() -> None:
    assert told(reply(message(content="No.", tool_calls=[])), Completion) == "No."
    assert told(reply(message(content="No.")), Completion) == "No."


def delta(*calls: Any, **parts: Any) -> Any:
    return {"choices": [{"index": 0, "delta": {"tool_calls": list(calls), **parts}}]}


def piece(number: int, name: str | None, arguments: str) -> Any:
    return {"index": number, "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize("calls", [True, False])
def test_calls_of_a_stream_are_joined_by_their_numbers(calls: bool) -> None:
    events = [
        delta(piece(0, "add", "")),
        delta(piece(0, None, '{"a"')),
        delta(piece(1, "now", "{"), piece(0, None, ": 1}")),
        delta(piece(1, None, "}")),
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
        {"choices": [], "usage": {"completion_tokens": 7}},
        "[DONE]",
    ]
    found = told(reply(*events, stream=True), Streamed, calls=calls)
    assert json.loads(found) == ANSWER if calls else found == 'add{"a"now{: 1}}'
