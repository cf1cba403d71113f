"""Splits the bytes of a connection into HTTP/1.1 requests. Does not use sockets.

Source: RFC 9112. Refuses ambiguous requests, as the RFC allows, because two programs may interpret them differently.
Such requests contain a bare LF in a head with CRLF, folded lines, a space before a colon, Content-Length together with
Transfer-Encoding, or one of these two headers twice. A head is accepted if all its lines end in a bare LF, because
people may type such a head by hand.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import unquote

from harness.serve.bodies import (
    CODINGS,
    HEADER,
    LINE,
    MOST_BODY_BYTES,
    MOST_HEAD_BYTES,
    TOKEN,
    Chunks,
    Malformed,
    aligned,
    too_long,
    unpacked,
)

MOST_KNOWN_HEADS = 256

END = b"\r\n\r\n"
_BARE_END = b"\n\n"
_REQUEST_LINE = re.compile(rb"(" + TOKEN + rb"+) ([\x21-\x7e]+) HTTP/(\d)\.(\d)")
_FIRST = re.compile(TOKEN)
_ONLY_ONCE = ("content-length", "transfer-encoding", "host", "inference-header-content-length")


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """The request line and headers of a request. Requests whose heads consist of the same bytes share one object."""

    method: str
    """The method, with HEAD replaced by GET."""
    path: str
    """The path, percent-decoded and without the query string."""
    length: int
    """Length of the body in bytes, or 0 if `is_chunked`."""
    is_chunked: bool
    is_packed: bool
    """Whether the body is compressed."""
    wants_no_body: bool
    """Whether this is a HEAD request, whose reply consists of only the head of a GET reply."""
    keeps_open: bool
    """Whether the connection stays open after the reply."""
    is_old: bool
    """Whether the request is HTTP/1.0; the connection then stays open only if both the request and the reply contain
    the header `Connection: keep-alive`.
    """
    expects_continue: bool
    json_length: int | None
    """Length in bytes of the JSON before the tensors, from Inference-Header-Content-Length, or None if the body
    contains only JSON.
    """


class Request(NamedTuple):
    head: Head
    body: memoryview


class Parser:
    """Parses the requests on one connection.

    Pass received bytes to `add`. While `room` returns a buffer, receive into the buffer and call `fill`, so that a long
    body is not copied. `next` returns the requests. After the last valid request, `next` raises Malformed once.
    """

    def __init__(self, known: dict[bytes, Head], most_body_bytes: int = MOST_BODY_BYTES) -> None:
        """known: maps a head's bytes to its Head object. All connections of a server share this dictionary."""
        self._known = known
        self._most_body_bytes = most_body_bytes
        self._data = b""
        self._head: Head | None = None
        """Head of the request whose body is still incomplete."""
        self._chunks: Chunks | None = None
        self._body = memoryview(b"")
        self._filled = 0
        self.wants_continue = False
        """Whether the client waits for `100 Continue` before it sends the body; the server resets it to False.
        """

    @property
    def has_begun(self) -> bool:
        """Whether the first bytes of a request have arrived."""
        return bool(self._data) or self._head is not None

    def room(self) -> memoryview | None:
        """Returns the buffer for the next bytes, or None if the bytes must be passed to `add`."""
        if self._head is None or self._chunks is not None:
            return None
        return self._body[self._filled :]

    def fill(self, size: int) -> None:
        """Records that `size` bytes were received into the buffer that `room` returned."""
        self._filled += size

    def add(self, data: bytes) -> None:
        self._data = self._data + data if self._data else data

    def next(self) -> Request | None:
        """Returns the next request, or None if the request is incomplete."""
        if self._head is not None:
            return self._next_of_body(self._head)
        data = self._data
        if not data:
            return None
        end = data.find(END) + len(END)
        head = self._known.get(data[:end]) if end >= len(END) else None
        if head is None:
            head, end = self._new_head()
            if head is None:
                return None
            data = self._data
        after = end + head.length
        if not head.is_chunked and len(data) >= after:
            self._data = data[after:]
            return _request(head, memoryview(data)[end:after])
        return self._begin_body(head, data[end:])

    def _new_head(self) -> tuple[Head | None, int]:
        """Returns the head and its length in bytes, or (None, 0) if the head is incomplete."""
        while self._data.startswith(LINE):  # because some clients send an empty line after a body
            self._data = self._data[len(LINE) :]
        data = self._data
        if data[:1] not in (b"", b"\r") and not _FIRST.match(data):
            raise Malformed(
                400, "this is not an HTTP request; the server supports only HTTP without TLS"
            )
        separator = _BARE_END if data.partition(b"\n")[0][-1:] != b"\r" else END
        end = data.find(separator)
        if end > MOST_HEAD_BYTES or (end < 0 and len(data) - len(END) >= MOST_HEAD_BYTES):
            raise Malformed(431, f"the head is longer than {MOST_HEAD_BYTES:,} bytes")
        raw = data if end < 0 else data[: end + len(separator)]
        _check_line_ends(raw, is_bare=separator is _BARE_END)
        if end < 0:
            return None, 0
        end = len(raw)
        head = _parsed(raw)
        if head.length > self._most_body_bytes:
            raise too_long(self._most_body_bytes)
        if len(self._known) >= MOST_KNOWN_HEADS:
            self._known.clear()
        self._known[raw] = head
        return head, end

    def _begin_body(self, head: Head, begin: bytes) -> Request | None:
        """Starts reading a body. begin: the first bytes of the body; if the body is chunked, `begin` may also contain
        bytes that follow the body.
        """
        self._head = head
        self.wants_continue = head.expects_continue and not begin
        if head.is_chunked:
            self._chunks = Chunks(self._most_body_bytes)
            self._data = begin
            return self._next_of_body(head)
        self._data = b""
        try:
            self._body = aligned(head.length, head.json_length or 0)
        except MemoryError:
            raise Malformed(
                503, f"this server has too little memory for a body of {head.length:,} bytes"
            ) from None
        self._body[: len(begin)] = begin
        self._filled = len(begin)
        return None

    def _next_of_body(self, head: Head) -> Request | None:
        if self._chunks is not None:
            self._data = self._chunks.add(self._data)
            if not self._chunks.is_complete:
                return None
            body = memoryview(self._chunks.body)
        elif self._filled < len(self._body):
            return None
        else:
            body = self._body
        self._head, self._chunks, self._body = None, None, memoryview(b"")
        self.wants_continue = False
        return _request(head, body)


def _request(head: Head, body: memoryview) -> Request:
    return Request(head, unpacked(body) if head.is_packed and body else body)


def _check_line_ends(raw: bytes, *, is_bare: bool) -> None:
    """Raises Malformed if some lines of a head end in CRLF and others in LF. raw: the head's bytes."""
    mixed = b"\r" in raw if is_bare else raw.count(b"\n") != raw.count(LINE)
    if mixed:
        raise Malformed(400, "some lines of the head end in CRLF, some in a bare LF")


def _parsed(raw: bytes) -> Head:
    """Parses a head. raw: the head's bytes, including the empty line at the end."""
    line = LINE if raw.endswith(LINE) else b"\n"
    first, *lines = raw.removesuffix(2 * line).split(line)
    match = _REQUEST_LINE.fullmatch(first)
    if match is None:
        raise Malformed(400, "the request line is malformed")
    if match[3] != b"1":
        raise Malformed(505, "the server supports only HTTP/1.1")
    is_old = match[4] == b"0"
    headers = _headers(lines)
    if not is_old and "host" not in headers:
        raise Malformed(400, "the header Host is missing")
    coding = headers.get("content-encoding", "identity").lower()
    if coding not in ("identity", *CODINGS):
        raise Malformed(
            415, f"the server does not support the Content-Encoding {coding!r:.40}: use gzip"
        )
    expected = headers.get("expect", "").lower()
    if expected not in ("", "100-continue"):
        raise Malformed(417, "the server supports only Expect: 100-continue")
    options = {word.strip().lower() for word in headers.get("connection", "").split(",")}
    is_chunked = "transfer-encoding" in headers
    if is_chunked:
        _check_encoding(headers, is_old=is_old)
    method = str(match[1], "ascii")
    return Head(
        method="GET" if method == "HEAD" else method,
        path=_path(str(match[2], "ascii")),
        length=_number(headers, "content-length") or 0,
        is_chunked=is_chunked,
        is_packed=coding in CODINGS,
        wants_no_body=method == "HEAD",
        keeps_open="keep-alive" in options if is_old else "close" not in options,
        is_old=is_old,
        expects_continue=bool(expected) and not is_old,
        json_length=_number(headers, "inference-header-content-length"),
    )


def _headers(lines: list[bytes]) -> Mapping[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        match = HEADER.fullmatch(line)
        if match is None:
            raise Malformed(400, "a header is malformed")
        name, value = str(match[1], "ascii").lower(), str(match[2], "latin-1")
        if name in headers:
            if name in _ONLY_ONCE:
                raise Malformed(400, f"the header {name} appears twice")
            value = f"{headers[name]}, {value}"
        headers[name] = value
    return headers


def _check_encoding(headers: Mapping[str, str], *, is_old: bool) -> None:
    if is_old or "content-length" in headers:
        raise Malformed(400, "Transfer-Encoding needs HTTP/1.1 and no Content-Length")
    if headers["transfer-encoding"].lower() != "chunked":
        raise Malformed(501, "the server supports only Transfer-Encoding: chunked")


def _number(headers: Mapping[str, str], name: str) -> int | None:
    text = headers.get(name)
    if text is None:
        return None
    if not re.fullmatch("[0-9]{1,15}", text, re.ASCII):
        raise Malformed(400, f"the header {name} is not a number of bytes")
    return int(text)


def _path(target: str) -> str:
    """Returns the path in `/path?query`, or in a complete URL, which clients send to proxies."""
    _, is_url, rest = target.partition("://")
    if is_url and not target.startswith("/"):
        target = "/" + rest.partition("/")[2]
    return unquote(target.partition("?")[0])
