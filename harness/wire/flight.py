"""One request in flight: its samples, its time stamps, and its reply or error."""

from collections.abc import Sequence

from harness.remote import Reply, StreamReader


class Flight:
    """One request from submission to reply. Stamps are of the wall clock in ns; 0: not reached."""

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
        """Kind of the error: reset, timeout, server-gone, bad-reply, encode."""
        self.resent = False
        self.server = -1
        """Number of the server that received the request; -1: none."""
        self.reader: StreamReader | None = None
        """Reader of the reply, if replies are streams and this reply has begun."""
        self.chunks: list[tuple[int, int]] = []
        """(stamp, tokens that the reader has counted so far) of each arrival with tokens."""
        self.answer_ns = 0
        """Stamp of the last arrival in which the answer after the reasoning began; 0: not yet."""
        self.answer_starts = 0
        """How many times the answer after the reasoning has begun."""
        self.first_token: int | None = None
        """Id of the answer's first token, once the token has arrived; None if the server does not report it."""
        self.tokens = self.late_tokens = 0
        """Tokens of the answer and late tokens, once the answer is read; 0 if the server does not report them."""
