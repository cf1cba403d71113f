"""`serve` with a token engine: streams, texts, and refusals of requests that the engine does not support."""

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from harness.core import registry
from tests.builders.serving import serving

pytestmark = pytest.mark.slow

ENGINES = ("ort-genai", "openvino-genai", "llama-cpp")


@pytest.fixture(scope="module", params=ENGINES)
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    name: str = request.param
    if not registry.BACKENDS[name].installed:
        pytest.skip(f"{name} is not installed")
    with serving("tinylm", "--backend", name, "--threads", "1", "--max-batch", "4") as served:
        yield served.port


def asked(port: int, **request: Any) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    body = json.dumps({"model": "tinylm", "prompt": "sort 40271=", **request})
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    reply = connection.getresponse()
    text = reply.read().decode()
    connection.close()
    return reply.status, text


def test_a_prompt_is_answered_with_its_text(port: int) -> None:
    status, text = asked(port)
    assert status == 200
    answer = json.loads(text)
    assert answer["choices"][0]["text"] == "01247"
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 6


def test_several_prompts_stream_their_tokens(port: int) -> None:
    status, text = asked(port, prompt=["sort 40271=", "reverse 987="], stream=True)
    assert status == 200
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    texts = {0: "", 1: ""}
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == {0: "01247", 1: "789"}
    assert len(chunks) >= 8


def test_a_stop_text_ends_an_answer(port: int) -> None:
    answer = json.loads(asked(port, stop="2")[1])
    assert answer["choices"][0]["text"] == "01"
    assert json.loads(asked(port)[1])["choices"][0]["text"] == "01247"


def test_min_tokens_is_refused_with_what_to_do(port: int) -> None:
    status, text = asked(port, min_tokens=8)
    assert status == 400
    assert "min_tokens needs the logits" in json.loads(text)["error"]["message"]
