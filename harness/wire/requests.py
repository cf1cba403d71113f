"""Creates the bytes of requests. Requests for loaded samples are created once, before they are needed."""

from collections.abc import Callable, Sequence
from time import monotonic

from harness.remote import Buffer, Request
from harness.wire.connections import Server, size_bytes
from harness.wire.http1 import Heads

SHORT_BYTES = 16_384
"""The receiving thread sends longer requests, because sending 600 kB would delay the next query by 160 us."""

READY_BYTES = 256 * 2**20
"""Maximum size in bytes of all prepared requests; further requests are created when they are needed."""
PREPARE_S = 10.0
"""Requests are prepared for at most this long."""


class Requests:
    """The requests that a run sends to its servers. Any thread may call `parts`."""

    def __init__(
        self, servers: Sequence[Server], encode: Callable[[Sequence[int]], Request]
    ) -> None:
        """encode: creates the request for dataset indices. Raises ValueError if a header cannot be sent."""
        self._heads = [Heads(s.address.authority, s.address.prefix, s.headers) for s in servers]
        self._encode = encode
        self.ready: list[dict[int, bytes]] = [{} for _ in servers]
        """For each server, maps a dataset index to the complete request for that sample."""

    def parts(self, indices: Sequence[int], number: int) -> tuple[Sequence[Buffer], int]:
        """Returns the head and body of a request to server `number`, and their size in bytes. Raises the plug-in's
        exceptions.
        """
        request = self._encode(indices)
        body = request.body
        length = size_bytes(body[0]) if len(body) == 1 else sum(map(size_bytes, body))
        head = self._heads[number].head(request, length)
        return (head, *body), len(head) + length

    def prepare(self, indices: Sequence[int]) -> None:
        """Creates one request for each of these samples, and discards earlier requests.

        Does not prepare requests with long arrays, because long arrays are sent without a copy. Does not prepare a
        request that cannot be created, either; the sample's query fails later, and the result states the reason.
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
