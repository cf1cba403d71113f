"""Writes the heads of HTTP/1.1 requests and parses replies without using sockets (RFC 9112)."""

import re
from collections.abc import Sequence

from harness.remote import Headers, Reply, Request

MOST_HEAD_BYTES = 65_536
"""A reply with a longer head is refused; nginx and Apache have the same limit."""

MOST_BODY_BYTES = 2**31
"""A longer reply is refused before the reply takes up memory."""

_END = b"\r\n\r\n"
_BLANK_LINE = re.compile(rb"\n\r?\n")
_FOLD = re.compile(rb"\r\n[ \t]+")
"""A line break inside a header value, as sent by old servers."""
_TIMING = b"\r\nServer-Timing:"
"""Last header in replies of `serve`, whose heads differ only in this line."""
_MOST_HEADS = 4096
_OK = 200

_VERSIONED = re.compile(r"(/v\d+)(/(chat/)?completions|/models(/.*)?)?")
"""Matches the end of a URL prefix: an API version, with or without one of the API's endpoints. Other clients accept
such prefixes.
"""


_BESIDE = ("/metrics", "/version", "/reset_prefix_cache", "/flush_cache")
"""Server pages outside the versioned API."""


class BadReply(ValueError):
    """Raised if a server's bytes are not an HTTP reply."""


class EncodedReply(BadReply):
    """Raised if the body of a reply is compressed."""


class Heads:
    """The heads of requests to one server; each head is created once."""

    __slots__ = ("_known", "_more", "_prefix")

    def __init__(
        self, host: str, prefix: str = "", headers: Sequence[tuple[str, str]] = ()
    ) -> None:
        """host: value of the header Host. prefix: text before each request's path. headers: headers that are added to
        each request.

        Raises ValueError if a header contains a line break or another control character.
        """
        self._prefix = prefix
        own = {name.lower() for name, _ in headers}
        plain = () if "accept-encoding" in own else (("Accept-Encoding", "identity"),)
        self._more = (("Host", host), *plain, *headers)
        self._known: dict[tuple[str, str, Headers, int], bytes] = {}
        _check(self._more)

    def head(self, request: Request, length: int) -> bytes:
        """Returns the head of a request. length: size of the body in bytes."""
        key = request.method, request.path, request.headers, length
        head = self._known.get(key)
        if head is None:
            if len(self._known) >= _MOST_HEADS:  # bodies may have thousands of different lengths
                self._known.clear()
            head = self._known[key] = self._made(request, length)
        return head

    def _made(self, request: Request, length: int) -> bytes:
        _check([("path", request.path), *request.headers])
        sized = () if request.method == "GET" else (("Content-Length", str(length)),)
        path = joined(self._prefix, request.path)
        lines = [f"{request.method} {path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in (*self._more, *request.headers, *sized)]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def joined(prefix: str, path: str) -> str:
    """Joins the prefix in --url and the path of a request.

    If both contain the API version, the result contains the version once. Pages outside the API get no version.
    """
    for match in _VERSIONED.finditer(prefix):
        is_named = path in _BESIDE or f"{path}/".startswith(f"{match[1]}/")
        if is_named and match.end() == len(prefix):
            prefix = prefix[: match.start()]
    return prefix + path


def is_sendable(text: str) -> bool:
    """Returns whether HTTP allows the text in a header value."""
    return not any((ord(c) < 32 and c != "\t") or ord(c) == 127 or ord(c) > 255 for c in text)


def _check(headers: Sequence[tuple[str, str]]) -> None:
    for name, value in headers:
        if not is_sendable(name + value):
            raise ValueError(f"header {name!r} contains a character that HTTP forbids")


class Framing:
    """Facts that the head of a reply states about the body and the connection."""

    __slots__ = ("chunked", "closes", "length", "status")

    def __init__(self, head: bytes) -> None:
        first, *lines = _FOLD.sub(b" ", head[:-4]).split(b"\r\n")
        version, _, rest = first.partition(b" ")
        code = rest[:3]
        if version not in (b"HTTP/1.1", b"HTTP/1.0") or not code.isdigit() or len(code) != 3:
            raise BadReply(f"no HTTP/1.1 status line: {first[:60]!r}")
        self.status = status = int(code)
        self.closes = version == b"HTTP/1.0"
        self.chunked = False
        length: int | None = None
        for line in lines:
            name, colon, value = line.partition(b":")
            if not colon:
                raise BadReply(f"a line of the head is not a header: {line[:60]!r}")
            length = self._header(name.lower(), value.strip(), length)
        if length is not None and length > MOST_BODY_BYTES:
            raise BadReply(f"the body has {length} bytes, which is too long")
        if status in (204, 304) or status < 200:
            length, self.chunked = 0, False
        if length is None and not self.chunked:
            self.closes = True
        self.length = length

    def _header(self, name: bytes, value: bytes, length: int | None) -> int | None:
        """Evaluates one header, and returns the body's length. length: the body's length, if an earlier header stated
        it.
        """
        if name == b"content-length":
            if not value.isdigit() or (length is not None and length != int(value)):
                raise BadReply(f"the body's Content-Length is {value[:40]!r}")
            return int(value)
        if name == b"transfer-encoding":
            if value.lower() != b"chunked":
                raise BadReply(f"the transfer encoding is {value[:40]!r}, not chunked")
            self.chunked = True
        elif name == b"content-encoding" and value.lower() not in (b"", b"identity"):
            raise EncodedReply(
                f"the server answered {self.status} with Content-Encoding: {value.decode('latin-1')!r:.40}, but the "
                "client cannot read compressed replies: turn compression off, in the server or in a proxy in front of it, "
                "and drop --header Accept-Encoding if it is set"
            )
        elif name == b"connection":
            tokens = value.lower().replace(b" ", b"").split(b",")
            self.closes = b"close" in tokens or (self.closes and b"keep-alive" not in tokens)
        return length


def _first_head(data: bytes) -> tuple[bytes, int]:
    """Returns the first head and its length in `data`, or (b"", 0) if the head is incomplete.

    All lines of the returned head end with CRLF, although some servers end lines with LF.
    """
    blank = _BLANK_LINE.search(data)
    if blank is None:
        return b"", 0
    end = blank.end()
    head = data[:end]
    if head.count(b"\n") != head.count(b"\r\n"):
        head = head.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
    return head, end


_new = tuple.__new__
"""Creates a Reply in half the time that Reply.__new__ takes."""

_plain: dict[bytes, Framing] = {}
"""Maps heads, shortened by `_stem`, to their Framing if the heads state a length; cached because a server repeats its
heads.
"""


def _stem(head: bytes) -> bytes:
    """Returns the head without a last line of server times, because these times always differ and do not describe the
    body.
    """
    last = head.rfind(b"\r\n", 0, -len(_END))
    return head[:last] if head.startswith(_TIMING, last) else head


class ReplyParser:
    """Parses the replies on one connection, one at a time.

    Call `feed` with the arriving bytes until `feed` returns a reply; the next request may then be sent. Call `close`
    when the connection ends. Both methods raise BadReply, after which the connection cannot be used.
    """

    __slots__ = ("_body", "_chunks", "_framing", "_head", "_left", "began", "closes", "pieces")

    def __init__(self) -> None:
        self.began = False
        """Whether a byte of the next reply has arrived."""
        self.closes = False
        """Whether the server closes the connection after the last reply."""
        self.pieces: list[bytes] | None = None
        """List that collects the body bytes of replies with status 200 as they arrive; None if the bytes are not
        collected.
        """
        self._head = b""
        self._framing: Framing | None = None
        self._body: list[bytes] = []
        self._left = 0  # number of missing bytes of the body
        self._chunks: _Chunks | None = None

    def feed(self, data: bytes) -> Reply | None:
        """Returns the reply when the reply is complete, otherwise None."""
        # The fast path handles a reply that arrives in one piece (the usual case) and has a known head, if pieces are
        # not collected.
        if not self.began and self.pieces is None:
            end = data.find(_END) + 4
            head = data[:end]
            known = _plain.get(head) or _plain.get(_stem(head))
            if known is not None and known.length == len(data) - end:
                self.closes = known.closes
                return _new(Reply, (known.status, head, memoryview(data)[end:]))
        if self._framing is None:
            return self._start(self._head + data if self._head else data)
        return self._continue(data)

    def _start(self, data: bytes) -> Reply | None:
        self.began = True
        while True:
            head, end = _first_head(data)
            if not head:
                if len(data) > MOST_HEAD_BYTES:
                    raise BadReply(f"the head of the reply is longer than {MOST_HEAD_BYTES} bytes")
                self._head = data
                return None
            framing = Framing(head)
            if framing.status >= 200:
                break
            if framing.status == 101:
                raise BadReply("the server switched protocols")
            data = data[end:]  # 100 Continue and 103 Early Hints precede the actual reply
        self._head, self._framing = head, framing
        self.closes = framing.closes
        length = framing.length
        if framing.chunked:
            self._chunks = _Chunks()
        elif length is not None:
            if len(_plain) >= _MOST_HEADS:  # heads may always differ, for example in a date
                _plain.clear()
            _plain[_stem(head)] = framing
            if len(data) == end + length and self.pieces is None:
                self._framing, self._head, self.began = None, b"", False
                return Reply(framing.status, head, memoryview(data)[end:])
            self._left = length
        return self._continue(data[end:]) if len(data) > end or not length else None

    def _continue(self, data: bytes) -> Reply | None:
        framing = self._framing
        assert framing is not None
        arrived = [data] if self._chunks is None else self._chunks.feed(data)
        self._body += arrived
        if self.pieces is not None and framing.status == _OK:
            self.pieces += arrived
        if self._chunks is not None:
            return self._whole() if self._chunks.ended else None
        if framing.length is None:
            return None
        self._left -= len(data)
        if self._left < 0:
            raise BadReply(f"{-self._left} bytes follow the end of the reply")
        return self._whole() if not self._left else None

    def _whole(self) -> Reply:
        framing = self._framing
        assert framing is not None
        reply = Reply(framing.status, self._head, memoryview(b"".join(self._body)))
        self._head, self._framing, self._body, self._chunks = b"", None, [], None
        self.began = False
        return reply

    def close(self) -> Reply | None:
        """Returns the reply that the end of the connection completes. Raises BadReply if a reply is incomplete."""
        framing = self._framing
        if framing is not None and framing.length is None and self._chunks is None:
            return self._whole()
        if self.began:
            raise BadReply("the connection ended within a reply")
        return None


class _Chunks:
    """Decodes a chunked body, and skips extensions and trailers."""

    __slots__ = ("_left", "_state", "_text", "_total", "ended")

    def __init__(self) -> None:
        self.ended = False
        self._text = b""  # the beginning of an incomplete line
        self._left = 0  # number of missing bytes of the chunk
        self._total = 0
        self._state = "size"

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the decoded content of the bytes that have arrived."""
        found: list[bytes] = []
        data = self._text + data
        self._text = b""
        while data and not self.ended:
            if self._state == "data":
                piece, data = data[: self._left], data[self._left :]
                found.append(piece)
                self._left -= len(piece)
                if not self._left:
                    self._state = "end"
                continue
            line, end, rest = data.partition(b"\r\n")
            if not end:
                if len(data) > MOST_HEAD_BYTES:
                    raise BadReply("a chunk has no size")
                self._text = data
                break
            data = rest
            self._line(line)
        if self.ended and data:
            raise BadReply(f"{len(data)} bytes follow the end of the reply")
        return found

    def _line(self, line: bytes) -> None:
        if self._state == "end":
            if line:
                raise BadReply("a chunk is longer than its size")
            self._state = "size"
        elif self._state == "size":
            digits = line.split(b";")[0].strip()
            try:
                size = int(digits, 16) if digits.isalnum() else -1
            except ValueError:
                size = -1
            self._total += size
            if size < 0 or self._total > MOST_BODY_BYTES:
                raise BadReply(f"a chunk has the invalid size {digits[:20]!r}")
            self._left = size
            self._state = "data" if size else "trailer"
        elif not line:
            self.ended = True
