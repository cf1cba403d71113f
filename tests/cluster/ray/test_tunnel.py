"""Connections through a tunnel, tested without Ray: the bytes that arrive, and how connections end."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from harness.cluster.ray.tunnel import PIECE_BYTES, TunnelEnd, tunnels

LIMIT_S = 20.0


class Calls:
    """Provides the methods of an actor; the caller awaits the value that `remote` returns."""

    def __init__(self, actor: object) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._actor, name)

        class Method:
            @staticmethod
            def remote(*values: object) -> asyncio.Future[Any]:
                future: asyncio.Future[Any] = asyncio.ensure_future(method(*values))
                return future

        return Method


@contextmanager
def node(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """Yields the port of a node that serves one connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            connected, _ = listening.accept()
            with connected:
                serve(connected)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        thread.join(LIMIT_S)
        assert not thread.is_alive()


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), LIMIT_S)


def echo(connected: socket.socket) -> None:
    while data := connected.recv(1 << 16):
        connected.sendall(data)


def read(connected: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (more := connected.recv(1 << 20)):
        data += more
    return data


def test_bytes_go_both_ways_in_order_even_beyond_one_call() -> None:
    sent = bytes(range(256)) * (3 * PIECE_BYTES // 256 + 1)
    with (
        node(echo) as port,
        tunnels([Calls(TunnelEnd(port))]) as (address,),
        connect(address) as connected,
    ):
        thread = threading.Thread(target=connected.sendall, args=(sent,))
        thread.start()
        assert read(connected, len(sent)) == sent
        thread.join()
        connected.sendall(b"again")
        assert read(connected, 5) == b"again"


def test_a_connection_that_the_node_closes_is_closed_here() -> None:
    with (
        node(lambda connected: connected.sendall(b"bye")) as port,
        tunnels([Calls(TunnelEnd(port))]) as (address,),
        connect(address) as connected,
    ):
        assert read(connected, 100) == b"bye"


def test_a_connection_that_is_closed_here_is_closed_at_the_node() -> None:
    received: list[bytes] = []
    ended = threading.Event()

    def serve(connected: socket.socket) -> None:
        connected.settimeout(LIMIT_S)
        received.extend([connected.recv(100), connected.recv(100)])
        ended.set()

    with node(serve) as port, tunnels([Calls(TunnelEnd(port))]) as (address,):
        with connect(address) as connected:
            connected.sendall(b"bye")
        assert ended.wait(LIMIT_S)
    assert received == [b"bye", b""]


def test_closing_the_tunnels_closes_their_connections() -> None:
    received: list[bytes] = []

    def serve(connected: socket.socket) -> None:
        connected.settimeout(LIMIT_S)
        connected.sendall(b"here")
        received.append(connected.recv(100))

    with node(serve) as port:
        with tunnels([Calls(TunnelEnd(port))]) as (address,):
            connected = connect(address)
            assert read(connected, 4) == b"here"
        with connected:
            assert read(connected, 1) == b""
    assert received == [b""]


@pytest.mark.parametrize("method", ["open", "send", "receive"])
def test_a_dead_actor_closes_its_connection(method: str) -> None:
    class Gone(TunnelEnd):
        """An actor whose node dies during a call."""

    async def fail(*_: object) -> None:
        raise RuntimeError("The actor died")

    setattr(Gone, method, fail)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with (
            tunnels([Calls(Gone(port))]) as (address,),
            connect(address) as connected,
            # The connection may break, because nobody reads the request.
            suppress(ConnectionResetError, BrokenPipeError),
        ):
            connected.sendall(b"question")
            assert read(connected, 1) == b""
