"""Measures the client's highest rate (ceiling) and lowest latency (floor) with a server that answers immediately.

Requests, sizes and connections are the same as in the run. This null server is a separate process that shares the
machine's cores. If the client had the machine to itself, the client could only be faster.
"""

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, NamedTuple

import numpy as np

from harness.core.config.address import parse_address
from harness.loadgen.answers import AnswerRow
from harness.loadgen.binding import responder_for
from harness.models.steps.postprocess import Postprocess
from harness.remote import Reply, Request
from harness.run.measured.client.dispatch import (
    Delivery,
    DirectDispatcher,
    InlineRemoteDispatcher,
    merged_samples,
    stream_reader,
)
from harness.run.measured.dispatch.instance import Failures
from harness.types import Dataset
from harness.wire.connections import Server
from harness.wire.null.server import NullServer
from harness.wire.remote_backend import RemoteBackend
from harness.wire.transport import Transport, transport

FLOOR_S = 0.3
CEILING_S = 1.0
TIMEOUT_S = 10.0
_FIRST_ROUND = 512
_MOST_SAMPLES = 500_000
"""The first round issues about _FIRST_ROUND samples, and no round issues more than _MOST_SAMPLES."""

_DROPPED = (b"content-length", b"transfer-encoding", b"connection", b"keep-alive")


class Ceiling(NamedTuple):
    """The client's ceiling and floor, as measured with the null server."""

    per_s: float
    """Ceiling: samples/s while all connections are busy."""
    floor_p50_ns: int
    """Floor: median time of a single request."""


_TAKEN, _COMPLETED = 0, 5
"""Positions of the time stamps in the values of a row."""


class _Counts:
    """Stands in for the journal, but keeps only the time stamps of the rows."""

    def __init__(self) -> None:
        self.answered = 0
        self.took_ns: list[int] = []

    def issued(self, _samples: int, _entry_ns: int) -> int:
        return 0

    def reply(self, _first: int, indices: Sequence[int], _failed: int, /, *values: int) -> None:
        self.took_ns.append(values[_COMPLETED] - values[_TAKEN])
        self.answered += len(indices)


def whole_reply(reply: Reply) -> bytes:
    """Returns the bytes of a reply, which a null server can send repeatedly on one connection."""
    first, *headers = reply.head[:-4].split(b"\r\n")
    kept = [h for h in headers if h.partition(b":")[0].strip().lower() not in _DROPPED]
    lines = [first, *kept, b"Content-Length: %d" % len(reply.body)]
    return b"\r\n".join(lines) + b"\r\n\r\n" + bytes(reply.body)


def measure(
    backend: RemoteBackend,
    dataset: Dataset,
    postprocess: Postprocess,
    row: AnswerRow,
    indices: Sequence[int],
    connections: int,
    max_batch: int,
    encode: Callable[[Sequence[int]], Request],
) -> Ceiling:
    """Measures the client's ceiling and floor. Raises the errors of plug-ins and connections.

    indices: indices of loaded samples, at least one. encode: the function that encodes the run's requests.
    """
    first = list(indices[:max_batch])
    reply = backend.reply(dataset.batch(first))
    is_grpc = backend.server.address.grpc
    null = NullServer(bytes(reply.body) if is_grpc else whole_reply(reply), grpc=is_grpc)
    with null as server:
        servers = [Server(address=parse_address(server.url))]

        def flights(count: int) -> Transport:
            made = transport(
                servers,
                count,
                encode,
                TIMEOUT_S,
                reader=stream_reader(backend.remote),
            )
            made.prepare(indices)
            return made

        def delivery(counts: Any, failures: Failures) -> Delivery:
            most = merged_samples(max_batch, row)
            responder = responder_for(most, row, lambda _responses: None)
            return Delivery(backend.remote, postprocess, responder, counts, row, failures, most)

        return Ceiling(
            _ceiling(flights, delivery, first, connections, max_batch),
            _floor(flights, delivery, first, max_batch),
        )


def _floor(flights: Any, delivery: Any, first: list[int], max_batch: int) -> int:
    counts, failures = _Counts(), Failures()
    alone = flights(1)
    try:
        dispatcher = InlineRemoteDispatcher(alone, delivery(counts, failures), max_batch, counts)
        end_s = monotonic() + FLOOR_S
        ids = list(range(len(first)))
        while monotonic() < end_s:
            dispatcher.issue(ids, first)
    finally:
        alone.close()
    _check(failures)
    return int(np.median(counts.took_ns))


def _ceiling(
    flights: Any, delivery: Any, first: list[int], connections: int, max_batch: int
) -> float:
    """Measures rounds in which all samples are issued at once. Each round issues more samples than the round before,
    until a round takes half a second.
    """
    counts, failures = _Counts(), Failures()
    many = flights(connections)
    dispatcher = DirectDispatcher(many, delivery(counts, failures), max_batch, counts)
    per_s, samples = 0.0, -(-_FIRST_ROUND // max_batch) * max_batch
    try:
        end_s = monotonic() + CEILING_S
        while monotonic() < end_s:
            whole = (first * -(-samples // len(first)))[:samples]
            target, begin_s = counts.answered + samples, monotonic()
            dispatcher.issue(list(range(samples)), whole)
            while counts.answered < target:
                if monotonic() - begin_s > TIMEOUT_S:
                    raise TimeoutError(f"the null server did not answer within {TIMEOUT_S:g} s")
                dispatcher.wait(0.001)
            took_s = monotonic() - begin_s
            per_s = max(per_s, samples / took_s)
            samples = int(min(max(samples, per_s * CEILING_S / 2), _MOST_SAMPLES))
            samples -= samples % max_batch  # the null server answers only whole batches
    finally:
        dispatcher.stop()
        many.close()
    _check(failures)
    return per_s


def _check(failures: Failures) -> None:
    if failures.samples:
        raise ConnectionError(
            f"requests to the null server failed: {failures.first.splitlines()[-1]}"
        )
