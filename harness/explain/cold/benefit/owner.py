"""Runs the process that owns shared memory and sends a descriptor of each requested object.

The process counts the users of each object, as TrIMS' model resource manager does when a model is opened and closed.
"""

import mmap
import os
import socket

from harness.core.child import Channel, serve

ASK = 4
"""Size of a request in bytes. A request is an object's number, combined with RETURNED if the user returns the object.
"""

RETURNED = 1 << 31


def main() -> None:
    serve(_work)


def _work(channel: Channel, number: int) -> None:
    """Handles requests. number: descriptor of the socket that receives the requests."""
    message = channel.receive()
    if message is None:
        return
    owned = [_object(size) for size in message["sizes_bytes"]]
    channel.send("result")
    users = [0] * len(owned)
    with socket.socket(fileno=number) as asked:
        while len(question := asked.recv(ASK)) == ASK:
            index = int.from_bytes(question)
            if index & RETURNED:
                users[index ^ RETURNED] -= 1
                asked.sendall(b".")
            else:
                users[index] += 1
                socket.send_fds(asked, [b"."], [owned[index]])


def _object(size_bytes: int) -> int:
    """Returns a descriptor of shared memory whose first page exists."""
    descriptor = os.memfd_create("weights")
    os.ftruncate(descriptor, max(size_bytes, 1))
    with mmap.mmap(descriptor, max(size_bytes, 1)) as mapped:
        mapped[0] = 1
    return descriptor
