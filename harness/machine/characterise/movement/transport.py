"""The benchmark `transport`, which measures the round-trip time of a payload over each transport.

The first two transports stay within this process. All other transports send the payload to another process, which sends
the payload back.
"""

import http.client
import mmap
import os
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Any

from harness.core.child import connect
from harness.errors import PluginUnavailable
from harness.machine.characterise.movement.ways import echo
from harness.types import Benchmark, Point, Ready

SIZES = (2**10, 2**16, 2**20)
START_S = 60.0
"""If starting the other process takes longer, the start fails; this limit is long enough even on a busy machine."""

Call = Callable[[], Any]

_WITHOUT_A_COPY = ("in process", "queue")
"""Transports that do not move data, so that a transfer rate would be meaningless."""


class Transport:
    """Measures round trips. The work at each point is the number of payload bytes in both directions."""

    about = "the round trip of a payload, by transport"

    def points(self, threads: int) -> Iterator[Point]:
        for size in SIZES:
            for way in WAYS:
                yield Point(
                    settings={"way": way, "bytes": size},
                    open=partial(_ready, way, size),
                    work=0 if way in _WITHOUT_A_COPY else 2 * size,
                    unit="B",
                    threads=min(2, threads),
                )


@contextmanager
def _ready(way: str, size: int) -> Iterator[Ready]:
    payload = os.urandom(size)
    with ExitStack() as stack:
        call = WAYS[way](payload, stack)
        if bytes(call()) != payload:
            raise PluginUnavailable(
                f"{way}: the payload that came back differs from the payload sent"
            )
        yield Ready(call, facts={"came_back_the_same": True})


def _in_process(payload: bytes, stack: ExitStack) -> Call:
    """Returns a timed call that only calls a function and copies nothing."""
    del stack

    def echoed(one: bytes) -> bytes:
        return one

    return partial(echoed, payload)


def _queue(payload: bytes, stack: ExitStack) -> Call:
    """Returns a timed call that passes the payload to another thread of this process and back, which takes two wake-ups
    but does not copy the payload.
    """
    requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    replies: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def serve() -> None:
        while (one := requests.get()) is not None:
            replies.put(one)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    stack.callback(thread.join)
    stack.callback(requests.put, None)

    def call() -> bytes:
        requests.put(payload)
        return replies.get()

    return call


def _start_echo(way: str, size: int, stack: ExitStack, *fds: int) -> dict[str, Any]:
    """Starts the process that sends the payload back, and returns the process's `ready` message."""
    process, channel = connect(echo.MODULE, fds)
    stack.enter_context(process)
    stack.enter_context(closing(channel))
    stack.callback(process.kill)
    channel.send("echo", way=way, size=size)
    message = channel.receive(START_S)
    if message is None or message["event"] != "ready":
        why = "it died" if message is None else message["text"]
        raise PluginUnavailable(f"{way}: the other process did not start: {why}")
    return message


def _pipe(payload: bytes, stack: ExitStack) -> Call:
    (theirs_in, ours_out), (ours_in, theirs_out) = _pipes(stack, 2)
    _start_echo("pipe", len(payload), stack, theirs_in, theirs_out)
    sent, received = memoryview(payload), memoryview(bytearray(len(payload)))

    def call() -> memoryview:
        echo.write_all(ours_out, sent)
        echo.read_all(ours_in, received)
        return received

    return call


def _pipes(stack: ExitStack, count: int) -> list[tuple[int, int]]:
    """Returns the read end and the write end of `count` new pipes."""
    pipes = [os.pipe() for _ in range(count)]
    for end in (end for pipe in pipes for end in pipe):
        stack.callback(os.close, end)
    return pipes


def _shared_memory(payload: bytes, stack: ExitStack) -> Call:
    """Returns a timed call that copies the payload into shared memory. The other process copies the payload to the
    second half of the shared memory.
    """
    size = len(payload)
    memory = os.memfd_create("harness-transport")
    stack.callback(os.close, memory)
    os.ftruncate(memory, 2 * size)
    (theirs_in, ours_out), (ours_in, theirs_out) = _pipes(stack, 2)
    shared = memoryview(mmap.mmap(memory, 2 * size))
    _start_echo("shared memory", size, stack, theirs_in, theirs_out, memory)
    sent, turn = memoryview(payload), memoryview(bytearray(1))
    received = memoryview(bytearray(size))

    def call() -> memoryview:
        shared[:size] = sent
        echo.write_all(ours_out, turn)
        echo.read_all(ours_in, turn)
        received[:] = shared[size:]
        return received

    return call


def _unix_socket(payload: bytes, stack: ExitStack) -> Call:
    ours, theirs = socket.socketpair()
    stack.enter_context(ours)
    with theirs:
        _start_echo("Unix socket", len(payload), stack, theirs.fileno())
    received = memoryview(bytearray(len(payload)))

    def call() -> memoryview:
        ours.sendall(payload)
        echo.receive_all(ours, received)
        return received

    return call


def _http(payload: bytes, stack: ExitStack) -> Call:
    """Returns a timed call with Python's built-in client and server over one persistent connection."""
    port = _start_echo("HTTP", len(payload), stack)["port"]
    connection = http.client.HTTPConnection(echo.LOCALHOST, port)
    connection.connect()
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stack.callback(connection.close)

    def call() -> bytes:
        connection.request("POST", "/", payload)
        return connection.getresponse().read()

    return call


def _grpc(payload: bytes, stack: ExitStack) -> Call:
    import grpc

    port = _start_echo("gRPC", len(payload), stack)["port"]
    channel = grpc.insecure_channel(f"{echo.LOCALHOST}:{port}", options=echo.GRPC_OPTIONS)
    stack.enter_context(closing(channel))
    method = channel.unary_unary(echo.MESSAGE)
    return partial(method, payload)


WAYS: dict[str, Callable[[bytes, ExitStack], Call]] = {
    "in process": _in_process,
    "queue": _queue,
    "shared memory": _shared_memory,
    "pipe": _pipe,
    "Unix socket": _unix_socket,
    "HTTP": _http,
    "gRPC": _grpc,
}

_: type[Benchmark] = Transport
