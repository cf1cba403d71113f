"""The remote backend openai sends prompts and receives token ids or texts, in every server dialect."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.backends.openai import OpenAiRemote
from harness.backends.parts.openai.replies import Completion, Reading, parts_of
from harness.core.config.address import parse_address
from harness.errors import ConfigError
from harness.remote import BadAnswer, HasReader, Refused, Remote, Reply, Usage
from harness.types import BackendSetup, Batch
from harness.wire.connections import Server
from harness.wire.remote_backend import Link
from tests.builders.refusals import refusal, refusals
from tests.stand_ins.servers.token_server import (
    TRANSFORMERS,
    VLLM,
    Dialect,
    TokenServer,
    ids_of,
    text_of,
)

PROMPT = b'{"prompt":[1,2,3]}'
CHAT = b'{"messages":[{"role":"user","content":"Hi"}]}'
MESSAGES = json.loads(CHAT)["messages"]


def backend(**options: str) -> OpenAiRemote:
    return OpenAiRemote(
        BackendSetup(model=None, model_name="mine", options={"stream": "off", **options})
    )


@contextmanager
def asked(
    dialect: Dialect = VLLM, **options: str
) -> Iterator[tuple[OpenAiRemote, Link, TokenServer]]:
    with TokenServer(dialect) as server:
        link = Link(Server(address=parse_address(server.url)), 10.0)
        remote = backend(**options)
        try:
            remote.open(link.exchange_at_start)
            yield remote, link, server
        finally:
            link.close()


def batch(sample: bytes) -> Batch:
    rows = np.empty(1, object)
    rows[0] = sample
    return Batch(1, {"request": rows})


def answered(remote: OpenAiRemote, link: Link, sample: bytes) -> tuple[Any, Usage]:
    reader = remote.reader()
    (answer,) = reader.answer(link.exchange(remote.request(batch(sample))))
    assert reader.usage.reply_id.startswith("cmpl-")
    return answer, reader.usage._replace(reply_id="")


def test_token_ids_go_to_completions_and_token_ids_come_back() -> None:
    with asked(max_tokens="5") as (remote, link, server):
        assert isinstance(remote, Remote)
        assert isinstance(remote, HasReader)
        answer, usage = answered(remote, link, PROMPT)
        assert answer.dtype == np.int32
        assert answer.tolist() == ids_of([1, 2, 3], 5)
        assert usage == Usage(3, 5, "usage", "length")
        sent = {"model": "tiny", "temperature": 0, "return_token_ids": True, "max_tokens": 5}
        assert server.requests[-1] == {**sent, "prompt": [1, 2, 3]}


def test_a_sample_s_own_max_tokens_wins() -> None:
    with asked() as (remote, link, server):
        quoted = b'{"max_tokens":3,"prompt":"\\"messages\\": x"}'
        for sample in (quoted, b'{"max_tokens":3,' + CHAT[1:]):
            answer, usage = answered(remote, link, sample)
            assert len(answer) == usage.output == 3
            assert server.requests[-1]["max_tokens"] == 3


def test_messages_go_to_chat_completions() -> None:
    with asked(answer="text", max_tokens="8") as (remote, link, _):
        answer, _usage = answered(remote, link, CHAT)
        assert answer.dtype == np.uint8
        assert answer.tobytes().decode() == text_of(ids_of(MESSAGES, 8))


@pytest.mark.parametrize("stream", ["on", "off"])
def test_a_server_without_tokenizer_gets_token_ids_and_returns_token_ids(stream: str) -> None:
    dialect = replace(VLLM, ids=False, texts=False, logs_ids=True)
    with asked(dialect, stream=stream, body="{logprobs: 1}") as (remote, link, server):
        answer, _ = answered(remote, link, PROMPT)
        assert (answer.dtype, answer.tolist()) == (np.int32, ids_of([1, 2, 3], 128))
        link.exchange(remote.probe())
        assert server.requests[-1]["prompt"] == [1, 2]


@pytest.mark.parametrize(
    "logprobs",
    [
        {"tokens": ["a"], "token_logprobs": [-0.5]},  # vLLM's completions
        {"content": [{"token": "a", "logprob": -0.5}]},  # OpenAI's chats
        {"content": [{"id": 3}, {"id": -1}]},
        {"content": [{"id": 3}, "a"]},
        None,
    ],
)
def test_log_probabilities_without_token_ids_leave_the_text(logprobs: Any) -> None:
    assert parts_of({"text": "ab", "logprobs": logprobs}).ids is None


def test_a_server_without_token_ids_answers_with_texts() -> None:
    with asked(TRANSFORMERS) as (remote, link, server):
        answer, usage = answered(remote, link, CHAT)
        assert answer.dtype == np.uint8
        assert usage == Usage(1, 128, "usage", "length")
        assert "return_token_ids" not in server.requests[-1]
        assert remote.describe()["endpoints"] == {
            "/v1/chat/completions": {"extras": [], "answers": "text"}
        }
        assert refusal(remote.request, batch(PROMPT)) == (
            "the prompts need /v1/completions, which the server refused: the server answered 404: "
            "Not Found"
        )


def test_fields_of_the_body_are_in_every_request() -> None:
    with asked(max_tokens="5", body="{temperature: 0.7, stop: [x]}") as (remote, link, server):
        answered(remote, link, PROMPT)
        assert {"temperature": 0.7, "stop": ["x"]}.items() <= server.requests[0].items()
        assert {"temperature": 0.7, "stop": ["x"]}.items() <= server.requests[-1].items()
        about = remote.describe()
        assert about["body"] == {"temperature": 0.7, "stop": ["x"]}
        assert about["draws_tokens"] is True


def test_fields_of_a_prompt_win_over_the_body() -> None:
    prompt = {"temperature": 0.2, "top_k": 5, "prompt": [1, 2, 3]}
    sample = json.dumps({"fields": [*prompt], **prompt}, separators=(",", ":")).encode()
    with asked(max_tokens="5", body="{temperature: 0.7, top_p: 0.9}") as (remote, link, server):
        (body,) = {b"".join(map(bytes, remote.request(batch(sample)).body)) for _ in range(2)}
        assert body.count(b'"temperature"') == 1
        assert answered(remote, link, sample)[0].tolist() == ids_of([1, 2, 3], 5)
        sent = server.requests[-1]
    assert (sent["temperature"], sent["top_p"], sent["top_k"]) == (0.2, 0.9, 5)
    assert sent["max_tokens"] == 5
    assert "fields" not in sent


def test_a_prompt_of_messages_with_fields_goes_to_chat() -> None:
    fields = {"top_k": 5, "max_tokens": 3, "messages": MESSAGES}
    sample = json.dumps({"fields": [*fields], **fields}, separators=(",", ":")).encode()
    with asked() as (remote, link, server):
        assert len(answered(remote, link, sample)[0]) == 3
        assert server.requests[-1]["messages"] == MESSAGES


def test_a_prompt_may_name_its_model() -> None:
    fields = {"model": "lora-a", "prompt": [1, 2, 3]}
    sample = json.dumps({"fields": [*fields], **fields}, separators=(",", ":")).encode()
    with asked(max_tokens="5") as (remote, _, _):
        request = remote.request(batch(sample))
        assert json.loads(b"".join(map(bytes, request.body)))["model"] == "lora-a"
        reader = remote.reader()
        reply = {"model": "lora-a", "choices": [{"text": "1", "finish_reason": "stop"}]}
        reader.answer(Reply(200, b"", memoryview(json.dumps(reply).encode())))
        reply["model"] = "lora-b"
        with pytest.raises(BadAnswer, match="from the model 'lora-b'"):
            remote.reader().answer(Reply(200, b"", memoryview(json.dumps(reply).encode())))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("temperature", "--backend-option body is not a mapping of fields"),
        ("{a: [", "--backend-option body is neither YAML nor JSON"),
        (
            "{max_tokens: 3, stream: false}",
            "max_tokens has a separate option: --backend-option max_tokens=",
        ),
        ("{n: 2}", "n must be 1"),
        ("{a: .nan}", "a value is not valid JSON"),
        ("{a: 2020-01-01}", "a value is not valid JSON"),
    ],
)
def test_a_body_that_cannot_be_sent_is_refused(text: str, problem: str) -> None:
    assert refusal(backend, body=text).startswith(problem) or problem in refusal(backend, body=text)


@pytest.mark.parametrize("entries", [[{}], [{"id": None}], [{"id": ""}], [{"id": 7}], ["tiny"]])
def test_models_without_a_name_are_ignored(entries: list[Any]) -> None:
    """Bug: a model without an id was called `None`, and all other models were refused."""
    listed = json.dumps({"data": entries}).encode()
    dialect = replace(VLLM, change=lambda path, data: listed if path == "/v1/models" else data)
    with asked(dialect, served="tiny", max_tokens="5") as (remote, _, _):
        assert remote.describe()["model"] == "tiny"


def test_server_without_a_list_of_models_is_queried_by_name() -> None:
    with asked(replace(VLLM, lists_models=False), served="tiny", max_tokens="5") as found:
        remote, link, _ = found
        assert answered(remote, link, PROMPT)[0].tolist() == ids_of([1, 2, 3], 5)
        assert remote.describe()["framework"] == "unknown"


@pytest.mark.parametrize(
    ("dialect", "usage"),
    [
        (replace(VLLM, usage="none"), Usage(None, 128, "token ids", "length")),
        (replace(TRANSFORMERS, usage="none"), Usage(None, None, "", "length")),
        (replace(VLLM, tokens=7), Usage(1, 7, "usage", "stop")),
    ],
)
def test_tokens_are_counted_from_the_best_source_of_the_server(
    dialect: Dialect, usage: Usage
) -> None:
    with asked(dialect) as (remote, link, _):
        assert answered(remote, link, CHAT)[1] == usage


@pytest.mark.parametrize("api", ["/v1/completions", "/v1/chat/completions"])
def test_endpoint_without_finish_reasons_is_used_too(api: str) -> None:
    """Bug: answers of the endpoint under test were cut at the end marks of the other endpoint."""

    def without_end(path: str, data: bytes) -> bytes:
        return data.replace(b'"length"', b"null") if path == api else data

    with asked(replace(VLLM, change=without_end)) as (remote, link, _):
        ends = [answered(remote, link, sample)[1].finish_reason for sample in (PROMPT, CHAT)]
        assert sorted(ends) == ["", "length"]


def test_ignore_eos_is_sent_on_request() -> None:
    with asked(replace(VLLM, tokens=2), ignore_eos="on", max_tokens="9") as (remote, link, server):
        assert len(answered(remote, link, PROMPT)[0]) == 9
        assert server.requests[-1]["ignore_eos"] is True


@pytest.mark.parametrize(
    ("fault", "status", "text"),
    [("error-200", 200, "the engine is dead"), ("busy", 429, "too many requests")],
)
def test_error_of_any_status_is_a_refusal(fault: str, status: int, text: str) -> None:
    with asked(replace(VLLM, fault=fault, every=3)) as (remote, link, _):
        with pytest.raises(Refused) as error:
            answered(remote, link, PROMPT)
        told = f"the server answered {status}: {text}"
        assert (error.value.status, str(error.value)) == (status, told)


def test_server_is_described_by_its_own_words() -> None:
    with asked() as (remote, _, _):
        about = remote.describe()
    told = (about["framework"], about["model"], about["device"])
    assert told == ("vllm 0.32.0", "tiny", "remote")


@pytest.mark.parametrize(
    ("dialect", "options", "message"),
    [
        (VLLM, {"served": "other"}, "the server has no model 'other', only tiny: name one with --backend-option served=NAME"),
        (TRANSFORMERS, {"answer": "ids"}, "the server returns no token ids: drop --backend-option answer=ids to get text"),
        (
            replace(VLLM, apis=()),
            {},
            (
                "model 'tiny' did not answer a one-word prompt: /v1/completions and /v1/chat/completions: the server "
                "answered 404: Not Found; if --url has a path, pass only http://HOST:PORT"
            ),
        ),
    ],
)  # fmt: skip
def test_missing_feature_of_a_server_is_reported_before_the_run(
    dialect: Dialect, options: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError) as error, asked(dialect, **options):
        pass
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": "0"}, "--backend-option max_tokens: '0' is not a number of at least 1"),
        ({"answer": "both"}, "--backend-option answer: 'both' is not one of ids, text, calls"),
        (
            {"temperature": "1"},
            (
                "backend 'openai' has no option 'temperature': choose from served=NAME stream=on|off max_tokens=NUMBER "
                "ignore_eos=off|on answer=ids|text|calls body=FIELDS|@FILE models=WEIGHTS|@FILE "
                "endpoint=auto|responses|messages|embeddings|pooling|rerank|transcriptions|speech|images "
                "cache_block=TOKENS fresh=on|SEED"
            ),
        ),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], message: str) -> None:
    assert refusal(backend, **options) == message


def test_all_wrong_options_are_reported_at_once() -> None:
    told = refusals(
        backend,
        streem="off",
        max_tokens="-1",
        endpoint="foo",
        cache_block="0",
        body="[1]",
        models="{a: -1}",
    )
    assert told[0] == "backend 'openai' has no option 'streem': did you mean 'stream'?"
    options = ("endpoint", "max_tokens", "cache_block", "body", "models")
    for option, line in zip(options, told[1:], strict=True):
        assert line.startswith(f"--backend-option {option}")


def test_prompts_are_sent_one_a_request() -> None:
    told = refusal(OpenAiRemote, BackendSetup(model=None, model_name="m", max_batch=2))
    assert told == "backend 'openai' sends one prompt per request: set --max-batch 1"


@pytest.mark.parametrize("sample", ["a text", b"[1]", b""])
def test_only_prompts_are_sent(sample: Any) -> None:
    told = refusal(backend().request, batch(sample), error=ValueError)
    assert told == "backend 'openai' takes prompts, one per request: use --dataset prompts"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                (
                    *("choices", "text", "message", "delta", "content", "token_ids", "usage"),
                    *("completion_tokens", "prompt_tokens", "tool_calls", "function", "error"),
                    "finish_reason",
                )
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(
    st.one_of(
        st.binary(max_size=60),
        JSON.map(lambda value: json.dumps(value).encode()),
        JSON.map(lambda value: json.dumps({"choices": [value]}).encode()),
    ),
    st.sampled_from([200, 404, 500]),
)
def test_any_reply_is_an_answer_or_an_error(body: bytes, status: int) -> None:
    try:
        (answer,) = backend().answer(Reply(status, b"", memoryview(body)), 1)
    except (Refused, BadAnswer):
        return
    assert status == 200
    assert answer.ndim == 1
    assert answer.dtype in (np.int32, np.uint8)


def reply_of(model: object, stream: bool) -> Reply:
    told = {} if model is None else {"model": model}
    text = json.dumps({**told, "choices": [{"text": "word", "finish_reason": "stop"}]})
    body = f"data: {text}\n\ndata: [DONE]\n\n" if stream else text
    return Reply(200, b"", memoryview(body.encode()))


@pytest.mark.parametrize("stream", ["off", "on"])
@pytest.mark.parametrize("model", ["tiny", None, "", "replica"])
def test_a_reply_of_a_model_that_answered_before_the_run_is_taken(model: Any, stream: str) -> None:
    with asked(stream=stream) as (remote, _, _):
        remote.answer(reply_of("replica", stream == "on"), 1)
        (answer,) = remote.reader().answer(reply_of(model, stream == "on"))
        assert answer.tobytes() == b"word"
        assert remote.describe()["answers_as"] == ["replica", "tiny"]


@pytest.mark.parametrize("stream", ["off", "on"])
def test_reply_of_another_model_than_before_the_run_is_refused(stream: str) -> None:
    with asked(stream=stream) as (remote, _, _), pytest.raises(BadAnswer) as error:
        remote.reader().answer(reply_of("smaller", stream == "on"))
    assert str(error.value) == (
        "the reply is from the model 'smaller'; before the run the server answered as 'tiny'"
    )


def test_stream_of_two_models_is_refused() -> None:
    with asked(stream="on") as (remote, _, _):
        chunks = [
            {"model": model, "choices": [{"text": "word", "finish_reason": None}]}
            for model in ("tiny", "smaller")
        ]
        body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
        with pytest.raises(BadAnswer, match="is from the model 'smaller'"):
            remote.reader().answer(Reply(200, b"", memoryview(body.encode())))


def test_reply_is_accepted_from_a_server_without_a_model_name() -> None:
    reading = Reading()
    (answer,) = Completion(reading).answer(reply_of("any", stream=False))
    assert answer.tobytes() == b"word"
