"""Compares the time of tokens without text with other tokens. A request that ignores the end demands such tokens.

An honest server computes each of them like any other token. A server that only counts them has them immediately.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from harness.remote import Usage

LEAST_TOKENS = 8
"""Minimum number of tokens without text whose time is meaningful, because a server may send a few tokens together."""

LEAST_NS = 20_000
"""Minimum time per token, i.e. 50,000 tokens/s for one prompt. A faster server has not computed them."""

_RATIO = 20
"""Ratio to the speed of other tokens that is suspicious. It is high: a draft model can guess many ends in a row."""


class Tails:
    """Counts the streams with such tokens, and the streams that received them at once."""

    def __init__(self) -> None:
        self.streams = 0
        self.at_once = 0

    def add(
        self, arrivals: Sequence[tuple[int, int]], usage: Usage, end_ns: int, *, exact: bool
    ) -> None:
        """Adds a stream.

        arrivals: as in Flight.chunks. end_ns: time stamp of the last byte. exact: whether the arrivals count tokens.
        """
        if usage.silent < LEAST_TOKENS or not arrivals:
            return
        if not exact:  # texts without counts: the tokens beyond their bytes follow the last one
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
