"""Computes a digest of the requests sent in a run, and counts the prompt tokens that a prefix cache could provide."""

import hashlib
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from harness.remote import HasSent, Remote
from harness.types import Dataset, HasLiveHistory

SENT_S = 20.0
"""After this time, the digest and the count are abandoned, because the supervisor waits only a few minutes for the
`ended` message.
"""

_LOADED = 256
"""This many samples are loaded at once."""

NOTHING: Mapping[str, Any] = {"bodies_sha256": None, "reusable": None, "block_tokens": None}
"""The summary of a run whose requests are unknown."""


class _TooLate(Exception):
    pass


def summary(
    remote: Remote, dataset: Dataset, issued: Sequence[int], in_order: Sequence[int] | None
) -> Mapping[str, Any]:
    """Returns part of `tokens` for the `ended` message. After the run, loads the samples and makes their requests
    again.

    issued: the sample of each request, in issue order. in_order: the same samples in an order that does not depend on
    time; None if the issue order does not depend on time.
    """
    is_live = isinstance(dataset, HasLiveHistory) and dataset.live_history
    if is_live or not len(issued):  # the run does not keep prompts with a live history
        return NOTHING
    bodies: dict[int, bytes] = {}
    chains: dict[int, _Chain] = {}
    with suppress(Exception):  # a plug-in may fail, or its files may be unreadable
        _read(remote, dataset, issued, bodies, chains)
        whole = hashlib.sha256(b"".join(bodies[i] for i in in_order or issued))
        found: dict[str, Any] = {
            "bodies_sha256": whole.hexdigest(),
            "reusable": None,
            "block_tokens": None,
        }
        if len(chains) == len(bodies):
            found["block_tokens"] = next(iter(chains.values())).block_tokens
            found["reusable"] = reusable(chains, issued)
        return found
    return NOTHING


class _Chain:
    """The blocks of one prompt. The digest of a block covers the prompt from its start to the end of the block."""

    def __init__(self, ids: Sequence[int], block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.usable = (len(ids) - 1) // block_tokens
        """Number of blocks that a cache can provide. A server always computes the last token."""
        content, size = array("I", ids).tobytes(), 4 * block_tokens
        self.digests: list[bytes] = []
        before = b""
        for begin in range(0, len(ids) // block_tokens * size, size):
            before = hashlib.blake2b(before + content[begin : begin + size], digest_size=8).digest()
            self.digests.append(before)


def _read(
    remote: Remote,
    dataset: Dataset,
    issued: Sequence[int],
    bodies: dict[int, bytes],
    chains: dict[int, _Chain],
) -> None:
    end_s, indices = monotonic() + SENT_S, [*dict.fromkeys(issued)]
    for begin in range(0, len(indices), _LOADED):
        part = indices[begin : begin + _LOADED]
        if monotonic() > end_s:
            raise _TooLate
        dataset.load(part)
        for index in part:
            batch = dataset.batch([index])
            content = hashlib.sha256()
            for piece in remote.request(batch).body:
                content.update(piece)
            bodies[index] = content.digest()
            sent = remote.sent(batch) if isinstance(remote, HasSent) else None
            if sent is not None and sent.ids is not None and sent.block_tokens:
                chains[index] = _Chain(sent.ids, sent.block_tokens)
        dataset.unload(part)


def reusable(chains: Mapping[int, _Chain], issued: Sequence[int]) -> int:
    """Returns the number of prompt tokens that a cache could provide, because an earlier prompt of the run begins with
    the same blocks.
    """
    known: set[bytes] = set()
    tokens = 0
    for index in issued:
        chain = chains[index]
        for digest in chain.digests[: chain.usable]:
            if digest not in known:
                break
            tokens += chain.block_tokens
        known.update(chain.digests)
    return tokens
