"""OpenAI's Responses API and Anthropic's Messages API: requests, streams and complete replies."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from harness.backends.openai import OpenAiRemote
from harness.backends.parts.openai.endpoints import ENDPOINTS
from harness.backends.parts.openai.replies import Completion, Reading
from harness.backends.parts.openai.streams import Streamed
from harness.errors import ConfigError
from harness.remote import CutOff, Refused, Reply, Request, Usage
from harness.types import BackendSetup, Batch
from tests.builders.refusals import refusal

RESPONSES = [
    {"type": "response.created", "response": {"status": "in_progress"}},
    {"type": "response.output_item.added", "item": {"type": "reasoning"}},
    {"type": "response.reasoning_text.delta", "delta": "so"},
    {"type": "response.output_text.delta", "delta": "He"},
    {"type": "response.output_text.delta", "delta": "llo"},
    {
        "type": "response.completed",
        "response": {
            "status": "completed",
            "model": "m",
            "usage": {
                "input_tokens": 7,
                "output_tokens": 5,
                "total_tokens": 12,
                "input_tokens_details": {"cached_tokens": 4},
                "output_tokens_details": {"reasoning_tokens": 3},
            },
        },
    },
]
MESSAGES = [
    {
        "type": "message_start",
        "message": {
            "model": "m",
            "usage": {"input_tokens": 3, "cache_read_input_tokens": 4, "output_tokens": 1},
        },
    },
    {"type": "content_block_start", "content_block": {"type": "thinking", "thinking": ""}},
    {"type": "ping"},
    {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "so"}},
    {"type": "content_block_delta", "delta": {"type": "signature_delta", "signature": "x"}},
    {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "He"}},
    {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "llo"}},
    {"type": "content_block_stop"},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 5}},
    {"type": "message_stop"},
]
STREAMS = {"responses": RESPONSES, "messages": MESSAGES}
WHOLE = {
    "responses": {
        "status": "completed",
        "model": "m",
        "output": [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]},
            {"type": "message", "content": [{"type": "output_text", "text": "Hello"}]},
        ],
        "usage": RESPONSES[-1]["response"]["usage"],  # type: ignore[index]
    },
    "messages": {
        "model": "m",
        "content": [{"type": "thinking", "thinking": "so"}, {"type": "text", "text": "Hello"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 3, "cache_read_input_tokens": 4, "output_tokens": 5},
    },
}


def reply(body: bytes, status: int = 200) -> Reply:
    return Reply(status, b"", memoryview(body))


def sse(events: Sequence[Any]) -> bytes:
    return b"".join(
        f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events
    )


def streamed(name: str, events: Sequence[Any]) -> Streamed:
    reader = Streamed(Reading(endpoint=ENDPOINTS[name], needs_end=True))
    reader.feed(sse(events))
    return reader


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_has_the_text_the_counts_and_the_end(name: str) -> None:
    reader = streamed(name, STREAMS[name])
    (answer,) = reader.answer(reply(b""))
    assert answer.tobytes().decode() == "soHello"
    usage = reader.usage
    assert (usage.input, usage.output, usage.cached) == (7, 5, 4)
    assert usage.finish_reason in ("stop", "end_turn")
    assert not usage.contradiction
    assert reader.model == "m"


@pytest.mark.parametrize("name", STREAMS)
def test_the_answer_begins_after_the_reasoning(name: str) -> None:
    at = next(i for i, event in enumerate(STREAMS[name]) if "He" in json.dumps(event))
    before = streamed(name, STREAMS[name][:at])
    assert (before.chunks, before.answer_starts) == (1, 0)
    assert streamed(name, STREAMS[name][: at + 1]).answer_starts == 1


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_that_stops_early_is_cut_off(name: str) -> None:
    with pytest.raises(CutOff):
        streamed(name, STREAMS[name][:5]).answer(reply(b""))


@pytest.mark.parametrize("name", STREAMS)
def test_a_whole_reply_is_read_like_its_stream(name: str) -> None:
    reader = Completion(Reading(endpoint=ENDPOINTS[name]))
    (answer,) = reader.answer(reply(json.dumps(WHOLE[name]).encode()))
    assert answer.tobytes().decode() == "soHello"
    assert (reader.usage.input, reader.usage.output, reader.usage.cached) == (7, 5, 4)


@pytest.mark.parametrize(
    ("name", "event"),
    [
        ("responses", {"type": "error", "error": {"message": "no memory"}}),
        (
            "responses",
            {"type": "response.failed", "response": {"error": {"message": "no memory"}}},
        ),
        (
            "messages",
            {"type": "error", "error": {"type": "overloaded_error", "message": "no memory"}},
        ),
    ],
)
def test_an_error_in_the_stream_is_a_refusal(name: str, event: Any) -> None:
    with pytest.raises(Refused, match="no memory"):
        streamed(name, [*STREAMS[name][:5], event]).answer(reply(b""))


@pytest.mark.parametrize(
    ("name", "end", "reason"),
    [
        (
            "responses",
            {
                "type": "response.incomplete",
                "response": {
                    "status": "incomplete",
                    "incomplete_details": {"reason": "max_output_tokens"},
                },
            },
            "length",
        ),
        (
            "messages",
            {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}},
            "max_tokens",
        ),
        ("messages", {"type": "message_delta", "delta": {"stop_reason": "tool_use"}}, "tool_use"),
    ],
)
def test_an_answer_that_reached_its_bound_is_complete(name: str, end: Any, reason: str) -> None:
    reader = streamed(name, [*STREAMS[name][:5], end])
    reader.answer(reply(b""))
    assert reader.usage.finish_reason == reason


def test_arguments_of_calls_are_text() -> None:
    delta = {"type": "response.function_call_arguments.delta", "delta": '{"a":1}'}
    reader = streamed("responses", [delta, RESPONSES[-1]])
    assert reader.answer(reply(b""))[0].tobytes() == b'{"a":1}'
    block = {"type": "input_json_delta", "partial_json": '{"a":1}'}
    events = [{"type": "content_block_delta", "delta": block}, *MESSAGES[-2:]]
    assert streamed("messages", events).answer(reply(b""))[0].tobytes() == b'{"a":1}'


def opened(name: str, **options: str) -> tuple[OpenAiRemote, list[Request]]:
    """Returns a backend whose server answers every prompt with the recorded stream."""
    sent: list[Request] = []

    def exchange(request: Request) -> Reply:
        if request.method == "GET":
            return reply(b"{}", 404)
        sent.append(request)
        return reply(sse(STREAMS[name]))

    setup = BackendSetup(model=None, model_name="m", options={"endpoint": name, **options})
    remote = OpenAiRemote(setup)
    remote.open(exchange)
    return remote, sent


def body(request: Request) -> Any:
    return json.loads(b"".join(map(bytes, request.body)))


def batch(sample: Any) -> Batch:
    rows = np.empty(1, object)
    rows[0] = json.dumps(sample, separators=(",", ":")).encode()
    return Batch(1, {"request": rows})


CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]


def test_a_request_to_responses_has_its_field_names() -> None:
    remote, sent = opened("responses", max_tokens="32")
    assert sent[0].path == "/v1/responses"
    assert body(sent[0])["max_output_tokens"] == 16
    found = body(remote.request(batch({"messages": CHAT})))
    assert found == {
        "model": "m",
        "store": False,
        "temperature": 0,
        "stream": True,
        "max_output_tokens": 32,
        "input": CHAT,
    }
    own = {
        "fields": ["top_p", "max_tokens", "prompt"],
        "top_p": 0.5,
        "max_tokens": 20,
        "prompt": "Hi",
    }
    found = body(remote.request(batch(own)))
    assert (found["max_output_tokens"], found["input"], found["top_p"]) == (20, "Hi", 0.5)
    assert "max_tokens" not in found


def test_a_request_to_messages_has_its_system_apart() -> None:
    remote, sent = opened("messages", max_tokens="32", body="{temperature: null}")
    assert ("anthropic-version", "2023-06-01") in sent[0].headers
    found = body(remote.request(batch({"messages": CHAT})))
    assert found == {
        "model": "m",
        "stream": True,
        "max_tokens": 32,
        "messages": CHAT[1:],
        "system": "Be brief.",
    }
    found = body(remote.request(batch({"max_tokens": 5, "prompt": "Hi"})))
    assert found["max_tokens"] == 5
    assert found["messages"] == [{"role": "user", "content": "Hi"}]


def test_token_ids_are_refused_by_these_endpoints() -> None:
    remote, _ = opened("responses")
    with pytest.raises(ConfigError, match="takes text and messages"):
        remote.request(batch({"prompt": [1, 2]}))


def test_an_unknown_endpoint_is_refused() -> None:
    setup = BackendSetup(model=None, model_name="m", options={"endpoint": "batch"})
    assert refusal(OpenAiRemote, setup) == (
        "--backend-option endpoint: 'batch' is not one of auto, responses, messages, embeddings, pooling, rerank, "
        "transcriptions, speech, images"
    )


def test_usage_of_a_probe_without_counts_is_unknown() -> None:
    reader = streamed(
        "responses",
        [*RESPONSES[:5], {"type": "response.completed", "response": {"status": "completed"}}],
    )
    reader.answer(reply(b""))
    assert reader.usage == Usage(None, None, "", "stop")
