"""The request parser returns the same requests however the bytes are split, and no input crashes it."""

import gzip
import zlib
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.serve.bodies import ALIGNMENT_BYTES, MOST_HEAD_BYTES, MOST_UNPACKED_BYTES, Malformed
from harness.serve.requests import MOST_KNOWN_HEADS, Head, Parser
from tests.builders.support import present

MOST_BODY = 5_000
Seen = tuple[list[tuple[str, str, bytes]], int | None]
"""A tuple of (method, path and body of each request, status of the refusal that ended the connection)."""


def seen(parts: Iterable[bytes], known: dict[bytes, Head] | None = None) -> Seen:
    """Returns the requests from a connection that receives the parts one after another."""
    parser = Parser({} if known is None else known, MOST_BODY)
    requests: list[tuple[str, str, bytes]] = []
    try:
        for part in parts:
            receive(parser, part, requests)
    except Malformed as e:
        return requests, e.status
    return requests, None


def receive(parser: Parser, part: bytes, requests: list[tuple[str, str, bytes]]) -> None:
    """Reads as the loop does: never more bytes than `room` at once."""
    while part:
        room = parser.room()
        if room is None:
            parser.add(part)
            part = b""
        else:
            size = min(len(room), len(part))
            room[:size] = part[:size]
            parser.fill(size)
            part = part[size:]
        while (request := parser.next()) is not None:
            requests.append((request.head.method, request.head.path, bytes(request.body)))


def cut(data: bytes, places: Iterable[int]) -> Sequence[bytes]:
    edges = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[begin:end] for begin, end in pairwise(edges)]


def chunked(body: bytes, sizes: Sequence[int]) -> bytes:
    data, at = b"", 0
    for size in sizes:
        part = body[at : at + size]
        if part:
            data += b"%X ;name=value\r\n%b\r\n" % (len(part), part)
        at += size
    if rest := body[at:]:
        data += b"%x\r\n%b\r\n" % (len(rest), rest)
    return data + b"0\r\nTrailer: value\r\n\r\n"


BODIES = st.binary(max_size=60) | st.just(b"\r\n\r\n" * 30) | st.just(bytes(3_000))


@st.composite
def good_requests(draw: st.DrawFn) -> bytes:
    body = draw(BODIES)
    head = b"POST /v2/models/%c/infer HTTP/1.1\r\nhost: h\r\n" % draw(st.sampled_from(b"abc"))
    kind = draw(st.sampled_from(["get", "length", "chunks", "blank"]))
    if kind == "get":
        return b"GET /v2 HTTP/1.1\r\nHost:h\r\nX:\r\n\r\n"
    if kind == "chunks":
        sizes = draw(st.lists(st.integers(1, 40), max_size=4))
        return head + b"transfer-encoding: Chunked\r\n\r\n" + chunked(body, sizes)
    blank = b"\r\n" if kind == "blank" else b""
    return blank + head + b"Content-Length: %d \r\n\r\n" % len(body) + body


CUTS = st.lists(st.integers(0, 10_000), max_size=8)


@given(st.lists(good_requests(), min_size=1, max_size=4), CUTS)
def test_requests_are_the_same_for_any_cuts_of_the_bytes(
    requests: list[bytes], places: list[int]
) -> None:
    whole = b"".join(requests)
    expected = seen([whole])
    assert len(expected[0]) == len(requests)
    assert expected[1] is None
    assert seen(cut(whole, places)) == expected
    assert seen([bytes([byte]) for byte in whole]) == expected


@given(good_requests(), good_requests())
def test_heads_that_are_known_are_read_as_new_ones(one: bytes, other: bytes) -> None:
    known: dict[bytes, Head] = {}
    expected = seen([one + other])
    assert seen([one, other], known) == expected
    assert seen([one, other], known) == expected


def test_head_with_bare_lf_line_ends_is_read_like_one_with_crlf() -> None:
    body = b"a\r\n\r\nb"
    one = b"POST /a HTTP/1.1\nHost: h\nContent-Length: %d\n\n" % len(body) + body
    other = b"GET /b HTTP/1.1\r\nHost: h\r\n\r\n"
    expected = [("POST", "/a", body), ("GET", "/b", b"")]
    for parts in ([one + other], [bytes([byte]) for byte in one + other]):
        assert seen(parts) == (expected, None)
        assert seen([*parts, *parts]) == (expected * 2, None)


def with_coding(coding: bytes, body: bytes) -> bytes:
    head = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Encoding: %b\r\nContent-Length: %d\r\n\r\n"
    return head % (coding, len(body)) + body


@pytest.mark.parametrize(
    ("coding", "pack"),
    [(b"gzip", gzip.compress), (b"x-gzip", gzip.compress), (b"Deflate", zlib.compress)],
)
def test_a_compressed_body_is_unpacked(coding: bytes, pack: Callable[[bytes], bytes]) -> None:
    content = bytes(range(256)) * 20
    request = with_coding(coding, pack(content))
    expected = [("POST", "/", content)] * 2
    assert seen([request + request]) == (expected, None)
    assert seen([bytes([byte]) for byte in request + request]) == (expected, None)
    chunks = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert seen([chunks + chunked(gzip.compress(content), [7])]) == (expected[:1], None)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (gzip.compress(bytes(MOST_UNPACKED_BYTES + 1)), 413),
        (b"{}", 400),
        (gzip.compress(b"{}")[:-1], 400),
        (gzip.compress(b"{}") + b"more", 400),
    ],
    ids=["bomb", "plain", "cut", "followed"],
)
def test_a_compressed_body_that_cannot_be_unpacked_has_a_status(body: bytes, status: int) -> None:
    parser = Parser({})
    parser.add(with_coding(b"gzip", body))
    with pytest.raises(Malformed) as refused:
        parser.next()
    assert refused.value.status == status


@st.composite
def damaged_requests(draw: st.DrawFn) -> bytes:
    data = bytearray(b"".join(draw(st.lists(good_requests(), min_size=1, max_size=2))))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=4))
    return bytes(data)


@given(damaged_requests() | st.binary(max_size=200), CUTS)
@example(b"\r", [])
@example(b"\r\nx" * 90 + b"\r\n\r\n", [1, 2, 3])
def test_garbage_has_the_same_outcome_for_any_cuts(data: bytes, places: list[int]) -> None:
    expected = seen([data])
    assert expected[1] in (None, 400, 413, 415, 417, 431, 501, 505)
    assert seen(cut(data, places)) == expected


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01", 400),  # a client that uses TLS sends these bytes
        (b"GET /\r\n\r\n", 400),
        (b"GET  / HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\nHost: h\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\nHost: h\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nHost: i\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost : h\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\n folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\n \r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: a\rb\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: \0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: +1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1, 1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: \xb2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5001\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5001\r\n", 413),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + b"0" * 300, 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nbad\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Encoding: br\r\n\r\n", 415),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Encoding: gzip, gzip\r\n\r\n", 415),
        (b"POST / HTTP/1.1\r\nHost: h\nContent-Length: 0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\nHost: h\r\nContent-Length: 0\n\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\n\n", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\na\n0\n\n", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nExpect: a miracle\r\n\r\n", 417),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"a" * MOST_HEAD_BYTES + b"\r\n\r\n", 431),
        (b"a" * (MOST_HEAD_BYTES + 4), 431),
    ],
)  # fmt: skip
def test_unreadable_request_has_a_status(head: bytes, status: int) -> None:
    good = b"GET /first HTTP/1.1\r\nHost: h\r\n\r\n"
    assert seen([head]) == ([], status)
    assert seen([good + head]) == ([("GET", "/first", b"")], status)


def parsed(data: bytes) -> Head:
    parser = Parser({})
    parser.add(data)
    request = present(parser.next())
    return request.head


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"/v2", "/v2"),
        (b"/v2/models/light%2Fresnet50?x=1", "/v2/models/light/resnet50"),
        (b"http://host:8000/v2?a", "/v2"),
        (b"http://host", "/"),
        (b"/a?b=http://c/d", "/a"),
        (b"*", "*"),
    ],
)
def test_the_path_is_unquoted_and_has_no_query(target: bytes, path: str) -> None:
    assert parsed(b"GET %b HTTP/1.1\r\nHost: h\r\n\r\n" % target).path == path


@pytest.mark.parametrize(
    ("version", "option", "keeps_open"),
    [
        (b"1.1", b"x", True),
        (b"1.1", b"Upgrade, CLOSE", False),
        (b"1.0", b"x", False),
        (b"1.0", b"keep-alive", True),
    ],
)
def test_a_connection_stays_open_as_its_version_says(
    version: bytes, option: bytes, keeps_open: bool
) -> None:
    head = parsed(b"GET / HTTP/%b\r\nHost: h\r\nConnection: %b\r\n\r\n" % (version, option))
    assert head.keeps_open is keeps_open


def test_a_missing_body_is_requested_with_100_continue() -> None:
    parser = Parser({})
    parser.add(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-Continue\r\n\r\n")
    assert parser.next() is None
    assert parser.wants_continue
    room = present(parser.room())
    room[:] = b"ab"
    parser.fill(2)
    request = present(parser.next())
    assert bytes(request.body) == b"ab"
    assert not parser.wants_continue


def test_the_tensors_of_a_long_body_lie_aligned() -> None:
    for size in (1, 155, 1 << 10):
        parser = Parser({})
        parser.add(
            b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 90000\r\n"
            b"Inference-Header-Content-Length: %d\r\n\r\n" % size
        )
        assert parser.next() is None
        room = present(parser.room())
        whole = np.asarray(room.obj)
        begin = np.asarray(room).ctypes.data - whole.ctypes.data
        assert (begin + size) % ALIGNMENT_BYTES == 0
        assert whole.ctypes.data % np.dtype("float64").itemsize == 0


def test_number_of_cached_heads_is_limited() -> None:
    known: dict[bytes, Head] = {}
    for number in range(MOST_KNOWN_HEADS + 10):
        assert seen([b"GET /%d HTTP/1.1\r\nHost: h\r\n\r\n" % number], known)[1] is None
    assert 0 < len(known) <= MOST_KNOWN_HEADS
