"""Binds a server's port before the model is loaded, and reports an error if the port cannot be used."""

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from harness.core.config.parse import Endpoint
from harness.errors import ConfigError

BACKLOG = 1024
"""Number of connections that may wait to be accepted; the kernel may allow fewer."""


def bound(listen: Endpoint) -> socket.socket:
    """Returns a bound socket. The caller must call its method `listen`."""
    with in_use(listen):
        found = socket.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM)
        family, _, _, _, address = found[0]
        listening = socket.socket(family)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
        except OSError:
            listening.close()
            raise
        return listening


@contextmanager
def in_use(listen: Endpoint) -> Iterator[None]:
    """Turns an error in the `with` block into ConfigError if the address cannot be used."""
    try:
        yield
    except OSError as e:
        why = "in use" if e.errno == errno.EADDRINUSE else e.strerror
        raise ConfigError(f"{listen} cannot be used ({why}): choose a different --listen") from None
