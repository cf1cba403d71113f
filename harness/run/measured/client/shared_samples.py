"""Puts the loaded samples into shared memory, from which the server reads them. Requests then contain no tensors."""

import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from harness.errors import ConfigError, one_line
from harness.remote import Remote, Request, SharesSamples
from harness.run.shared_region import REGIONS, region_of
from harness.types import Dataset
from harness.wire.connections import Server, size_bytes
from harness.wire.grpc.calls import CallLink
from harness.wire.remote_backend import Link, link_to

_ALIGNED_BYTES = 64
_DONE = (200, 0)
"""Status values that mean success: 200 in HTTP, 0 in gRPC."""
_MODE = 0o600
"""Mode of the file, so that no other user can read it."""


def shares_samples(remote: Remote) -> SharesSamples | None:
    """Returns the plug-in if its options request shared memory, else None."""
    return remote if isinstance(remote, SharesSamples) and remote.shares else None


def check_here(peers: Sequence[tuple[str, bool]]) -> None:
    """Raises ConfigError if a server is on another machine. peers: (address, whether the server is on this machine)
    pairs.
    """
    for address, is_local in peers:
        if not is_local:
            raise ConfigError(
                f"--backend-option encoding=shm: the server at {address} is on a different machine and cannot "
                "read this machine's memory: drop the option"
            )


class SharedSamples:
    """The currently loaded samples of a dataset, in one region of shared memory.

    The region's file is removed as soon as the servers have mapped it. `close` makes the servers release the region. If
    this process ends before `close`, the supervisor makes the servers release the region.
    """

    def __init__(
        self, remote: SharesSamples, dataset: Dataset, servers: Sequence[Server], timeout_s: float
    ) -> None:
        self._remote = remote
        self._dataset = dataset
        self._links = [link_to(server, timeout_s) for server in servers]
        self._region = region_of(os.getpid())
        self._attached: list[Link | CallLink] = []
        self._requests: dict[int, Request] = {}

    def place(self, indices: Sequence[int]) -> None:
        """Shares the loaded samples and drops earlier samples.

        Raises ConfigError if memory is short or a server refuses.
        """
        self._detach()
        remote, batch = self._remote, self._dataset.batch
        offsets, end = {}, 0
        for index in dict.fromkeys(indices):
            offsets[index] = end
            end += sum(map(size_bytes, remote.parts(batch([index]))))
            end += -end % _ALIGNED_BYTES
        path = REGIONS / self._region
        try:
            with _mapped(path, max(end, 1)) as region:
                for index, offset in offsets.items():
                    at = offset
                    for part in remote.parts(batch([index])):
                        size = size_bytes(part)
                        region[at : at + size] = memoryview(part).cast("B")
                        at += size
            for link in self._links:
                self._attach(link, max(end, 1))
        finally:
            path.unlink(missing_ok=True)
        self._requests = {
            index: remote.request_at(self._region, batch([index]), offset)
            for index, offset in offsets.items()
        }

    def _attach(self, link: Link | CallLink, size: int) -> None:
        reply = link.exchange_at_start(
            self._remote.attach(self._region, size, link.server.address.transport)
        )
        if reply.status not in _DONE:
            said = one_line(bytes(reply.body[:300]).decode("utf-8", "replace"))
            raise ConfigError(
                f"--backend-option encoding=shm: {link.server.address} cannot read this machine's shared "
                f"memory (status {reply.status}: {said}): drop the option"
            )
        self._attached.append(link)

    def request(self, indices: Sequence[int]) -> Request:
        """Returns the request for one loaded sample."""
        (index,) = indices
        return self._requests[index]

    def _detach(self) -> None:
        self._requests = {}
        while self._attached:
            link = self._attached.pop()
            transport = link.server.address.transport
            link.exchange_at_start(self._remote.detach(self._region, transport))

    def close(self) -> None:
        """Makes the servers release the region. Never raises an error, because the supervisor repeats the release."""
        with suppress(ConfigError):
            self._detach()
        for link in self._links:
            link.close()


@contextmanager
def _mapped(path: Path, size: int) -> Iterator[mmap.mmap]:
    """Maps a new file of `size` bytes into memory within a `with` block. Raises ConfigError if memory is short."""
    try:
        # The file may remain from an earlier run that was killed together with its supervisor.
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, _MODE)
    except OSError as e:
        raise ConfigError(
            f"--backend-option encoding=shm cannot create {path} ({e.strerror}): drop the option"
        ) from e
    try:
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as e:
            raise ConfigError(
                f"--backend-option encoding=shm: {path.parent} has no room for the loaded samples, "
                f"{size:,} bytes ({e.strerror}): lower --performance-count, or drop the option"
            ) from e
        with mmap.mmap(descriptor, size) as region:
            yield region
    finally:
        os.close(descriptor)
