"""Function calls, reasoning, several names and vectors from a served language model."""

import base64
import json
from typing import Any

import numpy as np
import pytest

from harness.models.generation.engine import Generator
from tests.serve.conftest import CHAT, Server

pytest.importorskip("onnxruntime")

PROMPT, ANSWER = "sort 40271=", "01247"
TOOL = {
    "type": "function",
    "function": {
        "name": "write",
        "parameters": {"type": "object", "properties": {"digits": {"type": "string"}}},
    },
}
NAMED = {"type": "function", "function": {"name": "write"}}


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "tinylm", "messages": [{"role": "user", "content": PROMPT}], **fields}


def choice_of(server: Server, **fields: Any) -> Any:
    status, text = server.ask(CHAT, chat(**fields))
    assert status == 200, text
    return json.loads(text)["choices"][0]


def deltas_of(server: Server, **fields: Any) -> list[Any]:
    events = server.stream(chat(stream=True, **fields), CHAT)
    return [choice["delta"] for event in events for choice in event["choices"]]


@pytest.mark.parametrize(("wanted", "finish"), [("required", "tool_calls"), (NAMED, "stop")])
def test_a_required_function_is_called_with_the_models_answer(
    server: Server, wanted: object, finish: str
) -> None:
    found = choice_of(server, tools=[TOOL], tool_choice=wanted)
    (call,) = found["message"]["tool_calls"]
    assert call["function"]["name"] == "write"
    assert json.loads(call["function"]["arguments"]) == {"digits": ANSWER}
    assert (found["message"]["content"], found["finish_reason"]) == (None, finish)
    parts = [
        delta["tool_calls"][0]
        for delta in deltas_of(server, tools=[TOOL], tool_choice=wanted)
        if "tool_calls" in delta
    ]
    assert json.loads("".join(part["function"]["arguments"] for part in parts)) == {
        "digits": ANSWER
    }
    assert [part["function"].get("name") for part in parts if "id" in part] == ["write"]


def test_optional_tools_leave_the_answer_a_text(server: Server) -> None:
    found = choice_of(server, tools=[TOOL], tool_choice="auto")
    assert found["message"] == {"role": "assistant", "content": ANSWER}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [TOOL], "tool_choice": {"function": {"name": "other"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "function"}], "tool_choice": "required"}, "tools"),
        (
            {
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
                "tool_choice": "required",
            },
            "tools",
        ),
        ({"chat_template_kwargs": 7}, "chat_template_kwargs"),
    ],
)
def test_calls_that_cannot_be_written_are_refused(
    server: Server, fields: dict[str, Any], param: str
) -> None:
    status, text = server.ask(CHAT, chat(**fields))
    assert (status, json.loads(text)["error"]["param"]) == (400, param)


THINK = {"chat_template_kwargs": {"enable_thinking": True}}


def test_reasoning_comes_before_the_answer_and_is_counted(server: Server) -> None:
    status, text = server.ask(CHAT, chat(**THINK))
    assert status == 200, text
    reply = json.loads(text)
    message = reply["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == (ANSWER, ANSWER)
    usage = reply["usage"]
    reasoning = usage["completion_tokens_details"]["reasoning_tokens"]
    assert usage["completion_tokens"] == 2 * reasoning == 2 * (len(ANSWER) + 1)
    deltas = deltas_of(server, **THINK)
    kinds = [
        "thought" if delta.get("reasoning_content") else "answer"
        for delta in deltas
        if delta.get("reasoning_content") or delta.get("content")
    ]
    assert kinds == sorted(kinds, reverse=True), "the answer began before the reasoning ended"
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == ANSWER
    assert "".join(delta.get("content") or "" for delta in deltas) == ANSWER


def test_reasoning_may_be_between_tags(server: Server) -> None:
    right = f"<think>{ANSWER}</think>{ANSWER}"
    fields = {**THINK, "separate_reasoning": False}
    assert choice_of(server, **fields)["message"]["content"] == right
    assert "".join(delta.get("content") or "" for delta in deltas_of(server, **fields)) == right


def test_reasoning_that_takes_all_tokens_leaves_no_answer(server: Server) -> None:
    found = choice_of(server, max_tokens=3, **THINK)
    assert found["finish_reason"] == "length"
    assert found["message"]["reasoning_content"] == ANSWER[:3]
    assert found["message"]["content"] == ""


def test_reasoning_and_a_call_follow_each_other(server: Server) -> None:
    found = choice_of(server, tools=[TOOL], tool_choice=NAMED, **THINK)
    assert found["message"]["reasoning_content"] == ANSWER
    (call,) = found["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"digits": ANSWER}
    parts = [
        delta["tool_calls"][0]
        for delta in deltas_of(server, tools=[TOOL], tool_choice=NAMED, **THINK)
        if "tool_calls" in delta
    ]
    assert json.loads("".join(part["function"]["arguments"] for part in parts)) == {
        "digits": ANSWER
    }


def vectors(server: Server, **fields: Any) -> Any:
    status, text = server.ask("/v1/embeddings", {"model": "tinylm", **fields})
    assert status == 200, text
    return json.loads(text)


def test_vectors_have_length_one_and_do_not_depend_on_the_batch(server: Server) -> None:
    texts = [f"{task} {digits}=" for task in ("sort", "reverse") for digits in (12, 40271, 98765)]
    whole = vectors(server, input=texts)
    rows = np.array([entry["embedding"] for entry in whole["data"]])
    assert rows.shape[0] == len(texts)
    assert np.linalg.norm(rows, axis=1) == pytest.approx(1)
    assert [entry["index"] for entry in whole["data"]] == list(range(len(texts)))
    for text, row in zip(texts, rows, strict=True):
        (alone,) = vectors(server, input=text)["data"]
        assert alone["embedding"] == pytest.approx(row, abs=1e-5)
    ids = server.served.prompts.tokens({"prompt": texts[0]})
    (of_ids,) = vectors(server, input=ids, encoding_format="base64")["data"]
    decoded = np.frombuffer(base64.b64decode(of_ids["embedding"]), "<f4")
    assert decoded == pytest.approx(rows[0], abs=1e-5)
    assert whole["usage"]["prompt_tokens"] == sum(
        len(server.served.prompts.tokens({"prompt": text})) for text in texts
    )


def test_vectors_are_computed_between_the_tokens_of_answers(server: Server) -> None:
    """While vectors are computed, the answers in progress keep their keys and values."""
    generator = server.served.generator
    assert isinstance(generator, Generator)
    prompts = server.served.prompts
    right = server.complete(PROMPT)["choices"][0]["text"]
    before = generator.embed([prompts.tokens({"prompt": PROMPT})])
    assert server.complete(PROMPT)["choices"][0]["text"] == right == ANSWER
    assert generator.embed([prompts.tokens({"prompt": PROMPT})]) == pytest.approx(before)


def test_documents_are_ranked_by_their_cosine(server: Server) -> None:
    documents = ["reverse 98=", PROMPT, "sort 12="]
    body = {"model": "tinylm", "query": PROMPT, "documents": documents}
    status, text = server.ask("/v1/rerank", body)
    assert status == 200, text
    results = json.loads(text)["results"]
    assert (results[0]["index"], len(results)) == (1, 3)
    assert results[0]["relevance_score"] == pytest.approx(1)
    scores = [entry["relevance_score"] for entry in results]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/embeddings", {"input": []}, "input"),
        ("/v1/embeddings", {"input": 7}, "input"),
        ("/v1/embeddings", {"input": "sort 1=", "dimensions": 3}, "dimensions"),
        ("/v1/embeddings", {"input": "sort 1=", "colour": "red"}, "colour"),
        ("/v1/embeddings", {"input": "sort 1=", "encoding_format": "int8"}, "encoding_format"),
        ("/v1/embeddings", {"input": [10**6]}, "input"),
        ("/v1/rerank", {"documents": ["a"]}, "query"),
        ("/v1/rerank", {"query": "sort 1=", "documents": [1]}, "documents"),
        ("/v1/embeddings", {"model": "other", "input": "sort 1="}, "model"),
    ],
)
def test_wrong_requests_for_vectors_name_the_field(
    server: Server, path: str, body: dict[str, Any], param: str
) -> None:
    status, text = server.ask(path, body)
    assert status in (400, 404)
    assert json.loads(text)["error"]["param"] == param
