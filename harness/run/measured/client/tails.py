"""Compares the time of tokens without text, which follow the text because a request ignores the end, with other tokens.

A server computes each of them like any other token. A server that only counts them has them at once.
"""

from collections.abc import Sequence

LEAST_TOKENS = 8
"""The fewest tokens after the text whose time means something: a server may send a few tokens together."""

LEAST_NS = 20_000
"""A server that takes less time per token, 50,000 tokens/s for one prompt, has not computed them."""

_RATIO = 20
"""How many times as fast as other tokens they must be: a draft model can guess many in a row, e.g. of white space."""


class Tails:
    """Counts the streams with such tokens, and those that had them at once."""

    def __init__(self) -> None:
        self.streams = 0
        self.at_once = 0

    def add(
        self,
        arrivals: Sequence[tuple[int, int]],
        after_text: int,
        tokens: int,
        end_ns: int,
        *,
        exact: bool,
    ) -> None:
        """arrivals: as Flight.chunks. tokens: of the answer, of which `after_text` follow the text. end_ns: stamp of the
        last byte. exact: whether the arrivals count tokens; else they count texts.
        """
        if after_text < LEAST_TOKENS:
            return
        with_text = tokens - after_text
        shown = [one for one in arrivals if one[1] <= with_text] if exact else [*arrivals]
        if not shown:
            return
        (first_ns, first), (last_ns, last) = shown[0], shown[-1]
        least_ns: float = LEAST_NS
        if exact and last > first:
            least_ns = max(least_ns, (last_ns - first_ns) / (last - first) / _RATIO)
        self.streams += 1
        self.at_once += end_ns - last_ns < least_ns * after_text
