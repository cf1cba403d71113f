"""Makes the bytes of requests. The requests of loaded samples are made once, before they are needed."""

from collections.abc import Callable, Sequence
from time import monotonic

from harness.remote import Buffer, Request
from harness.wire.connections import Server, size_bytes
from harness.wire.http1 import Heads

SHORT_BYTES = 16_384
"""A longer request is sent by the receiving thread, because 600 kB would delay the next query by 160 us."""

READY_BYTES = 256 * 2**20
"""Limit in bytes of all prepared requests; further requests are made when they are needed."""
PREPARE_S = 10.0
"""Time limit for preparing requests."""


class Requests:
    """The requests of a run to its servers. Any thread may call `parts`."""

    def __init__(
        self, servers: Sequence[Server], encode: Callable[[Sequence[int]], Request]
    ) -> None:
        """encode: makes the request for dataset indices. Raises ValueError if a header cannot be sent."""
        self._heads = [Heads(s.address.authority, s.address.prefix, s.headers) for s in servers]
        self._encode = encode
        self.ready: list[dict[int, bytes]] = [{} for _ in servers]
        """For each server: dataset index -> the whole request for that sample."""

    def parts(self, indices: Sequence[int], number: int) -> tuple[Sequence[Buffer], int]:
        """Returns head and body of a request to server `number`, and their bytes. Raises what the plug-in raises."""
        request = self._encode(indices)
        body = request.body
        length = size_bytes(body[0]) if len(body) == 1 else sum(map(size_bytes, body))
        head = self._heads[number].head(request, length)
        return (head, *body), len(head) + length

    def prepare(self, indices: Sequence[int]) -> None:
        """Makes one request for each of these samples, and drops earlier requests.

        A long array is sent without a copy, so its request is not prepared. Neither is a request that
        cannot be made: its query fails, and the result states why.
        """
        end_s = monotonic() + PREPARE_S
        left_bytes = READY_BYTES
        for ready in self.ready:
            ready.clear()
        for index in indices:
            for number, ready in enumerate(self.ready):
                try:
                    parts, length = self.parts([index], number)
                except Exception:  # noqa: BLE001, S112 - of the plug-in or the dataset
                    continue
                if length > SHORT_BYTES and not all(isinstance(part, bytes) for part in parts):
                    continue
                left_bytes -= length
                if left_bytes < 0 or monotonic() > end_s:
                    return
                ready[index] = b"".join(parts)
