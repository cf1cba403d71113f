"""Streams of the backend openai: the backend counts tokens, not chunks, and stamps each token on arrival."""

import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.backends.openai import OpenAiRemote
from harness.backends.parts.openai.replies import Reading
from harness.backends.parts.openai.streams import Streamed
from harness.core.config.address import parse_address
from harness.core.units import NS_PER_MS
from harness.remote import BadAnswer, Refused, Reply
from harness.types import BackendSetup, Batch
from harness.wire.connections import Server
from harness.wire.flight import Flight
from harness.wire.flights import Flights
from harness.wire.remote_backend import Link
from tests.stand_ins.servers.token_server import (
    TRANSFORMERS,
    VLLM,
    Dialect,
    TokenServer,
    ids_of,
    text_of,
)

MESSAGES = [{"role": "user", "content": "Hi"}]
CHAT = json.dumps({"messages": MESSAGES}).encode()
TOKENS = 24


def batch() -> Batch:
    rows = np.empty(1, object)
    rows[0] = CHAT
    return Batch(1, {"request": rows})


@contextmanager
def opened(dialect: Dialect, **options: str) -> Iterator[tuple[OpenAiRemote, Server, TokenServer]]:
    options = {"max_tokens": str(TOKENS), **options}
    with TokenServer(dialect) as stub:
        server = Server(address=parse_address(stub.url))
        link = Link(server, 10.0)
        remote = OpenAiRemote(BackendSetup(model=None, model_name="mine", options=options))
        try:
            remote.open(link.exchange_at_start)
        finally:
            link.close()
        stub.sent.clear()
        yield remote, server, stub


def flown(remote: OpenAiRemote, server: Server, timeout_s: float = 10.0) -> Flight:
    """Sends one request with the client engine that runs use."""
    flights = Flights(
        [server],
        1,
        lambda _: remote.request(batch()),
        timeout_s,
        reader=remote.reader,  # type: ignore[arg-type] # it streams
    )
    try:
        flights.submit(Flight([0], [0], 0))
        end_s = time.monotonic() + 20
        while time.monotonic() < end_s:
            if done := flights.turn(0.1):
                return done[0]
    finally:
        flights.close()
    raise TimeoutError


def read(flight: Flight) -> Any:
    assert flight.reply is not None, flight.error
    assert isinstance(flight.reader, Streamed)
    (answer,) = flight.reader.answer(flight.reply)
    return answer


DIALECTS = [
    pytest.param(VLLM, True, id="vllm"),
    pytest.param(replace(VLLM, usage="last"), True, id="ids-and-last-usage"),
    pytest.param(replace(VLLM, ids=False), True, id="usage-of-each"),
    pytest.param(replace(VLLM, ids=False, usage="last"), False, id="last-usage"),
    pytest.param(replace(VLLM, ids=False, usage="finish"), False, id="usage-with-the-end"),
    pytest.param(TRANSFORMERS, False, id="transformers"),
    pytest.param(replace(VLLM, newline="\r\n", piece_bytes=7), True, id="crlf-cut-in-characters"),
    pytest.param(replace(TRANSFORMERS, role_chunk=False, done=False), False, id="no-role-no-done"),
]


@pytest.mark.parametrize("per_chunk", [1, 2, 4, 8])
@pytest.mark.parametrize(("dialect", "exact"), DIALECTS)
def test_every_dialect_gives_the_same_answer_and_the_same_count(
    dialect: Dialect, exact: bool, per_chunk: int
) -> None:
    with opened(replace(dialect, per_chunk=per_chunk), answer="text") as (remote, server, _):
        flight = flown(remote, server)
        assert read(flight).tobytes().decode() == text_of(ids_of(MESSAGES, TOKENS))
    reader = flight.reader
    assert isinstance(reader, Streamed)
    assert reader.is_exact == exact
    assert (reader.usage.output, reader.usage.finish_reason) == (TOKENS, "length")
    assert reader.chunks == TOKENS // per_chunk
    assert flight.chunks[-1][1] == (TOKENS if exact else TOKENS // per_chunk)


def test_token_ids_are_put_together_from_their_chunks() -> None:
    with opened(replace(VLLM, per_chunk=5)) as (remote, server, _):
        assert read(flown(remote, server)).tolist() == ids_of(MESSAGES, TOKENS)


def test_stamps_are_arrival_times_and_a_role_is_not_a_token() -> None:
    dialect = replace(VLLM, per_chunk=4, first_s=0.1, gap_s=0.03)
    with opened(dialect) as (remote, server, stub):
        flight = flown(remote, server)
    (sent,) = stub.sent
    assert [count for _, count in flight.chunks] == [4, 8, 12, 16, 20, 24]
    late_ms = [
        (stamp - begin) / NS_PER_MS for (stamp, _), begin in zip(flight.chunks, sent, strict=True)
    ]
    assert min(late_ms) > 0
    # The delay is shorter than a gap, so each time stamp belongs to its own chunk.
    assert statistics.median(late_ms) < 25
    assert flight.chunks[0][0] - flight.sent_ns > 90 * NS_PER_MS


def test_whole_reply_is_read_at_once_outside_a_run() -> None:
    with opened(VLLM) as (remote, server, _):
        link = Link(server, 10.0)
        (answer,) = remote.answer(link.exchange(remote.request(batch())), 1)
        link.close()
    assert answer.tolist() == ids_of(MESSAGES, TOKENS)


def test_an_error_in_the_stream_is_a_refusal() -> None:
    with opened(VLLM) as (remote, server, stub):
        stub.dialect = replace(VLLM, fault="error")
        flight = flown(remote, server)
        with pytest.raises(Refused, match=r"^the server answered 200: out of memory$"):
            read(flight)
        # The stream contained the role and one token before the error.
        assert len(flight.chunks) == 1


def test_a_stream_that_is_cut_off_or_stalls_has_failed() -> None:
    with opened(VLLM) as (remote, server, stub):
        stub.dialect = replace(VLLM, fault="cut")
        cut = flown(remote, server)
        assert (cut.reply, cut.kind) == (None, "bad-reply")
        stub.dialect = replace(VLLM, fault="stall")
        stalled = flown(remote, server, timeout_s=0.3)
        assert (stalled.reply, stalled.kind) == (None, "timeout")


def test_refusal_is_read_as_a_plain_reply() -> None:
    with opened(VLLM) as (remote, server, stub):
        stub.dialect = replace(VLLM, fault="busy")
        flight = flown(remote, server)
        assert flight.reader is None
        assert flight.reply is not None
        with pytest.raises(Refused, match=r"^the server answered 429: too many requests$"):
            remote.answer(flight.reply, 1)


def test_answer_of_one_token_is_one_chunk() -> None:
    with opened(replace(VLLM, tokens=1)) as (remote, server, _):
        flight = flown(remote, server)
        assert len(read(flight)) == 1
        assert [count for _, count in flight.chunks] == [1]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'data: {"choices":[{"text":"a"}]}\n\n', "the stream ended before the answer did"),
        (
            b'data: {"choices":[],"usage":{"completion_tokens":6}}\n\ndata: [DONE]\n\n',
            "the stream has no choice with an answer or a finish_reason",
        ),
        (b'data: {"choices":[{"finish_reason":"stop"}]}\n\n', "the answer has no tokens"),
        (b"data: {\n\n", "an event of the stream is not valid JSON: {"),
        (
            b"data: Error: no memory\n\n",
            "an event of the stream is not valid JSON: Error: no memory",
        ),
        (b"busy", "the reply is not a stream of events: busy"),
        (b"data: 7\n\n", "the reply is not a JSON object: 7"),
        (
            b'{"choices":[{"text":"a"}]}',
            "the reply is not a stream: add --backend-option stream=off",
        ),
        (b"", "the stream ended before the answer did"),
    ],
)
def test_incomplete_or_broken_stream_is_reported(body: bytes, message: str) -> None:
    with pytest.raises(BadAnswer) as error:
        Streamed(Reading()).answer(Reply(200, b"", memoryview(body)))
    assert str(error.value) == message


@given(st.lists(st.binary(max_size=40), max_size=5), st.sampled_from([200, 500]))
def test_any_bytes_are_an_answer_or_an_error(pieces: list[bytes], status: int) -> None:
    reader = Streamed(Reading())
    for piece in pieces:
        reader.feed(b"data: " + piece + b"\n\n")
    with pytest.raises((Refused, BadAnswer)):
        reader.answer(Reply(status, b"", memoryview(b"".join(pieces))))
