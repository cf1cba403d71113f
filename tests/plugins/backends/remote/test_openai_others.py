"""Endpoints of OpenAI's API that return vectors, sound or images."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from harness.backends.openai import OpenAiRemote
from harness.backends.parts.openai.mixes import read_mix
from harness.backends.parts.openai.others import OTHERS
from harness.cli.main import main
from harness.core.config.address import parse_address
from harness.core.units import NS_PER_MS
from harness.errors import ConfigError
from harness.remote import BadAnswer, HasReader, Refused, Reply
from harness.results.run_files import read_files
from harness.types import Array, BackendSetup, Batch
from harness.wire.connections import Server
from harness.wire.remote_backend import Link
from tests.stand_ins.servers.media_server import (
    PNG,
    SAMPLES_PER_CHARACTER,
    VALUE,
    MediaServer,
    media_server,
)


def remote(endpoint: str, max_batch: int = 1, **options: Any) -> Any:
    setup = BackendSetup(
        model=None,
        model_name="media",
        max_batch=max_batch,
        options={"endpoint": endpoint, **options},
    )
    return OpenAiRemote(setup)


def prompts(*rows: dict[str, Any]) -> Batch:
    held = np.empty(len(rows), object)
    for place, row in enumerate(rows):
        held[place] = json.dumps(row, separators=(",", ":")).encode()
    return Batch(len(rows), {"request": held})


def answers(server: MediaServer, plug_in: Any, batch: Batch) -> Sequence[Array]:
    link = Link(Server(address=parse_address(server.url)), 10.0)
    try:
        plug_in.open(link.exchange_at_start)
        return cast(
            "Sequence[Array]", plug_in.answer(link.exchange(plug_in.request(batch)), batch.size)
        )
    finally:
        link.close()


@pytest.mark.parametrize("endpoint", ["embeddings", "pooling"])
def test_vectors_of_a_batch_keep_its_order(endpoint: str) -> None:
    with media_server() as server:
        texts: list[dict[str, Any]] = [
            {"prompt": "a"},
            {"prompt": "bcd"},
            {"prompt": "ef", "max_tokens": 3},
        ]
        plug_in = remote(endpoint, max_batch=4)
        found = answers(server, plug_in, prompts(*texts))
        assert np.array(found).tolist() == [[1, 1], [3, 1], [2, 1]]
        assert np.array(found).dtype == np.float32
        _, fields = server.asked[-1]
        assert fields["input"] == ["a", "bcd", "ef"]
        assert "max_tokens" not in fields


def test_scores_come_in_the_order_of_the_documents() -> None:
    row = {
        "fields": ["documents", "prompt"],
        "documents": ["aaaa", "bb", "cccccc"],
        "prompt": "dd",
    }
    with media_server() as server:
        (found,) = answers(server, remote("rerank"), prompts(row))
    assert found.tolist() == pytest.approx([1 / 3, 1, 1 / 5])


def test_sound_is_uploaded_without_its_filling() -> None:
    sound = np.zeros((1, 16_000), np.float32)
    inputs: dict[str, Array] = {"audio": sound, "length": np.array([[4000]], np.int64)}
    with media_server() as server:
        plug_in = remote("transcriptions", body="{language: en, temperature: 0}")
        (found,) = answers(server, plug_in, Batch(1, inputs))
        _, fields = server.asked[-1]
    assert found.tobytes().decode() == "16000 4000"
    assert fields == {
        "model": "media",
        "response_format": "json",
        "language": "en",
        "temperature": "0",
    }
    assert plug_in.media_ns(Batch(1, inputs)) == 250 * NS_PER_MS


def test_speech_reports_the_duration_of_its_sound() -> None:
    with media_server() as server:
        plug_in = remote("speech", voice="nova", rate="24000")
        (found,) = answers(server, plug_in, prompts({"prompt": "Hello there"}))
        _, fields = server.asked[-1]
    samples = np.frombuffer(found.tobytes(), "<i2")
    assert (len(samples), set(samples.tolist())) == (11 * SAMPLES_PER_CHARACTER, {VALUE})
    assert (fields["voice"], fields["response_format"]) == ("nova", "pcm")
    assert isinstance(plug_in, HasReader)
    reader = cast("Any", plug_in.reader())
    assert [reader.feed(b""), reader.feed(b"1234"), reader.feed(b"5678")] == [0, 1, 2]
    reply = Reply(200, b"HTTP/1.1 200 OK\r\n\r\n", memoryview(b"\0" * 48_000))
    reader.answer(reply)
    assert reader.usage.media_ns == 1000 * NS_PER_MS


def test_an_image_is_the_decoded_file() -> None:
    with media_server() as server:
        (found,) = answers(server, remote("images", size="64x64"), prompts({"prompt": "a cat"}))
        _, fields = server.asked[-1]
    assert found.tobytes() == PNG + b"a cat"
    assert (fields["size"], fields["n"]) == ("64x64", 1)


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("embeddings", b'{"data":[]}'),
        ("embeddings", b'{"data":[{"index":1,"embedding":[1]}]}'),
        ("embeddings", b'{"data":[{"index":0,"embedding":["a"]}]}'),
        ("embeddings", b'{"data":[{"index":0,"embedding":"!"}]}'),
        ("embeddings", b'{"data":[{"index":0,"embedding":[]}]}'),
        ("embeddings", b"[]"),
        ("embeddings", b"no"),
        ("rerank", b'{"results":[{"index":1,"relevance_score":0.5}]}'),
        ("rerank", b'{"results":[{"index":0,"relevance_score":"a"}]}'),
        ("transcriptions", b'{"text":7}'),
        ("speech", b"\0"),
        ("images", b'{"data":[{"url":"http://a"}]}'),
        ("images", b'{"data":[{"b64_json":"*"}]}'),
    ],
)
def test_a_reply_of_another_form_is_a_bad_answer(endpoint: str, body: bytes) -> None:
    with pytest.raises(BadAnswer):
        remote(endpoint).answer(Reply(200, b"HTTP/1.1 200 OK\r\n\r\n", memoryview(body)), 1)


@pytest.mark.parametrize("endpoint", OTHERS)
def test_a_refusal_keeps_the_servers_words(endpoint: str) -> None:
    body = b'{"error":{"message":"overloaded"}}'
    for status in (503, 200) if endpoint != "speech" else (503,):
        with pytest.raises(Refused, match="overloaded"):
            remote(endpoint).answer(Reply(status, b"HTTP/1.1 503 No\r\n\r\n", memoryview(body)), 1)


@pytest.mark.parametrize(
    ("endpoint", "options", "text"),
    [
        ("rerank", {"stream": "off"}, "has no option 'stream'"),
        ("embeddings", {"encoding": "int8"}, "'int8' is not one of float, base64"),
        ("speech", {"rate": "fast"}, "rate: 'fast' is not a number"),
        ("images", {"body": "7"}, "is not a mapping of fields"),
    ],
)
def test_wrong_options_are_named(endpoint: str, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        remote(endpoint, **options)


def test_endpoints_of_one_sample_refuse_batches() -> None:
    with pytest.raises(ConfigError, match="--max-batch 1"):
        remote("images", max_batch=2)


MANIFEST = """\
name: media
files: {}
inputs: [{name: request, dtype: string, shape: [batch]}]
outputs: [{name: answer}]
dataset: prompts
"""


def ran(
    folder: Path, server: MediaServer, rows: Sequence[dict[str, Any]], *words: str
) -> dict[str, Any]:
    (folder / "media.yaml").write_text(MANIFEST)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    main(
        [
            *("--backend", "openai", "--url", server.url, "--model", str(folder / "media.yaml")),
            *("--data-dir", str(folder / "rows.jsonl"), "--connections", "4", "--no-metrics"),
            *("--no-report", "--out", str(folder / "run"), *words),
        ]
    )
    result: dict[str, Any] = json.loads((folder / "run" / "result.json").read_text())
    assert {r["code"] for r in result["reasons"]} <= {"client-bound"}, result["reasons"]
    return result


def test_embeddings_are_scored_and_sent_in_batches(tmp_path: Path) -> None:
    rows = [
        {"prompt": "x" * length, "reference": [length, 1.0 if length % 2 else -1.0]}
        for length in range(1, 9)
    ]
    words = ("--scenario", "offline", "--mode", "both", "--queries", "64", "--metric", "cosine")
    option = ("--backend-option", "endpoint=embeddings", "--max-batch", "4")
    with media_server() as server:
        result = ran(tmp_path, server, rows, *words, *option)
        sizes = {len(fields["input"]) for _, fields in server.asked}
    right = np.array([[n, 1.0] for n in range(1, 9)])
    labels = np.array([row["reference"] for row in rows], float)
    cosines = (
        (right * labels).sum(1) / np.linalg.norm(right, axis=1) / np.linalg.norm(labels, axis=1)
    )
    assert result["accuracy"]["value"] == pytest.approx(cosines.mean(), abs=1e-6)
    assert max(sizes) == 4
    assert result["queries"]["mean_batch"] > 3
    assert main(["check", str(tmp_path / "run")]) == 0


def test_a_run_of_speech_has_its_first_sound_and_real_time_factor(tmp_path: Path) -> None:
    rows = [{"prompt": "word " * count} for count in range(1, 6)]
    words = ("--scenario", "server", "--concurrency", "2", "--queries", "60", "--slo", "p90=20s")
    option = ("--mode", "performance", "--backend-option", "endpoint=speech")
    with media_server() as server:
        result = ran(tmp_path, server, rows, *words, *option)
    media = result["media"]
    assert media["of"] == "answers"
    run = read_files(tmp_path / "run").performance
    assert run is not None
    assert run.done is not None
    characters = 5 * (1 + run.done.columns["index"])
    seconds = characters.sum() * SAMPLES_PER_CHARACTER / 24_000
    assert media["seconds"] == pytest.approx(seconds)
    assert media["real_time_factor"] > 0
    tokens = result["tokens"]
    assert 0 < tokens["ttft_ns"]["p50"] < result["latency_ns"]["p90"]
    assert main(["check", str(tmp_path / "run")]) == 0


def test_prompts_of_a_mix_keep_their_model() -> None:
    mix = read_mix("{base: 3, adapter: 1}")
    samples = [json.dumps({"prompt": str(number)}).encode() for number in range(4000)]
    chosen = [mix.model(sample) for sample in samples]
    assert chosen == [read_mix("{base: 3, adapter: 1}").model(sample) for sample in samples]
    assert chosen.count("adapter") / len(chosen) == pytest.approx(0.25, abs=0.03)
    assert read_mix("{only: 0.1}").model(b"x") == "only"


@pytest.mark.parametrize(
    "text", ["{a: 0}", "{a: -1}", "{a: x}", "[a]", "{}", "{1: 2}", "{a: true}", "{"]
)
def test_weights_that_are_not_positive_numbers_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--backend-option models"):
        read_mix(text)
