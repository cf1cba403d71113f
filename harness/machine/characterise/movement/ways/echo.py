"""Runs the other process of a transport, which sends the payload back over the same transport."""

import mmap
import os
import socket
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from harness.core.child import Channel, serve

MODULE = __name__
LOCALHOST = "127.0.0.1"
MESSAGE = "/harness.Echo/Echo"
GRPC_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


def main() -> None:
    serve(_echo)


def _echo(channel: Channel, *fds: int) -> None:
    """Receives one message that contains the transport's name and the payload's size. fds: file descriptors for the
    transport's function.
    """
    task = channel.receive()
    if task is not None:
        ECHOES[task["way"]](channel, task["size"], *fds)


def read_all(fd: int, into: memoryview) -> bool:
    """Fills the buffer from a pipe, or returns False if the pipe has ended."""
    done = 0
    while done < len(into):
        count = os.readv(fd, [into[done:]])
        if not count:
            return False
        done += count
    return True


def write_all(fd: int, payload: memoryview) -> None:
    done = 0
    while done < len(payload):
        done += os.write(fd, payload[done:])


def _pipe(channel: Channel, size: int, requests: int, replies: int) -> None:
    channel.send("ready")
    payload = memoryview(bytearray(size))
    while read_all(requests, payload):
        write_all(replies, payload)


def _shared_memory(channel: Channel, size: int, requests: int, replies: int, memory: int) -> None:
    """Copies each request to the second half of the memory. A byte in the pipe announces each payload."""
    shared = memoryview(mmap.mmap(memory, 2 * size))
    shared[size:] = bytes(size)  # this assignment touches all pages
    channel.send("ready")
    turn = memoryview(bytearray(1))
    while read_all(requests, turn):
        shared[size:] = shared[:size]
        write_all(replies, turn)


def _unix_socket(channel: Channel, size: int, fd: int) -> None:
    channel.send("ready")
    payload = memoryview(bytearray(size))
    with socket.socket(fileno=fd) as connection:
        while receive_all(connection, payload):
            connection.sendall(payload)


def receive_all(connection: socket.socket, into: memoryview) -> bool:
    """Fills the buffer from a socket, or returns False if the peer has closed the connection."""
    done = 0
    while done < len(into):
        count = connection.recv_into(into[done:])
        if not count:
            return False
        done += count
    return True


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_POST(self) -> None:
        payload = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        """Prints nothing, because the time for printing a line would count as part of every request."""


def _http(channel: Channel, size: int) -> None:
    del size
    with HTTPServer((LOCALHOST, 0), _Handler) as server:
        channel.send("ready", port=server.server_port)
        server.serve_forever()


def _grpc(channel: Channel, size: int) -> None:
    del size
    from concurrent.futures import ThreadPoolExecutor

    import grpc

    handlers = {"Echo": grpc.unary_unary_rpc_method_handler(_same)}
    server = grpc.server(ThreadPoolExecutor(1), options=GRPC_OPTIONS)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("harness.Echo", handlers),)
    )
    port = server.add_insecure_port(f"{LOCALHOST}:0")
    server.start()
    channel.send("ready", port=port)
    channel.receive()  # returns None when the other process has closed the channel
    server.stop(None)


def _same(request: bytes, _: Any) -> bytes:
    return request


ECHOES: dict[str, Callable[..., None]] = {
    "shared memory": _shared_memory,
    "pipe": _pipe,
    "Unix socket": _unix_socket,
    "HTTP": _http,
    "gRPC": _grpc,
}
