"""Fields of OpenAI's API: the reply matches vLLM's reply if vLLM's meaning is the likely intention; otherwise a refusal
names the field.
"""

import json
import socket
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.core.formats.sse import DONE, EventParser
from tests.serve.conftest import CHAT, TIMEOUT_S, Server

PROMPT, ANSWER = "sort 40271=", "01247"
ASK = {"model": "tinylm", "prompt": PROMPT}


def choices_of(events: list[Any]) -> Mapping[int, str]:
    """Maps an index to its text, from the chunks of a stream."""
    texts: dict[int, str] = {}
    for event in events:
        for choice in event["choices"]:
            text = choice["text"] if "text" in choice else choice["delta"]["content"]
            texts[choice["index"]] = texts.get(choice["index"], "") + text
    return texts


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "text", "text": PROMPT}],
        [{"type": "input_text", "text": PROMPT}],
        [PROMPT],
        PROMPT,
    ],
)
def test_the_content_of_a_chat_may_be_a_list_of_parts(content: object, server: Server) -> None:
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "be brief"}]},
        {"role": "assistant", "content": None},
        {"role": "user", "content": content},
    ]
    status, text = server.ask(CHAT, {"model": "tinylm", "messages": messages})
    assert status == 200, text
    assert json.loads(text)["choices"][0]["message"]["content"] == ANSWER
    events = server.stream({"model": "tinylm", "messages": messages, "stream": True, "n": 2}, CHAT)
    assert choices_of(events) == {0: ANSWER, 1: ANSWER}


def test_several_parts_are_joined_by_a_line_end_as_in_vllm(server: Server) -> None:
    prompts = server.served.prompts
    parts = [{"type": "text", "text": "sort "}, {"type": "text", "text": "21="}]
    joined = prompts.tokens({"messages": [{"role": "user", "content": parts}]})
    assert joined == prompts.tokens({"prompt": "sort \n21="})


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", None, 7])
def test_a_part_without_text_is_refused_by_its_type_in_any_message(
    kind: object, server: Server
) -> None:
    other = {"role": "user", "content": [{"type": kind, "text": PROMPT}]}
    last = {"role": "user", "content": PROMPT}
    for messages in ([other], [other, last]):
        status, text = server.ask(CHAT, {"model": "tinylm", "messages": messages})
        error = json.loads(text)["error"]
        assert (status, error["param"]) == (400, "messages")
        if kind is not None:
            assert f"a part of type {kind!r}: the model takes only text" in error["message"]


def test_a_list_of_prompts_has_a_choice_for_each_of_their_answers(server: Server) -> None:
    ids = server.served.prompts.tokens({"prompt": PROMPT})
    for one in ([PROMPT], [ids]):
        assert [c["text"] for c in server.complete(one)["choices"]] == [ANSWER]
    several = ["sort 31425=", "reverse 12345=", PROMPT]
    reply = server.complete(several, n=2)
    wanted = ["12345", "12345", "54321", "54321", ANSWER, ANSWER]
    assert [choice["text"] for choice in reply["choices"]] == wanted
    assert [choice["index"] for choice in reply["choices"]] == [*range(6)]
    lone = [server.complete(prompt)["usage"] for prompt in several]
    usage = reply["usage"]
    assert usage["prompt_tokens"] == sum(each["prompt_tokens"] for each in lone)
    assert usage["completion_tokens"] == 2 * sum(each["completion_tokens"] for each in lone)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *events, last = server.stream({**ASK, "prompt": several, "n": 2, **options})
    assert choices_of(events) == dict(enumerate(wanted))
    assert last["usage"] == usage
    ends = [c["finish_reason"] for event in events for c in event["choices"]]
    assert ends.count("stop") == 6


@pytest.mark.parametrize(
    ("fields", "text", "reason", "stop_reason"),
    [
        ({"stop": "24"}, "01", "stop", "24"),
        ({"stop": ["9", "2"]}, "01", "stop", "2"),
        ({"stop": "24", "include_stop_str_in_output": True}, "0124", "stop", "24"),
        ({"stop": "247x"}, "01247", "stop", None),
        ({"stop": "7", "max_tokens": 5}, "0124", "stop", "7"),
        ({"stop": "0", "min_tokens": 1}, "01247", "stop", None),
        ({"stop_token_ids": [7]}, "01", "stop", 7),
        ({"stop_token_ids": [7], "ignore_eos": True}, "01", "stop", 7),
        ({"max_tokens": 2, "stop": ["4"]}, "01", "length", None),
        ({"echo": True}, PROMPT + ANSWER, "stop", None),
        ({"echo": True, "stop": "=0"}, PROMPT + ANSWER, "stop", None),
        ({"max_completion_tokens": 3, "max_tokens": None}, "012", "length", None),
    ],
)
def test_whole_and_streamed_answers_end_as_in_vllm(
    fields: Mapping[str, Any], text: str, reason: str, stop_reason: object, server: Server
) -> None:
    (choice,) = server.complete(PROMPT, **fields)["choices"]
    assert (choice["text"], choice["finish_reason"]) == (text, reason)
    assert choice["stop_reason"] == stop_reason
    events = server.stream({**ASK, **fields, "stream": True})
    assert choices_of(events) == {0: text}
    (last,) = events[-1]["choices"]
    assert (last["finish_reason"], last["stop_reason"]) == (reason, stop_reason)


def test_an_answer_that_a_stop_string_ends_frees_its_place(server: Server) -> None:
    usage = server.complete(PROMPT, stop="1", ignore_eos=True, max_tokens=30)["usage"]
    assert usage["completion_tokens"] == 2
    assert server.served.generator.step() == []
    assert server.served.generator.is_idle


def test_min_tokens_defers_the_end(server: Server) -> None:
    right = server.complete(PROMPT, return_token_ids=True)["choices"][0]["token_ids"]
    more = server.complete(PROMPT, min_tokens=12, return_token_ids=True)["choices"][0]["token_ids"]
    assert len(right) == 6
    assert more[:5] == right[:5]
    assert len(more) > 12 or more[-1] != right[-1]
    assert right[-1] not in more[:12]


HARMLESS: Mapping[str, Any] = {
    "temperature": 0,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.1,
    "seed": 7,
    "presence_penalty": 0.0,
    "frequency_penalty": 0,
    "repetition_penalty": 1.0,
    "logit_bias": {"5": 0},
    "logprobs": False,
    "best_of": 1,
    "response_format": {"type": "text"},
    "parallel_tool_calls": True,
    "tool_choice": "none",
    "tools": [],
    "reasoning_effort": "low",
    "store": False,
    "metadata": {"a": "b"},
    "service_tier": "auto",
    "user": "me",
    "stream_options": None,
    "ignore_eos": False,
    "min_tokens": 0,
    "skip_special_tokens": True,
    "chat_template_kwargs": {"enable_thinking": False},
    "guided_json": None,
    "a_field_of_the_future": None,
}


def test_fields_that_change_nothing_are_taken_together_and_as_null(server: Server) -> None:
    assert server.complete(PROMPT, **HARMLESS)["choices"][0]["text"] == ANSWER
    nulls: dict[str, Any] = dict.fromkeys(HARMLESS)
    assert server.complete(PROMPT, **nulls)["choices"][0]["text"] == ANSWER
    assert server.complete(PROMPT, temperature=0.7, top_k=1)["choices"][0]["text"] == ANSWER
    status, text = server.ask("/v1/completions", {"prompt": PROMPT})
    assert (status, json.loads(text)["model"]) == (200, "tinylm")


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("temperature", 0.7, "temperature is 0.7: this server always takes the likeliest token; "),
        ("presence_penalty", 0.5, "presence_penalty is 0.5: this server "),
        ("frequency_penalty", -1, "frequency_penalty is -1: this server "),
        ("logit_bias", {"5": 1}, "logit_bias is {'5': 1}: this server "),
        ("logprobs", 0.5, "logprobs is 0.5: this server "),
        ("logprobs", 0, "logprobs is 0: this server "),
        ("response_format", {"type": "json_object"}, "response_format is {'type': "),
        ("tools", [{"type": "function"}], "a tool is {'type': "),
        ("suffix", "x", "suffix is 'x': this server "),
        ("structured_outputs", {}, "this server does not support the field 'structured_outputs'"),
        ("n", 0, "n is 0, but must be a whole number from 1 to 1,024"),
        ("n", 2.0, "n is 2.0, but must be"),
        ("stop", [""], "stop is [''], but must be a string or a list of strings"),
        ("stop_token_ids", ["1"], "stop_token_ids is ['1'], but must be a list of token ids"),
        ("min_tokens", 99, "min_tokens is 99, but must be a whole number from 0 to 24"),
        ("top_p", "high", "top_p is 'high', but must be a number"),
        ("prompt", [[1, "a"]], "prompt must be a string, a list of token ids, or a list of either"),
        ("prompt", ["1="] * 1025, "the request asks for 1,025 answers"),
        ("prompt", ["1=", "1" * 60], "the prompt has 60 tokens"),
        ("prompt", None, "the request needs prompt"),
    ],
)  # fmt: skip
def test_a_field_that_would_change_the_answer_is_refused_by_its_name(
    name: str, value: object, problem: str, server: Server
) -> None:
    status, text = server.ask("/v1/completions", {**ASK, name: value})
    error = json.loads(text)["error"]
    assert (status, error["type"]) == (400, "invalid_request_error")
    assert error["param"] == ("n" if "1,025" in problem else name)
    assert error["message"].startswith(problem)


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=2)
    ),
    max_leaves=5,
)
FIELDS = [
    *HARMLESS,
    *("model", "prompt", "messages", "max_tokens", "max_completion_tokens", "stream"),
    *("stream_options", "stop", "stop_token_ids", "n", "echo", "return_token_ids"),
]
MESSAGE = st.fixed_dictionaries({}, optional={"role": JUNK, "content": JUNK | st.lists(JUNK)})


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150
)
@given(
    st.booleans(),
    st.dictionaries(st.sampled_from(FIELDS), JUNK, max_size=3),
    st.none() | st.lists(MESSAGE, max_size=2),
)
def test_no_request_ends_in_a_failure_of_the_server(
    server: Server, is_chat: bool, fields: dict[str, Any], messages: object
) -> None:
    good: dict[str, Any] = {"messages": [{"role": "user", "content": PROMPT}]} if is_chat else ASK
    body = {**good, **fields} | ({} if messages is None else {"messages": messages})
    status, text = server.ask(CHAT if is_chat else "/v1/completions", body)
    if status == 200:
        return
    error = json.loads(text)["error"]
    assert status in (400, 404)
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    assert "\n" not in error["message"]


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999\r\n\r\n", 413),
        (b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Encoding: br\r\n\r\n", 415),
        (b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\n{", 400),
        (b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\n\xff", 400),
        (b"GET /v1/completions HTTP/1.1\r\nHost: h\r\n\r\n", 405),
        (b"GET /v1/nothing HTTP/1.1\r\nHost: h\r\n\r\n", 404),
        (b"GET /v1/models HTTP/2.0\r\nHost: h\r\n\r\n", 505),
    ],
)
def test_every_error_is_an_object_of_openai_s(request_: bytes, status: int, server: Server) -> None:
    with socket.create_connection(server.loop.address, TIMEOUT_S) as sock:
        sock.sendall(request_)
        sock.shutdown(socket.SHUT_WR)
        answer = sock.makefile("rb").read()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d" % status)
    error = json.loads(body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == (
        "invalid_request_error" if status < 500 else "server_error",
        status,
    )


@pytest.mark.parametrize("header", [b"", b"Connection: keep-alive\r\n", b"Connection: close\r\n"])
def test_a_stream_over_http_1_0_ends_with_its_connection(header: bytes, server: Server) -> None:
    body = json.dumps({**ASK, "stream": True}).encode()
    head = b"POST /v1/completions HTTP/1.0\r\n%bContent-Length: %d\r\n\r\n"
    with socket.create_connection(server.loop.address, TIMEOUT_S) as sock:
        sock.sendall(head % (header, len(body)) + body)
        answer = sock.makefile("rb").read()
    found, _, stream = answer.partition(b"\r\n\r\n")
    assert b"chunked" not in found
    assert found.endswith(b"Connection: close")
    *events, last = EventParser().feed(stream)
    assert last == DONE
    assert choices_of([json.loads(event) for event in events]) == {0: ANSWER}


def test_options_and_head_are_answered(server: Server) -> None:
    for path, allowed in (("/v1/models/tinylm", "GET, HEAD, OPTIONS"), (CHAT, "POST, OPTIONS")):
        with socket.create_connection(server.loop.address, TIMEOUT_S) as sock:
            sock.sendall(b"OPTIONS %b HTTP/1.1\r\nHost: h\r\n\r\n" % path.encode())
            head = sock.recv(4096)
        assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n")
        assert b"Allow: %b\r\n" % allowed.encode() in head
    assert server.ask("/v1/models", method="HEAD") == (200, b"")
    assert server.ask(CHAT, method="HEAD") == (405, b"")
