"""Keeps encoded pieces of the loaded samples, and joins them into requests."""

from collections.abc import Sequence

from harness.errors import ConfigError
from harness.machine.host import available_memory_bytes
from harness.remote import JoinsSamples, Remote, Request
from harness.types import Dataset


def joins_samples(remote: Remote, *, qdl: bool) -> JoinsSamples | None:
    """Returns the plug-in if its requests are joined from pieces; otherwise None.

    Returns None with --qdl, because a query dispatch library must not keep encoded queries.
    """
    return remote if isinstance(remote, JoinsSamples) and not qdl else None


class JoinedSamples:
    """Encoded pieces of the currently loaded samples. Any thread may call `request`."""

    def __init__(self, remote: JoinsSamples, dataset: Dataset) -> None:
        self._remote = remote
        self._dataset = dataset
        self._ready: dict[int, Sequence[bytes]] = {}

    def prepare(self, indices: Sequence[int]) -> None:
        """Encodes these samples and drops earlier samples. Raises ConfigError if the encoded samples take too much
        memory.

        Omits samples that cannot be encoded. The queries of such a sample fail, and the result states the reason.
        """
        self._ready = ready = {}
        most_bytes = left_bytes = available_memory_bytes() // 2
        for index in dict.fromkeys(indices):
            try:
                pieces = self._pieces(index)
            except Exception:  # noqa: BLE001, S112 - an error of the plug-in or the dataset
                continue
            left_bytes -= sum(map(len, pieces))
            if left_bytes < 0:
                raise ConfigError(
                    f"the encoded requests of {len(indices):,} samples need more than {most_bytes / 2**30:.1f} GiB, "
                    "half of the free memory: lower --performance-count"
                )
            ready[index] = pieces

    def request(self, indices: Sequence[int]) -> Request:
        """Returns the request for these samples. Raises the errors of the plug-in or the dataset."""
        ready = self._ready
        return self._remote.joined([ready.get(i) or self._pieces(i) for i in indices])

    def _pieces(self, index: int) -> Sequence[bytes]:
        return self._remote.pieces(self._dataset.batch([index]))
