"""Compares how fast tokens arrive with and without text.

Tokens without text occur if a request makes the model continue after the end of its answer. An honest server computes
such a token like any other token. A server that only counts such tokens, without computing them, sends them
immediately.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from harness.remote import Usage

LEAST_TOKENS = 8
"""A stream is judged only if it has at least this many tokens without text, because a server may send a few tokens
together.
"""

LEAST_NS = 20_000
"""A server that takes less time per token (more than 50,000 tokens/s for one prompt) has not computed the tokens."""

_RATIO = 20
"""Tokens without text are suspicious if they arrive this many times as fast as other tokens. The factor is high,
because a draft model can correctly guess many such tokens in a row.
"""


class Tails:
    """Counts the streams that contain tokens without text, and the streams in which all these tokens arrived together."""

    def __init__(self) -> None:
        self.streams = 0
        self.at_once = 0

    def add(
        self, arrivals: Sequence[tuple[int, int]], usage: Usage, end_ns: int, *, exact: bool
    ) -> None:
        """Adds a stream.

        arrivals: as in Flight.chunks. end_ns: time stamp of the last byte. exact: whether `arrivals` contains token
        counts instead of chunk counts.
        """
        if usage.silent < LEAST_TOKENS or not arrivals:
            return
        if not exact:  # without token counts, tokens without text can only follow the last arrival
            self._judge(usage.silent, end_ns - arrivals[-1][0], LEAST_NS)
            return
        tokens, spent_ns = {False: 0, True: 0}, {False: 0, True: 0}
        for (before_ns, before), (stamp_ns, count) in pairwise(arrivals):
            texts_at = usage.texts_at
            has_text = bisect_right(texts_at, count) > bisect_right(texts_at, before)
            tokens[has_text] += count - before
            spent_ns[has_text] += stamp_ns - before_ns
        if tokens[False] >= LEAST_TOKENS:
            usual_ns = spent_ns[True] / tokens[True] if tokens[True] else 0.0
            self._judge(tokens[False], spent_ns[False], max(LEAST_NS, usual_ns / _RATIO))

    def _judge(self, tokens: int, spent_ns: int, least_ns: float) -> None:
        self.streams += 1
        self.at_once += spent_ns < least_ns * tokens
