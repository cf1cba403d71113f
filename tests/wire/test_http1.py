import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.remote import Reply, Request
from harness.wire import http1
from harness.wire.http1 import BadReply, EncodedReply, Framing, Heads, ReplyParser

_BODY = b'{"outputs": []}'


def fed(data: bytes, cuts: list[int]) -> tuple[Reply | None, ReplyParser]:
    parser = ReplyParser()
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    reply = None
    for start, end in itertools.pairwise(places):
        if start < end:
            assert reply is None, "a reply before its end"
            reply = parser.feed(data[start:end])
    return reply, parser


def sized(body: bytes, *headers: bytes) -> bytes:
    lines = [b"HTTP/1.1 200 OK", *headers, b"Content-Length: %d" % len(body)]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def chunked(body: bytes, size: int) -> bytes:
    pieces = [body[i : i + size] for i in range(0, len(body), size)]
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = b"".join(b"%X;x=1\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return head + chunks + b"0\r\nTrailer: 1\r\n\r\n"


@given(st.binary(max_size=300), st.lists(st.integers(0, 1000), max_size=12), st.integers(1, 50))
def test_reply_is_the_same_for_any_cuts_of_its_bytes(
    body: bytes, cuts: list[int], size: int
) -> None:
    for data in (sized(body), chunked(body, size), b"HTTP/1.1 100 Continue\r\n\r\n" + sized(body)):
        reply, parser = fed(data, cuts)
        assert reply is not None
        assert (reply.status, bytes(reply.body)) == (200, body)
        assert not parser.began
        assert not parser.closes
        again = parser.feed(sized(b"next"))
        assert again is not None
        assert bytes(again.body) == b"next"


@pytest.mark.parametrize("ends", [*itertools.product([b"\n", b"\r\n"], repeat=3)])
def test_any_line_of_a_head_may_end_with_lf(ends: tuple[bytes, bytes, bytes]) -> None:
    first, second, blank = ends
    data = b"HTTP/1.1 200 OK" + first + b"Content-Length: 2" + second + blank + b"hi"
    for cut in range(len(data)):
        reply, _ = fed(data, [cut])
        assert reply == Reply(
            200, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", memoryview(b"hi")
        )


@given(st.binary(max_size=400), st.lists(st.integers(0, 1000), max_size=6))
def test_arbitrary_bytes_raise_only_bad_reply(data: bytes, cuts: list[int]) -> None:
    starts = (b"", b"HTTP/1.1 200 OK\r\n", chunked(b"abc", 2)[:60])
    for start in starts:
        parser = ReplyParser()
        places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
        try:
            for begin, end in itertools.pairwise(places):
                parser.feed((start if not begin else b"") + data[begin:end])
            parser.close()
        except BadReply:
            pass


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", "no HTTP/1.1 status line"),
        (b"HTTP/1.1 OK\r\n\r\n", "no HTTP/1.1 status line"),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "switched protocols"),
        (b"HTTP/1.1 200 OK\r\nno header\r\n\r\n", "is not a header"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "Content-Length is"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            "Content-Length is",
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", "the body has"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "transfer encoding"),
        (sized(b"abc") + b"more", "4 bytes follow the end"),
        (chunked(b"abc", 3) + b"more", "4 bytes follow the end"),
        (chunked(b"abc", 3).replace(b"3;x=1", b"2;x=1"), "longer than its size"),
        (chunked(b"abc", 3).replace(b"3;x=1", b"-3;x=1"), "invalid size"),
        (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 20_000, "longer than 65536 bytes"),
    ],
)
def test_a_broken_reply_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(BadReply, match=re.escape(message)):
        ReplyParser().feed(data)


def test_a_reply_without_a_length_ends_with_its_connection() -> None:
    parser = ReplyParser()
    assert parser.feed(b"HTTP/1.0 200 OK\r\n\r\nabc") is None
    assert parser.closes
    reply = parser.close()
    assert reply is not None
    assert bytes(reply.body) == b"abc"


@pytest.mark.parametrize("data", [sized(_BODY)[:-1], chunked(_BODY, 4)[:-3], b"HTTP/1.1 20"])
def test_truncated_reply_is_refused(data: bytes) -> None:
    parser = ReplyParser()
    assert parser.feed(data) is None
    assert parser.began
    with pytest.raises(BadReply, match="within a reply"):
        parser.close()


@pytest.mark.parametrize(
    ("head", "closes"),
    [
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n", True),
        (b"HTTP/1.1 200 OK\r\nConnection: Keep-Alive, Close\r\n", True),
        (b"HTTP/1.1 200 OK\r\nconnection: keep-alive\r\n", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n", False),
        (b"HTTP/1.0 200 OK\r\n", True),
    ],
)
def test_head_decides_whether_the_connection_ends(head: bytes, closes: bool) -> None:
    parser = ReplyParser()
    assert parser.feed(head + b"Content-Length: 0\r\n\r\n") is not None
    assert parser.closes is closes


def test_status_204_has_no_body() -> None:
    reply = ReplyParser().feed(b"HTTP/1.1 204 No Content\r\n\r\n")
    assert reply is not None
    assert reply.status == 204


def test_a_head_is_made_once_for_each_length() -> None:
    heads = Heads("host:8000", "/prefix", [("Authorization", "secret")])
    request = Request("/v2/models/m/infer", (("Content-Type", "application/json"),))
    head = heads.head(request, 12)
    assert head is heads.head(request, 12)
    assert head.decode().splitlines() == [
        "POST /prefix/v2/models/m/infer HTTP/1.1",
        "Host: host:8000",
        "Accept-Encoding: identity",
        "Authorization: secret",
        "Content-Type: application/json",
        "Content-Length: 12",
        "",
    ]
    assert b"Content-Length" not in heads.head(Request("/v2", method="GET"), 0)


@pytest.mark.parametrize(
    ("prefix", "path", "whole"),
    [
        ("/v1", "/v1/models", "/v1/models"),
        ("/v1/chat/completions", "/v1/completions", "/v1/completions"),
        ("/api/v1", "/v1/models", "/api/v1/models"),
        ("/v2", "/v2", "/v2"),
        ("/v2/models/digits", "/v2/models/digits/infer", "/v2/models/digits/infer"),
        ("/v1", "/v2/models", "/v1/v2/models"),
        ("/v1", "/version", "/version"),
        ("/team/v1/chat/completions", "/metrics", "/team/metrics"),
        ("/v1", "/versions", "/v1/versions"),
        ("/v1/team/gateway", "/v1/models", "/v1/team/gateway/v1/models"),
        ("/v10", "/v1/models", "/v10/v1/models"),
        ("", "/v1/models", "/v1/models"),
    ],
)
def test_version_in_both_url_and_path_appears_once(prefix: str, path: str, whole: str) -> None:
    head = Heads("host", prefix).head(Request(path, method="GET"), 0)
    assert head.startswith(f"GET {whole} HTTP/1.1\r\n".encode())


@pytest.mark.parametrize("coding", [b"gzip", b"br", b"deflate", b"ZSTD"])
@pytest.mark.parametrize("how", [b"Content-Length: 0", b"Transfer-Encoding: chunked"])
def test_a_compressed_reply_is_refused_by_its_name(coding: bytes, how: bytes) -> None:
    with pytest.raises(
        EncodedReply,
        match=rf"answered 200 with Content-Encoding: '{coding.decode()}', but the client cannot read",
    ):
        fed(b"HTTP/1.1 200 OK\r\ncontent-encoding: %b\r\n%b\r\n\r\n" % (coding, how), [])


def test_reply_with_identity_encoding_is_read() -> None:
    reply, _ = fed(sized(_BODY, b"Content-Encoding: identity"), [])
    assert reply is not None


@pytest.mark.parametrize("value", ["a\r\nX: y", "a\nb", "\x00", "é\u20ac"])
def test_a_header_cannot_smuggle_in_another(value: str) -> None:
    with pytest.raises(ValueError, match="HTTP forbids"):
        Heads("host", headers=[("X-Key", value)])
    with pytest.raises(ValueError, match="HTTP forbids"):
        Heads("host").head(Request("/" + value), 0)


def test_a_header_of_a_reply_is_found_in_any_case() -> None:
    reply = Reply(200, b"HTTP/1.1 200 OK\r\nX-Kind:  a b \r\n\r\n", memoryview(b""))
    assert reply.header("x-kind") == "a b"
    assert reply.header("other") is None


def timed(number: int, *more: bytes) -> bytes:
    times = b"Server-Timing: row;desc=%d, total;dur=0.%d" % (number, number)
    lines = [b"HTTP/1.1 200 OK", b"Content-Length: %d" % len(_BODY), *more, times]
    return b"\r\n".join(lines) + b"\r\n\r\n" + _BODY


def test_a_head_that_differs_only_in_its_times_is_parsed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed = []

    def framing(head: bytes) -> Framing:
        parsed.append(head)
        return Framing(head)

    monkeypatch.setattr(http1, "_plain", {})
    monkeypatch.setattr(http1, "Framing", framing)
    parser = ReplyParser()
    for number in range(5):
        reply = parser.feed(timed(number))
        assert reply is not None
        assert b"row;desc=%d," % number in reply.head
        assert bytes(reply.body) == _BODY
        assert not parser.closes
    assert len(parsed) == 1
    assert parser.feed(timed(6, b"Connection: close")) is not None
    assert parser.closes


def test_known_head_with_further_headers_is_parsed_again() -> None:
    parser = ReplyParser()
    assert parser.feed(timed(1)) is not None
    head, end, body = timed(2).partition(b"\r\n\r\n")
    assert parser.feed(head + b"\r\nConnection: close" + end + body) is not None
    assert parser.closes


def test_the_parts_of_a_reply_with_a_known_head_are_also_kept() -> None:
    """Bug: a streamed answer had no first token if it arrived completely and an earlier reply had the same head."""
    whole = sized(_BODY, b"X-Known: 1")
    # From this reply on, the parser knows the value of the head.
    assert ReplyParser().feed(whole) is not None
    parser = ReplyParser()
    parser.pieces = []
    assert parser.feed(whole) is not None
    assert b"".join(parser.pieces) == _BODY
