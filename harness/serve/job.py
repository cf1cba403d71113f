"""Opens the model and the port, and serves until a signal ends it."""

import errno
import gc
import ipaddress
import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from harness.core.config.parse import Endpoint
from harness.core.config.run_config import RunConfig
from harness.core.console import frameworks_output, say, show
from harness.core.units import counted
from harness.errors import ConfigError
from harness.serve.kserve import OpenInference
from harness.serve.loop import Loop
from harness.serve.served import ServedModel, open_served

BACKLOG = 1024
"""Connections that wait to be accepted; the kernel may allow fewer."""


def serve(config: RunConfig, listen: Endpoint) -> int:
    """Returns the exit status. Raises ConfigError where the address cannot be used."""
    with ExitStack() as stack:
        listening = stack.enter_context(_bound(listen))
        with frameworks_output():
            served = open_served(config, stack)
        with _in_use(listen):
            listening.listen(BACKLOG)
        _serve(served, listening, listen)
    return 0


def _serve(served: ServedModel, listening: socket.socket, listen: Endpoint) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    inference = OpenInference(served)
    loop = Loop(listening, inference.handle)
    address, port = listening.getsockname()[:2]
    at = listen._replace(port=port)
    say(exposure(address, at))
    gc.collect()
    gc.freeze()  # a collection need not look at what the frameworks have made
    with _stopping(loop):
        show(f"serving {served.name} ({served.backend_name}) on http://{at}")
        loop.run()
    counts = f"{counted(inference.answered, 'request')} answered, {inference.refused:,} refused"
    say(
        f"{counts}; the first failure: {inference.first_failure}"
        if inference.first_failure
        else counts
    )


def exposure(address: str, at: Endpoint) -> str:
    """The warning for an address that other machines may reach; "" for one of this machine alone."""
    if ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        return ""
    return f"whoever reaches {at} can use the model: there is no password and no encryption"


@contextmanager
def _stopping(loop: Loop) -> Iterator[None]:
    """SIGINT and SIGTERM stop the loop; a second one ends the process at once."""

    def stop(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        loop.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _bound(listen: Endpoint) -> socket.socket:
    """The port is taken before the model is loaded, and answers after that."""
    with _in_use(listen):
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
def _in_use(listen: Endpoint) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        why = "in use" if e.errno == errno.EADDRINUSE else e.strerror
        raise ConfigError(f"{listen} cannot be used: {why}: choose another --listen") from None
