"""OpenAI's API for a generating model: streams, whole replies, parallel requests and refusals."""

import http.client
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from harness import __version__
from harness.core.formats.sse import EventParser
from tests.serve.conftest import TIMEOUT_S, Server

pytest.importorskip("onnxruntime")

PROMPTS = [f"{task} {digits}=" for task in ("sort", "reverse") for digits in (40271, 98, 31415926)]
EXACT = {"include_usage": True, "continuous_usage_stats": True}


def test_the_served_model_is_listed(server: Server) -> None:
    status, text = server.ask("/v1/models")
    (model,) = json.loads(text)["data"]
    assert (status, model["id"], model["owned_by"]) == (200, "tinylm", "mlperf-harness")
    assert model["max_model_len"] == 48
    assert json.loads(server.ask("/version")[1]) == {"version": __version__}


def test_streams_and_whole_replies_of_many_clients_have_the_same_tokens(server: Server) -> None:
    """The prompts outnumber the rows, so new prompts join when others end."""
    wanted = {prompt: server.complete(prompt, return_token_ids=True) for prompt in PROMPTS}

    def streamed(prompt: str) -> list[Any]:
        options = {"stream": True, "stream_options": EXACT, "return_token_ids": True}
        return server.stream({"model": "tinylm", "prompt": prompt, **options})

    with ThreadPoolExecutor(12) as pool:
        many = list(pool.map(streamed, PROMPTS * 4))
    for prompt, events in zip(PROMPTS * 4, many, strict=True):
        (right,) = wanted[prompt]["choices"]
        *chunks, last = events
        choices = [chunk["choices"][0] for chunk in chunks]
        assert [token for choice in choices for token in choice["token_ids"]] == right["token_ids"]
        assert "".join(choice["text"] for choice in choices) == right["text"]
        counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
        assert counts == list(range(1, len(right["token_ids"]) + 1))
        assert last["choices"] == []
        assert last["usage"] == wanted[prompt]["usage"]
        reasons = [choice["finish_reason"] for choice in choices]
        assert reasons == [None] * (len(choices) - 1) + [right["finish_reason"]]


def test_token_ids_a_text_and_a_chat_are_the_same_prompt(server: Server) -> None:
    prompts = server.served.prompts
    text = "reverse 98="
    right = server.complete(text)["choices"][0]["text"]
    assert server.complete(prompts.tokens({"prompt": text}))["choices"][0]["text"] == right
    chat = {"model": "tinylm", "messages": [{"role": "user", "content": text}]}
    status, reply = server.ask("/v1/chat/completions", chat)
    assert status == 200
    assert json.loads(reply)["choices"][0]["message"] == {"role": "assistant", "content": right}
    opening, *chunks = server.stream({**chat, "stream": True}, "/v1/chat/completions")
    assert opening["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == right


def test_a_client_that_leaves_frees_its_place(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each client requests as many tokens as the context allows, and leaves after the first chunk."""
    generator = server.served.generator
    real = generator.step

    def slow() -> Any:
        time.sleep(0.02)
        return real()

    monkeypatch.setattr(generator, "step", slow)
    whole = {"prompt": [2, 5, 4], "max_tokens": 44, "ignore_eos": True}
    body = json.dumps({"model": "tinylm", "stream": True, **whole}).encode()
    before = counts(server)
    for _ in range(8):
        with socket.create_connection(server.loop.address, TIMEOUT_S) as sock:
            head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
            sock.sendall(head % len(body) + body)
            assert sock.recv(12) == b"HTTP/1.1 200"
    monkeypatch.undo()
    assert server.complete("sort 21=", max_tokens=3)["usage"]["completion_tokens"] == 3
    reply = server.complete([2, 5, 4], max_tokens=44, ignore_eos=True)
    assert reply["usage"]["completion_tokens"] == 44
    assert reply["choices"][0]["finish_reason"] == "length"
    grown = {name: value - before[name] for name, value in counts(server).items()}
    assert (grown["requests_total", "left"], grown["requests_total", "answered"]) == (8, 2)


def test_whole_reply_reports_its_queue_and_compute_times(server: Server) -> None:
    connection = http.client.HTTPConnection(*server.loop.address, timeout=TIMEOUT_S)
    connection.request(
        "POST", "/v1/completions", json.dumps({"model": "tinylm", "prompt": "sort 21="})
    )
    with connection.getresponse() as response:
        parts = dict(part.split(";dur=") for part in response.headers["Server-Timing"].split(", "))
    connection.close()
    queue, compute, total = (float(parts[name]) for name in ("queue", "compute", "total"))
    assert compute > 0
    assert total == pytest.approx(queue + compute, abs=1e-3)


def counts(server: Server) -> dict[tuple[str, str | None], float]:
    """Maps (sample, end) to a value; for a histogram, to its sum and count."""
    status, page = server.ask("/metrics")
    assert status == 200
    return {
        (sample.name.removeprefix("harness_serve_"), sample.labels.get("end")): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
        if "le" not in sample.labels and not sample.name.endswith("_created")
    }


def test_metrics_count_requests_by_their_end_tokens_and_times(server: Server) -> None:
    before = counts(server)
    whole = server.complete(["sort 21=", "sort 1="], n=2, max_tokens=2, ignore_eos=True)
    server.stream({"model": "tinylm", "prompt": "sort 21=", "stream": True, "max_tokens": 1})
    assert server.ask("/v1/completions", {"model": "tinylm"})[0] == 400
    grown = {name: value - before[name] for name, value in counts(server).items()}
    ends = {end: grown["requests_total", end] for end in ("answered", "refused", "failed", "left")}
    assert ends == {"answered": 2, "refused": 1, "failed": 0, "left": 0}
    assert grown["prompt_tokens_total", None] == whole["usage"]["prompt_tokens"] + 4
    assert grown["generated_tokens_total", None] == whole["usage"]["completion_tokens"] + 1 == 9
    parts = ("request", "queue", "compute", "first_token")
    assert {grown[f"{part}_seconds_count", None] for part in parts} == {2}
    total, queue, compute, first = (grown[f"{part}_seconds_sum", None] for part in parts)
    assert total == pytest.approx(queue + compute)
    assert queue < first < total


@pytest.mark.parametrize(
    ("fields", "status", "problem"),
    [
        ({"guided_regex": "a"}, 400, "this server does not support the field 'guided_regex'"),
        ({"model": "gpt"}, 404, "this server has no model 'gpt', only 'tinylm'"),
        ({"prompt": ["1", 1]}, 400, "prompt must be a string, a list of token ids, or a list of either"),
        ({"prompt": ""}, 400, "the prompt is empty"),
        ({"prompt": [99]}, 400, "the prompt has a token outside the vocabulary of 15 tokens"),
        ({"prompt": "1" * 48}, 400, "the prompt has 48 tokens"),
        ({"max_tokens": 0}, 400, "max_tokens is 0, but must be"),
        ({"stream": "yes"}, 400, "stream is 'yes', but must be true or false"),
        ({"stream_options": EXACT}, 400, "stream_options must be an object, and needs stream"),
        ({"messages": []}, 400, "the request needs prompt, and must not have messages"),
    ],
)  # fmt: skip
def test_unsupported_request_is_refused_in_one_line(
    fields: dict[str, Any], status: int, problem: str, server: Server
) -> None:
    found, text = server.ask("/v1/completions", {"model": "tinylm", "prompt": "sort 1=", **fields})
    error = json.loads(text)["error"]
    assert (found, error["code"]) == (status, status)
    assert error["param"] == next(iter(fields))
    assert error["message"].startswith(problem)
    assert "\n" not in error["message"]


def test_other_paths_and_methods_are_refused(server: Server) -> None:
    status, text = server.ask("/v2/models/tinylm")
    assert status == 404
    message = json.loads(text)["error"]["message"]
    for path in ("/v1/completions", "/v1/embeddings", "/v1/rerank", "/v1/models", "/metrics"):
        assert path in message
    assert "/v1/models/" not in message
    assert server.ask("/v1/completions")[0] == 405
    assert server.ask("/v1/models", {})[0] == 405
    assert server.ask("/v1/completions", [])[0] == 400


def test_a_failing_backend_ends_only_the_replies_in_progress(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = server.served.generator
    real = generator.step
    streaming = threading.Event()
    before = counts(server)["requests_total", "failed"]

    def failing() -> Any:
        if streaming.is_set():
            raise RuntimeError("out of luck")
        streaming.set()
        return real()

    monkeypatch.setattr(generator, "step", failing)
    status, text = server.ask(
        "/v1/completions",
        {"model": "tinylm", "prompt": [2, 5, 4], "stream": True, "ignore_eos": True},
    )
    assert status == 200
    last = json.loads(EventParser().feed(text)[-1])
    assert last["error"]["message"] == "the model cannot answer: RuntimeError: out of luck"
    status, text = server.ask("/v1/completions", {"model": "tinylm", "prompt": "sort 1="})
    assert (status, json.loads(text)["error"]["type"]) == (500, "server_error")
    monkeypatch.undo()
    assert server.complete("sort 21=", max_tokens=1)["usage"]["completion_tokens"] == 1
    assert server.completions.first_failure == "RuntimeError: out of luck"
    assert counts(server)["requests_total", "failed"] - before == 2
    assert generator.is_idle
