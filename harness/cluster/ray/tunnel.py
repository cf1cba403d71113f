"""Carries a run's connections inside Ray calls, for networks that permit only connections from the cluster's client.

    driver -TCP-> a port here -call-> `TunnelEnd` on the node -TCP-> the node's port, on the node's loopback

The tunnel is transparent to both ends of a connection, so requests, pings and journals do not change. Each call takes
milliseconds, so the tunnel makes it impossible to measure the times of short batches.
"""

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from typing import Any, TypeVar

from harness.cluster.ray.host import end_with_raylet

LOOPBACK = "127.0.0.1"
PIECE_BYTES = 1 << 20
"""Maximum number of bytes per call."""

MOST_CALLS = 10_000
"""Maximum number of simultaneous calls to one node. Each connection always has one call waiting."""

READY_LIMIT_S = 60.0

_T = TypeVar("_T")


class TunnelEnd:
    """An actor on a node, which holds the far ends of connections to one port of the node. The actor forwards bytes
    without parsing them.
    """

    def __init__(self, port: int) -> None:
        end_with_raylet()
        self._port = port
        self._ends: dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}

    async def open(self, number: int) -> None:
        self._ends[number] = await asyncio.open_connection(LOOPBACK, self._port, limit=PIECE_BYTES)

    async def send(self, number: int, data: bytes) -> None:
        _, writer = self._ends[number]
        writer.write(data)
        await writer.drain()

    async def receive(self, number: int) -> bytes:
        """Waits for the next bytes and returns them; returns b'' if the node has closed the connection."""
        reader, _ = self._ends[number]
        return await reader.read(PIECE_BYTES)

    async def close(self, number: int) -> None:
        end = self._ends.pop(number, None)
        if end is not None:  # `end` is None if the connection was never opened
            end[1].close()


@contextmanager
def tunnels(ends: Sequence[Any]) -> Iterator[Sequence[str]]:
    """Opens a local port for each `TunnelEnd` until the end of the block. Yields the ports as HOST:PORT."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def wait(for_: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(for_, loop).result(READY_LIMIT_S)

    servers: list[asyncio.Server] = []
    try:
        servers += [wait(_listen(end)) for end in ends]
        yield ["{}:{}".format(*server.sockets[0].getsockname()) for server in servers]
    finally:
        wait(_end(servers))
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _listen(end: Any) -> asyncio.Server:
    carry = partial(_carry, end, count())
    return await asyncio.start_server(carry, LOOPBACK, 0, limit=PIECE_BYTES)


async def _end(servers: Sequence[asyncio.Server]) -> None:
    for server in servers:
        server.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _carry(
    end: Any, numbers: Iterator[int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Carries one connection until either end closes it or is lost."""
    number = next(numbers)
    try:
        with suppress(Exception):  # the node is gone, which the run sees as a closed connection
            await end.open.remote(number)
            ways = {
                asyncio.ensure_future(_there(end, number, reader)),
                asyncio.ensure_future(_back(end, number, writer)),
            }
            _, open_ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in open_:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
    finally:
        writer.close()
        with suppress(Exception):
            end.close.remote(number)


async def _there(end: Any, number: int, reader: asyncio.StreamReader) -> None:
    while data := await reader.read(PIECE_BYTES):
        # Each call is awaited, because an asynchronous actor may reorder concurrent calls.
        await end.send.remote(number, data)


async def _back(end: Any, number: int, writer: asyncio.StreamWriter) -> None:
    while data := await end.receive.remote(number):
        writer.write(data)
        await writer.drain()
