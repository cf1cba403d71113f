"""Makes the bytes of requests. The requests of loaded samples are made once, before they are asked for."""

from collections.abc import Callable, Sequence
from time import monotonic

from harness.remote import Buffer, Request
from harness.wire.connections import Server, size_bytes
from harness.wire.http1 import Heads

SHORT_BYTES = 16_384
"""A longer request is sent by the receiving thread: 600 kB would keep the next query waiting 160 us."""

READY_BYTES = 256 * 2**20
"""Requests that are kept ready, at most; the others are made when they are asked for."""
PREPARE_S = 10.0
"""Time for making them."""


class Requests:
    """The requests of a run to its servers. Any thread may call `parts`."""

    def __init__(
        self, servers: Sequence[Server], encode: Callable[[Sequence[int]], Request]
    ) -> None:
        """encode: the request of dataset indices. Raises ValueError where a header cannot be sent."""
        self._heads = [Heads(s.address.authority, s.address.prefix, s.headers) for s in servers]
        self._encode = encode
        self.ready: list[dict[int, bytes]] = [{} for _ in servers]
        """For each server: dataset index -> the whole request of that one sample."""

    def parts(self, indices: Sequence[int], number: int) -> tuple[Sequence[Buffer], int]:
        """Head and body of a request to the server of that number, and their bytes. Raises what plug-ins do."""
        request = self._encode(indices)
        body = request.body
        length = size_bytes(body[0]) if len(body) == 1 else sum(map(size_bytes, body))
        head = self._heads[number].head(request, length)
        return (head, *body), len(head) + length

    def prepare(self, indices: Sequence[int]) -> None:
        """Makes the requests of these samples, one each, in the place of those that were ready.

        An array that is long is sent from where it lies, and no copy is kept. A sample whose request
        cannot be made is left out: its query fails, and the result says why.
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
