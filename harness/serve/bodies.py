"""Receives the bodies of requests, which may be plain, chunked or compressed. Does not use sockets."""

import re
import zlib

import numpy as np

MOST_HEAD_BYTES = 1 << 15
MOST_BODY_BYTES = 1 << 30
MOST_UNPACKED_BYTES = 1 << 27
"""A body that is longer after decompression is refused. The limit is lower than for a plain body, because a sender may
need to transmit only a thousandth of the decompressed size.
"""

ALIGNMENT_BYTES = 64
CODINGS = ("gzip", "x-gzip", "deflate")
"""Supported values of Content-Encoding besides identity."""

LINE = b"\r\n"
TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
HEADER = re.compile(
    rb"(" + TOKEN + rb"+):[ \t]*((?:[\x21-\x7e\x80-\xff \t]*[\x21-\x7e\x80-\xff])?)[ \t]*"
)
_MOST_CHUNK_LINE_BYTES = 256
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,12})[ \t]*(?:;[\x20-\x7e\x80-\xff\t]*)?")
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32


class Malformed(Exception):
    """Raised if the bytes received on a connection are not a valid request.

    The server responds with `status` and closes the connection.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def too_long(most: int) -> Malformed:
    return Malformed(413, f"the body is longer than {most:,} bytes")


def aligned(length: int, offset: int) -> memoryview:
    """Returns a buffer for a body. The tensors begin at `offset`, where the buffer is aligned for every number type."""
    padding = -offset % ALIGNMENT_BYTES
    return np.empty(padding + length, np.uint8).data[padding:]


def unpacked(body: memoryview, most: int = MOST_UNPACKED_BYTES) -> memoryview:
    """Decompresses a body in gzip's or zlib's format. Raises Malformed if the body is invalid or longer than `most`
    bytes.
    """
    packer = zlib.decompressobj(_GZIP_OR_ZLIB)
    try:
        content = packer.decompress(body, most + 1)
    except zlib.error:
        raise Malformed(400, "the body is not compressed as Content-Encoding declares") from None
    if len(content) > most:
        raise Malformed(413, f"the body is longer than {most:,} bytes when decompressed")
    if not packer.eof or packer.unused_data:
        raise Malformed(400, "the compressed body does not end where the request ends")
    return memoryview(content)


class Chunks:
    """The body of a request with Transfer-Encoding: chunked."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self.body = bytearray()
        self.is_complete = False
        self._missing = 0
        """Number of bytes in the chunk that have not arrived yet, including the line break after the chunk."""
        self._is_last = False
        self._trailer_bytes = 0

    def add(self, data: bytes) -> bytes:
        """Adds received bytes. Returns the bytes that cannot be processed yet, or that follow the body."""
        at = 0
        while not self.is_complete:
            if self._missing:
                taken = self._take(data, at)
                if not taken:
                    break
                at += taken
                continue
            end = data.find(LINE, at)
            if (len(data) - 1 if end < 0 else end) - at > _MOST_CHUNK_LINE_BYTES:
                raise Malformed(400, "a line between the chunks is too long")
            if end < 0:
                if b"\n" in data[at:]:
                    raise Malformed(400, "a line between the chunks ends without CR")
                break
            self._read_line(data[at:end])
            at = end + len(LINE)
        return data[at:]

    def _take(self, data: bytes, at: int) -> int:
        """Processes bytes of a chunk, or the line break after the chunk. Returns the number of processed bytes, or 0 if
        more bytes must arrive first.
        """
        of_body = self._missing - len(LINE)
        if of_body > 0:
            part = data[at : at + of_body]
            self.body += part
            self._missing -= len(part)
            return len(part)
        line = data[at : at + len(LINE)]
        if line != LINE[: len(line)]:
            raise Malformed(400, "a chunk is longer than its declared size")
        if len(line) < len(LINE):
            return 0
        self._missing = 0
        return len(LINE)

    def _read_line(self, line: bytes) -> None:
        if self._is_last:
            self._trailer_bytes += len(line)
            self.is_complete = not line
            if line and not HEADER.fullmatch(line):
                raise Malformed(400, "a trailer is malformed")
            if self._trailer_bytes > MOST_HEAD_BYTES:
                raise Malformed(431, f"the trailers are longer than {MOST_HEAD_BYTES:,} bytes")
            return
        match = _CHUNK.fullmatch(line)
        if match is None:
            raise Malformed(400, "the size of a chunk is malformed")
        size = int(match[1], 16)
        if len(self.body) + size > self._most_bytes:
            raise too_long(self._most_bytes)
        self._is_last = size == 0
        self._missing = size + len(LINE) if size else 0
