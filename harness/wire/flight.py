"""One request in flight: its samples, its time stamps, and its reply or error."""

from collections.abc import Sequence

from harness.remote import Reply, StreamReader


class Flight:
    """One request, from its submission to its reply. Stamps are wall-clock times in ns, or 0 for a stage that was not
    reached.
    """

    __slots__ = (
        "answer_ns",
        "answer_starts",
        "arrived_ns",
        "chunks",
        "error",
        "first",
        "first_token",
        "ids",
        "indices",
        "kind",
        "late_tokens",
        "read_ns",
        "reader",
        "reply",
        "resent",
        "sent_ns",
        "server",
        "taken_ns",
        "tokens",
    )

    def __init__(self, ids: Sequence[int], indices: Sequence[int], first: int) -> None:
        self.ids = ids
        self.indices = indices
        self.first = first
        self.taken_ns = self.sent_ns = self.arrived_ns = self.read_ns = 0
        self.reply: Reply | None = None
        self.error: Exception | None = None
        self.kind = ""
        """Kind of the error: reset, timeout, server-gone, bad-reply or encode."""
        self.resent = False
        self.server = -1
        """Number of the server that received the request, or -1 if none did."""
        self.reader: StreamReader | None = None
        """Reader of the reply, if replies are streams and this reply has started to arrive."""
        self.chunks: list[tuple[int, int]] = []
        """(stamp, number of tokens that the reader has counted so far) for each arrival that contains tokens."""
        self.answer_ns = 0
        """Stamp of the last arrival in which the answer after the reasoning began, or 0 if the answer has not begun."""
        self.answer_starts = 0
        """Number of times that the answer after the reasoning has begun."""
        self.first_token: int | None = None
        """ID of the answer's first token, set when this token has arrived; None if the server does not report IDs."""
        self.tokens = self.late_tokens = 0
        """Number of tokens and number of late tokens in the answer, set when the answer has been read; 0 if the server
        does not report tokens.
        """
