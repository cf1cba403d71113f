"""The Responses API and the Messages API of a served language model, read with the harness's client."""

import json
from typing import Any

import pytest

from harness.backends.parts.openai.endpoints import ENDPOINTS
from harness.backends.parts.openai.replies import Completion, Reading
from harness.backends.parts.openai.streams import Streamed
from harness.remote import Reply
from tests.serve.conftest import Server

pytest.importorskip("onnxruntime")

PROMPT, ANSWER = "sort 40271=", "01247"
RESPONSE: dict[str, Any] = {"model": "tinylm", "input": PROMPT}
MESSAGE: dict[str, Any] = {
    "model": "tinylm",
    "max_tokens": 20,
    "messages": [{"role": "user", "content": [{"type": "text", "text": PROMPT}]}],
}
ASKED: dict[str, dict[str, Any]] = {"responses": RESPONSE, "messages": MESSAGE}
PATHS = {name: ENDPOINTS[name].path for name in ASKED}


def replied(server: Server, name: str, **fields: Any) -> bytes:
    status, text = server.ask(PATHS[name], {**ASKED[name], **fields})
    assert status == 200, text
    return text


@pytest.mark.parametrize("name", [*ASKED])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("most", "text", "finish"), [(20, ANSWER, "stop"), (2, ANSWER[:2], "length")]
)
def test_our_client_reads_answer_count_and_end(
    server: Server, name: str, stream: bool, most: int, text: str, finish: str
) -> None:
    bound = {ENDPOINTS[name].bound: most}
    body = replied(server, name, stream=stream, **bound)
    reading = Reading(wants_text=True, needs_end=True, endpoint=ENDPOINTS[name])
    reader: Streamed | Completion = Streamed(reading) if stream else Completion(reading)
    (answer,) = reader.answer(Reply(200, b"", memoryview(body)))
    assert answer.tobytes().decode() == text
    usage = reader.usage
    assert usage.input == server.complete(PROMPT)["usage"]["prompt_tokens"]
    assert usage.output == (len(ANSWER) + 1 if finish == "stop" else most)
    ends = {"stop": ("stop", "end_turn"), "length": ("length", "max_tokens")}
    assert usage.finish_reason in ends[finish]
    assert (usage.contradiction, usage.doubt) == ("", "")
    assert reader.model == "tinylm"


def test_a_stream_has_one_delta_for_each_text(server: Server) -> None:
    body = replied(server, "responses", stream=True).decode()
    names = [line.removeprefix("event: ") for line in body.splitlines() if line.startswith("event")]
    deltas = names.count("response.output_text.delta")
    assert deltas == len(ANSWER)
    assert names[:4] == [
        *("response.created", "response.in_progress"),
        *("response.output_item.added", "response.content_part.added"),
    ]
    assert names[-1] == "response.completed"
    events = [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: ")]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events] == names


def test_a_stop_sequence_is_named(server: Server) -> None:
    found = json.loads(replied(server, "messages", stop_sequences=["24"]))
    assert (found["stop_reason"], found["stop_sequence"]) == ("stop_sequence", "24")
    assert found["content"] == [{"type": "text", "text": ANSWER[:2]}]


def test_instructions_and_system_are_read_and_texts_may_be_lists(server: Server) -> None:
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": PROMPT}]}
    found = json.loads(replied(server, "responses", input=[item], instructions="short"))
    assert found["output"][0]["content"][0]["text"] == ANSWER
    found = json.loads(replied(server, "messages", system="short"))
    assert found["content"][0]["text"] == ANSWER


@pytest.mark.parametrize(
    ("name", "fields", "param"),
    [
        ("responses", {"input": None}, "input"),
        ("responses", {"input": 7}, "input"),
        ("responses", {"tools": [{"type": "web_search"}]}, "tools"),
        ("responses", {"reasoning": {"effort": "low"}}, "reasoning"),
        ("responses", {"text": {"format": {"type": "json_object"}}}, "text"),
        ("responses", {"previous_response_id": "resp_1"}, "previous_response_id"),
        ("responses", {"temperature": 0.5}, "temperature"),
        ("messages", {"max_tokens": None}, "max_tokens"),
        ("messages", {"messages": "text"}, "messages"),
        ("messages", {"tools": [{"name": "look"}]}, "tools"),
        ("messages", {"thinking": {"type": "enabled"}}, "thinking"),
    ],
)
def test_unsupported_fields_are_refused_by_name(
    server: Server, name: str, fields: dict[str, Any], param: str
) -> None:
    status, text = server.ask(PATHS[name], {**ASKED[name], **fields})
    error = json.loads(text)["error"]
    assert (status, error["param"]) == (400, param)


@pytest.mark.parametrize("name", [*ASKED])
def test_a_run_measures_the_endpoint(server: Server, name: str, tmp_path: Any) -> None:
    from harness.cli.main import main

    host, port = server.loop.address
    status = main(
        [
            *("--backend", "openai", "--url", f"http://{host}:{port}", "--model", "tinylm"),
            *("--scenario", "single-stream", "--mode", "performance", "--queries", "80"),
            *("--dataset", "prompts", "--data-dir", str(_prompts(tmp_path)), "--no-metrics"),
            *("--backend-option", f"endpoint={name}", "--backend-option", "max_tokens=24"),
            *("--no-report", "--out", str(tmp_path / "run")),
        ]
    )
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert {reason["code"] for reason in result["reasons"]} <= {"client-bound"}
    assert status == (4 if result["reasons"] else 0)
    assert result["tokens"]["ttft_ns"]["p50"] < result["latency_ns"]["p50"]
    assert "tokens-doubtful" not in {doubt["code"] for doubt in result["doubts"]}


def _prompts(folder: Any) -> Any:
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"sort {n}0271="}) + "\n" for n in range(20)))
    return path
