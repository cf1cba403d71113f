"""Parses server-sent events (text/event-stream), the format in which servers stream tokens. The module does not use
sockets.

Lines may end with LF, CRLF or CR. Comments and all fields except `data` are skipped, as other token-stream clients do.
"""

DONE = b"[DONE]"
"""Data in the last event of OpenAI's streams."""

MOST_EVENT_BYTES = 16 * 2**20
"""Maximum size of an event in bytes. A larger event is refused before it uses more memory."""

_BOM = b"\xef\xbb\xbf"


class BadEvents(ValueError):
    """Raised if the server's bytes are not a valid event stream."""


class EventParser:
    """Parses a single stream. `feed` accepts the bytes in pieces of any size as they arrive, and returns the data of
    complete events.

    Only complete events are decoded, so a piece may end in the middle of a character.
    """

    __slots__ = ("_begun", "_data", "_data_bytes", "_ends_with_cr", "_line", "_line_bytes")

    def __init__(self) -> None:
        self._line: list[bytes] = []  # pieces of the current, incomplete line
        self._line_bytes = 0
        self._data: list[bytes] = []  # lines of the current, incomplete event
        self._data_bytes = 0
        self._begun = False
        # Whether the last piece ended in CR; if so, an LF that follows belongs to the same line end.
        self._ends_with_cr = False

    @property
    def is_whole(self) -> bool:
        """Returns whether all events received so far are complete. After the last byte, the result shows whether the
        whole stream is complete.
        """
        return not self._line and not self._data

    def feed(self, piece: bytes) -> list[bytes]:
        """Returns the data of each event that ends in this piece. Raises BadEvents if the bytes are not a valid event
        stream.
        """
        if b"\r" in piece or self._ends_with_cr:
            piece = self._with_lf(piece)
        *lines, rest = piece.split(b"\n")
        events: list[bytes] = []
        if lines:
            lines[0] = b"".join((*self._line, lines[0]))
            self._line, self._line_bytes = [], 0
            if not self._begun:
                self._begun = True
                lines[0] = lines[0].removeprefix(_BOM)
            for line in lines:
                self._take(line, events)
        if rest:
            self._line.append(rest)
            self._line_bytes += len(rest)
        if self._line_bytes + self._data_bytes > MOST_EVENT_BYTES:
            raise BadEvents(f"an event is longer than {MOST_EVENT_BYTES} bytes")
        return events

    def _with_lf(self, piece: bytes) -> bytes:
        """Replaces the line ends in a piece with LF."""
        if self._ends_with_cr and piece:
            piece = piece.removeprefix(b"\n")
            self._ends_with_cr = False
        self._ends_with_cr = self._ends_with_cr or piece.endswith(b"\r")
        return piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _take(self, line: bytes, events: list[bytes]) -> None:
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
            self._data_bytes += len(line)
        elif line == b"data":
            self._data.append(b"")
        elif not line and self._data:
            events.append(b"\n".join(self._data))
            self._data, self._data_bytes = [], 0
