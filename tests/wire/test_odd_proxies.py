"""Behind odd proxies, the answers of a language model stay the same, or fail in one line."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from harness.backends.openai import OpenAiRemote
from harness.cli.main import main
from harness.core.config.address import parse_address
from harness.errors import ConfigError
from harness.types import Array, BackendSetup, Batch
from harness.wire.connections import Server
from harness.wire.flight import Flight
from harness.wire.flights import Flights
from harness.wire.remote_backend import Link
from tests.run.test_token_runs import MANIFEST
from tests.stand_ins.servers.odd_proxy import Shape, odd_proxy
from tests.stand_ins.servers.token_server import VLLM, Dialect, TokenServer, ids_of, text_of

TOKENS = 24
REQUESTS = 6

RIGHT: Mapping[str, Shape] = {
    "one byte per chunk": Shape(piece_bytes=1),
    "characters cut in two": Shape(piece_bytes=3),
    "CRLF": Shape(line_end=b"\r\n"),
    "CRLF, one byte per chunk": Shape(line_end=b"\r\n", piece_bytes=1),
    "CR": Shape(line_end=b"\r"),
    "CR, one byte per chunk": Shape(line_end=b"\r", piece_bytes=1),
    "comments": Shape(between=b": ping\n\n"),
    "comments in events": Shape(between=b": ping\nevent: message\nid: 7\nretry: 10\n"),
    "byte order mark": Shape(begin=b"\xef\xbb\xbf"),
    "blank lines": Shape(begin=b"\n\n\n", between=b"\n"),
    "chunk extensions": Shape(size_format=b'000%X;name="value"'),
    "trailers": Shape(end=b"0\r\nServer-Timing: total;dur=1\r\nX: y\r\n\r\n"),
    "closes without notice": Shape(closes=True),
    "closes with notice": Shape(closes=True, headers=b"Connection: close\r\n"),
    "HTTP/1.0": Shape(http=b"HTTP/1.0"),
    "early hints": Shape(informs=b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"),
    "continue": Shape(informs=b"HTTP/1.1 100 Continue\r\n\r\n"),
    "slow head": Shape(head_byte_s=0.001),
    "upper case": Shape(headers=b"CONNECTION: Keep-Alive\r\nX-EMPTY:\r\n"),
    "folded header": Shape(headers=b"X-Long: one\r\n two\r\n\tthree\r\n"),
    "heads with LF": Shape(head_line=b"\n"),
}


class _Client:
    """A plug-in that has opened a server, and the client engine that runs use."""

    def __init__(self, url: str, **options: str) -> None:
        self._server = Server(address=parse_address(url))
        options = {"max_tokens": str(TOKENS), "answer": "text", **options}
        self.remote = OpenAiRemote(BackendSetup(model=None, model_name="mine", options=options))
        link = Link(self._server, 10.0)
        try:
            self.remote.open(link.exchange_at_start)
        finally:
            link.close()

    def flown(self, count: int) -> list[Flight]:
        """Sends prompts over two connections, and returns the flights in the order of the prompts."""
        flights = Flights(
            [self._server],
            2,
            lambda indices: self.remote.request(batch(indices[0])),
            10.0,
            reader=self.remote.reader if self.remote.streams else None,  # type: ignore[arg-type]
        )
        done: list[Flight] = []
        end_s = time.monotonic() + 20
        try:
            for number in range(count):
                flights.submit(Flight([number], [number], number))
            while len(done) < count and time.monotonic() < end_s:
                done += flights.turn(0.1)
        finally:
            flights.close()
        return sorted(done, key=lambda flight: flight.ids[0])


def prompt(number: int) -> str:
    return f"sort {number}"


def batch(number: int) -> Batch:
    rows = np.empty(1, object)
    rows[0] = json.dumps({"prompt": prompt(number)}, separators=(",", ":")).encode()
    return Batch(1, {"request": rows})


def answer(client: _Client, flight: Flight) -> str:
    assert flight.reply is not None, flight.error
    reader = flight.reader or client.remote.reader()
    (found,) = cast("list[Array]", reader.answer(flight.reply))
    return found.tobytes().decode()


@contextmanager
def behind(shape: Shape, dialect: Dialect = VLLM) -> Iterator[str]:
    with (
        TokenServer(dialect) as server,
        odd_proxy(int(server.url.rpartition(":")[2]), shape) as url,
    ):
        yield url


@pytest.mark.parametrize("stream", ["on", "off"])
@pytest.mark.parametrize("name", [*RIGHT])
def test_answers_behind_a_proxy_are_right(name: str, stream: str) -> None:
    with behind(RIGHT[name]) as url:
        client = _Client(url, stream=stream)
        flights = client.flown(REQUESTS)
        answers = [answer(client, flight) for flight in flights]
    assert answers == [text_of(ids_of(prompt(number), TOKENS)) for number in range(REQUESTS)]


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (Shape(compresses=True), "Content-Encoding: 'gzip'"),
        (Shape(busy_status=429, busy_every=1), "429"),
        (Shape(busy_status=503, busy_every=1), "503"),
        (Shape(http=b"HTTP/2"), "HTTP/2"),
    ],
)
def test_a_proxy_that_spoils_every_reply_is_refused_in_one_line(shape: Shape, said: str) -> None:
    with behind(shape) as url, pytest.raises(ConfigError) as refused:
        _Client(url)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_proxy_fails_its_requests_with_its_words(status: int) -> None:
    with behind(Shape(busy_status=status, busy_every=3, free_first=6)) as url:
        client = _Client(url)
        flights = client.flown(9)
    failed = []
    for flight in flights:
        try:
            answer(client, flight)
        except Exception as e:  # noqa: BLE001 - its text is tested
            failed.append(str(e))
    assert 1 <= len(failed) <= 3
    assert all(str(status) in text and "\n" not in text for text in failed)


SERVER = ("--target-qps", "60", "--queries", "90")


def ran(folder: Path, shape: Shape, *words: str) -> tuple[int, dict[str, Any]]:
    rows = [
        {
            "prompt": prompt(number),
            "max_tokens": TOKENS,
            "reference": text_of(ids_of(prompt(number), TOKENS)),
        }
        for number in range(20)
    ]
    data = folder / "prompts.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "tiny.yaml").write_text(MANIFEST)
    with behind(shape) as url:
        status = main(
            [
                *("--backend", "openai", "--url", url, "--model", str(folder / "tiny.yaml")),
                *("--data-dir", str(data), "--connections", "8", "--no-metrics", "--no-report"),
                *("--backend-option", "answer=text", "--metric", "exact_match"),
                *("--out", str(folder / "run"), "--scenario", "server", "--slo", "p90=5s", *words),
            ]
        )
    result: dict[str, Any] = json.loads((folder / "run" / "result.json").read_text())
    return status, result


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["characters cut in two", "CR", "closes without notice", "HTTP/1.0"]
)
def test_a_run_behind_a_proxy_is_valid_and_exactly_right(name: str, tmp_path: Path) -> None:
    status, result = ran(tmp_path, RIGHT[name], *SERVER, "--mode", "both")
    assert {reason["code"] for reason in result["reasons"]} <= {"client-bound"}
    assert status == (4 if result["reasons"] else 0)
    assert result["accuracy"]["value"] == 100.0
    assert result["queries"]["samples_failed"] == 0


@pytest.mark.slow
def test_a_burst_of_refusals_is_counted_and_quoted(tmp_path: Path) -> None:
    shape = Shape(busy_status=429, busy_every=5, free_first=200)
    words = ("--mode", "performance", "--queries", "300", "--target-qps", "150")
    status, result = ran(tmp_path, shape, *words)
    assert status == 4
    (failed,) = [reason for reason in result["reasons"] if reason["code"] == "requests-failed"]
    assert "429" in failed["text"]
    assert "\n" not in failed["text"]
    assert result["client"]["failures"].keys() == {"refused"}
