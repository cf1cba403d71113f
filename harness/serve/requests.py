"""Splits the bytes of a connection into HTTP/1.1 requests. It opens no socket.

Source: RFC 9112. Refused where the RFC allows it, because two programs may read it differently: a bare LF,
folded lines, space before a colon, a Content-Length beside a Transfer-Encoding, or two of either.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import unquote

import numpy as np

MOST_HEAD_BYTES = 1 << 15
MOST_BODY_BYTES = 1 << 30
MOST_KNOWN_HEADS = 256
ALIGNMENT_BYTES = 64

_END = b"\r\n\r\n"
_LINE = b"\r\n"
_MOST_CHUNK_LINE_BYTES = 256
_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
_REQUEST_LINE = re.compile(rb"(" + _TOKEN + rb"+) ([\x21-\x7e]+) HTTP/(\d)\.(\d)")
_HEADER = re.compile(
    rb"(" + _TOKEN + rb"+):[ \t]*((?:[\x21-\x7e\x80-\xff \t]*[\x21-\x7e\x80-\xff])?)[ \t]*"
)
_FIRST = re.compile(_TOKEN)
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,12})[ \t]*(?:;[\x20-\x7e\x80-\xff\t]*)?")
_ONLY_ONCE = ("content-length", "transfer-encoding", "host", "inference-header-content-length")


class Malformed(Exception):
    """The connection holds no request that can be answered. It is refused with `status`, and closed."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """Request line and headers. Requests with the same bytes of it share one object."""

    method: str
    path: str
    """Unquoted, without a query."""
    length: int
    """Bytes of the body; 0 where `is_chunked`."""
    is_chunked: bool
    keeps_open: bool
    """The connection stays open after the answer."""
    is_old: bool
    """HTTP/1.0, where a connection stays open only if the answer says so, too."""
    expects_continue: bool
    json_length: int | None
    """Bytes of JSON before the tensors, from Inference-Header-Content-Length; None: all is JSON."""


class Request(NamedTuple):
    head: Head
    body: memoryview


class Parser:
    """The requests of one connection.

    Bytes go in by `add`; or, while `room` is a buffer, by `room` and `fill`: a long body is received where
    it stays. `next` gives the requests, and raises Malformed once, after the good ones.
    """

    def __init__(self, known: dict[bytes, Head], most_body_bytes: int = MOST_BODY_BYTES) -> None:
        """known: heads by their bytes, which the connections of a server share."""
        self._known = known
        self._most_body_bytes = most_body_bytes
        self._data = b""
        self._head: Head | None = None
        """Of the request whose body is not complete."""
        self._chunks: _Chunks | None = None
        self._body = memoryview(b"")
        self._filled = 0
        self.wants_continue = False
        """The client waits for `100 Continue` before it sends the body. The server sets it to False."""

    def room(self) -> memoryview | None:
        """Where the next bytes belong; None: give them to `add`."""
        if self._head is None or self._chunks is not None:
            return None
        return self._body[self._filled :]

    def fill(self, size: int) -> None:
        """`size` bytes were received into `room`."""
        self._filled += size

    def add(self, data: bytes) -> None:
        self._data = self._data + data if self._data else data

    def next(self) -> Request | None:
        """The next request; None: it is not complete."""
        if self._head is not None:
            return self._next_of_body(self._head)
        data = self._data
        if not data:
            return None
        end = data.find(_END) + len(_END)
        head = self._known.get(data[:end]) if end >= len(_END) else None
        if head is None:
            head, end = self._new_head()
            if head is None:
                return None
            data = self._data
        after = end + head.length
        if not head.is_chunked and len(data) >= after:
            self._data = data[after:]
            return Request(head, memoryview(data)[end:after])
        return self._begin_body(head, data[end:])

    def _new_head(self) -> tuple[Head | None, int]:
        """(head, its bytes); (None, 0): it is not complete."""
        while self._data.startswith(_LINE):  # as some clients send after a body
            self._data = self._data[len(_LINE) :]
        data = self._data
        if data[:1] not in (b"", b"\r") and not _FIRST.match(data):
            raise Malformed(400, "this is no HTTP request; the server speaks HTTP without TLS")
        end = data.find(_END)
        if end > MOST_HEAD_BYTES or (end < 0 and len(data) - len(_END) >= MOST_HEAD_BYTES):
            raise Malformed(431, f"the head is longer than {MOST_HEAD_BYTES:,} bytes")
        if end < 0:
            return None, 0
        end += len(_END)
        raw = data[:end]
        head = _parsed(raw)
        if head.length > self._most_body_bytes:
            raise _too_long(self._most_body_bytes)
        if len(self._known) >= MOST_KNOWN_HEADS:
            self._known.clear()
        self._known[raw] = head
        return head, end

    def _begin_body(self, head: Head, begin: bytes) -> Request | None:
        """begin: what has come of the body, and where it is chunked perhaps of the next request."""
        self._head = head
        self.wants_continue = head.expects_continue and not begin
        if head.is_chunked:
            self._chunks = _Chunks(self._most_body_bytes)
            self._data = begin
            return self._next_of_body(head)
        self._data = b""
        self._body = _aligned(head.length, head.json_length or 0)
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
        return Request(head, body)


def _too_long(most: int) -> Malformed:
    return Malformed(413, f"the body is longer than {most:,} bytes")


def _aligned(length: int, offset: int) -> memoryview:
    """Room for a body whose byte at `offset`, where the tensors begin, is aligned for every number type."""
    padding = -offset % ALIGNMENT_BYTES
    return np.empty(padding + length, np.uint8).data[padding:]


class _Chunks:
    """The body of a request with Transfer-Encoding: chunked."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self.body = bytearray()
        self.is_complete = False
        self._missing = 0
        """Bytes of a chunk that have not come yet, with the end of its line."""
        self._is_last = False
        self._trailer_bytes = 0

    def add(self, data: bytes) -> bytes:
        """Returns the bytes that cannot be read before more have come, or that follow the body."""
        at = 0
        while not self.is_complete:
            if self._missing:
                taken = self._take(data, at)
                if not taken:
                    break
                at += taken
                continue
            end = data.find(_LINE, at)
            if (len(data) - 1 if end < 0 else end) - at > _MOST_CHUNK_LINE_BYTES:
                raise Malformed(400, "a line between the chunks is too long")
            if end < 0:
                break
            self._read_line(data[at:end])
            at = end + len(_LINE)
        return data[at:]

    def _take(self, data: bytes, at: int) -> int:
        """Takes bytes of a chunk, and the end of its line once it is there; returns their number."""
        of_body = self._missing - len(_LINE)
        if of_body > 0:
            part = data[at : at + of_body]
            self.body += part
            self._missing -= len(part)
            return len(part)
        line = data[at : at + len(_LINE)]
        if line != _LINE[: len(line)]:
            raise Malformed(400, "a chunk is longer than it says")
        if len(line) < len(_LINE):
            return 0
        self._missing = 0
        return len(_LINE)

    def _read_line(self, line: bytes) -> None:
        if self._is_last:
            self._trailer_bytes += len(line)
            self.is_complete = not line
            if line and not _HEADER.fullmatch(line):
                raise Malformed(400, "a trailer is malformed")
            if self._trailer_bytes > MOST_HEAD_BYTES:
                raise Malformed(431, f"the trailers are longer than {MOST_HEAD_BYTES:,} bytes")
            return
        match = _CHUNK.fullmatch(line)
        if match is None:
            raise Malformed(400, "the size of a chunk is malformed")
        size = int(match[1], 16)
        if len(self.body) + size > self._most_bytes:
            raise _too_long(self._most_bytes)
        self._is_last = size == 0
        self._missing = size + len(_LINE) if size else 0


def _parsed(raw: bytes) -> Head:
    """raw: with the empty line at its end."""
    first, *lines = raw[: -len(_END)].split(_LINE)
    match = _REQUEST_LINE.fullmatch(first)
    if match is None:
        raise Malformed(400, "the request line is malformed")
    if match[3] != b"1":
        raise Malformed(505, "the server speaks HTTP/1.1")
    is_old = match[4] == b"0"
    headers = _headers(lines)
    if not is_old and "host" not in headers:
        raise Malformed(400, "the header Host is missing")
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise Malformed(415, "the server reads no compressed bodies")
    expected = headers.get("expect", "").lower()
    if expected not in ("", "100-continue"):
        raise Malformed(417, "the server knows Expect: 100-continue only")
    options = {word.strip().lower() for word in headers.get("connection", "").split(",")}
    is_chunked = "transfer-encoding" in headers
    if is_chunked:
        _check_encoding(headers, is_old=is_old)
    return Head(
        method=str(match[1], "ascii"),
        path=_path(str(match[2], "ascii")),
        length=_number(headers, "content-length") or 0,
        is_chunked=is_chunked,
        keeps_open="keep-alive" in options if is_old else "close" not in options,
        is_old=is_old,
        expects_continue=bool(expected) and not is_old,
        json_length=_number(headers, "inference-header-content-length"),
    )


def _headers(lines: list[bytes]) -> Mapping[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        match = _HEADER.fullmatch(line)
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
        raise Malformed(400, "Transfer-Encoding stands beside a Content-Length, or in HTTP/1.0")
    if headers["transfer-encoding"].lower() != "chunked":
        raise Malformed(501, "the server knows Transfer-Encoding: chunked only")


def _number(headers: Mapping[str, str], name: str) -> int | None:
    text = headers.get(name)
    if text is None:
        return None
    if not re.fullmatch("[0-9]{1,15}", text, re.ASCII):
        raise Malformed(400, f"the header {name} is no number of bytes")
    return int(text)


def _path(target: str) -> str:
    """Of `/path?query`, or of a whole URL, as proxies get it."""
    _, is_url, rest = target.partition("://")
    if is_url and not target.startswith("/"):
        target = "/" + rest.partition("/")[2]
    return unquote(target.partition("?")[0])
