"""Opens connections to servers, and sends and receives without blocking.

A receive also returns the kernel's time stamp of the last byte, so that the client's delay does not count as the
server's time. The stamp (SO_TIMESTAMPNS) is on the wall clock, like the journal's stamps.
"""

import errno
import os
import resource
import socket
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from time import monotonic, sleep
from typing import Any, NoReturn

from harness.core.clock import wall_ns
from harness.core.config.address import Address
from harness.core.units import NS_PER_S
from harness.errors import ConfigError
from harness.remote import Buffer
from harness.wire.http1 import ReplyParser

RECEIVE_BYTES = 65_536
_STAMP = 35  # Linux's SO_TIMESTAMPNS and its message type, which the socket module does not define
_TIMESPEC = Struct("@qq")
_ANCILLARY_BYTES = socket.CMSG_SPACE(_TIMESPEC.size)

_FREE_DESCRIPTORS = 256
"""Number of file descriptors that a run needs in addition to its connections."""

_PORT_WAIT_S = 3.0
"""After this time without a local port, opening a connection fails; the kernel keeps the port of a closed connection
for 1 s.
"""

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server, with the headers and TLS settings for requests to this server."""

    address: Address
    headers: tuple[tuple[str, str], ...] = ()
    """The headers of the user's --header, which are sent with each request."""
    tls: ssl.SSLContext | None = None
    """The result of `tls_context`, or None for plain HTTP."""


def tls_context(insecure: bool, *, grpc: bool = False) -> ssl.SSLContext:
    """Returns a context that verifies the server's certificate and name, unless `insecure` is set. grpc: whether to use
    HTTP/2.
    """
    context = ssl.create_default_context()
    if grpc:
        context.set_alpn_protocols(["h2"])
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class Connection:
    """One connection. Only one thread at a time may send, and only one thread at a time may receive; the two threads
    may differ.

    number: the server's number, for the caller. opened_ns, used_ns: wall-clock times at which the connection was opened
    and received its last reply. connect_s: time until the server accepted the connection, without the TLS handshake.
    """

    __slots__ = (
        "_out",
        "_recvmsg",
        "_send",
        "_socket",
        "_tls",
        "connect_s",
        "fd",
        "flight",
        "is_dropped",
        "number",
        "opened_ns",
        "parser",
        "replies",
        "used_ns",
    )

    def __init__(self, made: socket.socket, tls: "_Tls | None", number: int = 0) -> None:
        self._socket = made
        self._send, self._recvmsg = made.send, made.recvmsg
        self._tls = tls
        self._out: list[memoryview] = []
        self.fd = made.fileno()
        self.number = number
        self.parser = ReplyParser()
        self.replies = 0
        self.opened_ns = self.used_ns = wall_ns()
        self.connect_s = 0.0
        self.flight: Any = None
        self.is_dropped = False

    def send(self, data: bytes) -> bool:
        """Sends as much as the kernel accepts, and returns whether everything was sent. Raises OSError."""
        if self._tls is not None:
            data = self._tls.encrypted((data,))
        try:
            sent = self._send(data)
        except BlockingIOError:
            sent = 0
        if sent == len(data):
            return True
        self._out.append(memoryview(data)[sent:])
        return False

    def post(self, parts: Sequence[Buffer]) -> None:
        """Stores the parts for `flush`, which sends them without copying."""
        if self._tls is not None:
            parts = [self._tls.encrypted(parts)]
        self._keep(parts, 0)

    def _keep(self, parts: Sequence[Buffer], sent: int) -> None:
        for part in parts:
            view = memoryview(part).cast("B")
            if sent >= len(view):
                sent -= len(view)
            else:
                self._out.append(view[sent:])
                sent = 0

    def flush(self) -> bool:
        """Continues sending, and returns whether everything is sent. Raises OSError."""
        while self._out:
            try:
                sent = self._socket.sendmsg(self._out[:64])
            except BlockingIOError:
                return False
            parts, self._out = self._out, []
            self._keep(parts, sent)
        return True

    @property
    def unsent(self) -> bool:
        """Whether part of the last request still waits for `flush`."""
        return bool(self._out)

    def receive(self) -> tuple[bytes, int]:
        """Returns the bytes that have arrived, or b'' at the end of the connection, and the kernel's stamp in ns, or 0
        without a stamp.

        Raises BlockingIOError if nothing, or no complete TLS record, has arrived; other OSErrors are possible.
        """
        data, ancillary, _, _ = self._recvmsg(RECEIVE_BYTES, _ANCILLARY_BYTES)
        stamp_ns = 0
        if (
            ancillary
        ):  # the time stamp is the only control message that we enable, so it is the first entry
            seconds, ns = _TIMESPEC.unpack(ancillary[0][2])
            stamp_ns = seconds * NS_PER_S + ns
        if self._tls is not None and data:
            data = self._tls.decrypted(data)
            if not data and not self._tls.ended:
                raise BlockingIOError
        return data, stamp_ns

    def certificate(self) -> bytes:
        """Returns the server's certificate (DER); only with TLS."""
        assert self._tls is not None
        return self._tls.certificate()

    def certificate_name(self) -> str:
        """Returns a name or address in the server's certificate; only with TLS that verifies certificates."""
        assert self._tls is not None
        return self._tls.certificate_name()

    def peer(self) -> str:
        """Returns the server's IP address, or '' for a Unix socket."""
        name = self._socket.getpeername()
        return str(name[0]) if isinstance(name, tuple) else ""

    @property
    def is_local(self) -> bool:
        """Whether both ends of the connection are on this machine."""
        own, peer = self._socket.getsockname(), self._socket.getpeername()
        return not isinstance(peer, tuple) or own[0] == peer[0]

    def close(self) -> None:
        with suppress(OSError):
            self._socket.close()


def size_bytes(part: Buffer) -> int:
    """Returns the size of a part of a body in bytes."""
    return part.nbytes if isinstance(part, memoryview) else len(part)


class _Tls:
    """TLS on bytes in memory, so that the socket's own receive still returns the kernel's stamps."""

    __slots__ = ("_incoming", "_object", "_outgoing", "ended")

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self.ended = False

    def shake_hands(self, made: socket.socket) -> None:
        while True:
            try:
                self._object.do_handshake()
            except ssl.SSLWantReadError:
                made.sendall(self._outgoing.read())
                data = made.recv(RECEIVE_BYTES)
                if not data:
                    raise ConnectionResetError("the server ended the TLS handshake") from None
                self._incoming.write(data)
            else:
                made.sendall(self._outgoing.read())
                return

    def certificate(self) -> bytes:
        found = self._object.getpeercert(binary_form=True)
        assert found is not None  # a TLS server always sends a certificate
        return found

    def certificate_name(self) -> str:
        told: Mapping[str, Any] = self._object.getpeercert() or {}
        names = [name for kind, name in told.get("subjectAltName", ()) if kind != "email"]
        # Old certificates lack alternative names, so the subject's common name is used as the server's name.
        subject = [pair for pairs in told.get("subject", ()) for pair in pairs]
        names += [value for kind, value in subject if kind == "commonName"]
        return str(names[0]).replace("*", "any") if names else ""

    def encrypted(self, parts: Sequence[Buffer]) -> bytes:
        for part in parts:
            view = memoryview(part).cast("B")
            while view:
                view = view[self._object.write(view) :]
        return self._outgoing.read()

    def decrypted(self, data: bytes) -> bytes:
        self._incoming.write(data)
        found: list[bytes] = []
        try:
            while piece := self._object.read(RECEIVE_BYTES):
                found.append(piece)
            self.ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.ended = True
        return b"".join(found)


_Where = tuple[socket.AddressFamily, tuple[Any, ...] | str]
"""Address family and socket address."""


def _resolve(address: Address) -> list[_Where]:
    """Returns the server's possible addresses, preferred first. Raises ConfigError if the server's name cannot be
    resolved.
    """
    if address.unix:
        return [(socket.AF_UNIX, address.host)]
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as e:
        raise ConfigError(
            f"{address}: the name {address.host!r} cannot be resolved ({e.strerror}): check it, or give an IP address"
        ) from e
    return [(family, where) for family, _, _, _, where in found]


def connect(server: Server, timeout_s: float, number: int = 0) -> Connection:
    """Opens a connection. Raises OSError (which includes SSLError) and ConfigError.

    If a name has several addresses, such as `localhost` in IPv6 and IPv4, uses the first address that accepts the
    connection. If all local ports are in use, waits up to 3 s for a port.
    """
    found = _resolve(server.address)
    end_s = monotonic() + _PORT_WAIT_S
    while True:
        # Each entry: whether the error may only mean that this machine lacks IPv6, and the error.
        errors: list[tuple[bool, OSError]] = []
        for family, where in found:
            try:
                return _connect(server, (family, where), timeout_s, number)
            except ssl.SSLError:
                raise  # the server responded, so its other addresses would not help
            except OSError as e:
                errors.append((family == socket.AF_INET6 and e.errno == errno.EADDRNOTAVAIL, e))
        told = [e for no_ipv6, e in errors if not no_ipv6] or [e for _, e in errors]
        no_port = [e for e in told if e.errno == errno.EADDRNOTAVAIL]
        if not no_port or monotonic() >= end_s:
            raise (no_port or told)[-1]
        sleep(0.1)


def _connect(server: Server, at: _Where, timeout_s: float, number: int) -> Connection:
    family, where = at
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.settimeout(timeout_s)
        begun_s = monotonic()
        made.connect(where)
        connect_s = monotonic() - begun_s
        if family != socket.AF_UNIX:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tls = None
        if server.tls is not None:
            tls = _Tls(server.tls, server.address.host)
            tls.shake_hands(made)
        with suppress(OSError):
            made.setsockopt(socket.SOL_SOCKET, _STAMP, 1)
        made.setblocking(False)
    except BaseException:
        made.close()
        raise
    connection = Connection(made, tls, number)
    connection.connect_s = connect_s
    return connection


class LateReply(TimeoutError):
    """Raised if the server received the request but did not reply in time."""


def unreachable(address: Address, error: OSError) -> NoReturn:
    """Raises ConfigError with the reason why the server cannot be reached, and with advice."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = f"its certificate is not trusted: {error.verify_message}"
        todo = "use the name in its certificate, or add --insecure"
    elif isinstance(error, ssl.SSLError):
        why, todo = f"TLS failed: {error.reason or error}", "check that the server uses TLS there"
    elif isinstance(error, LateReply):
        raise ConfigError(
            f"--url {address}: {error}: check whether the server is stuck or busy"
        ) from error
    elif isinstance(error, ConnectionResetError | BrokenPipeError):
        raise ConfigError(
            f"--url {address} closed the connection before its reply: read the server's log"
        ) from error
    elif isinstance(error, TimeoutError):
        why, todo = "it does not answer", "check the address and the firewall"
    elif error.errno == errno.EADDRNOTAVAIL:
        why = "all local ports for connections to it are in use"
        todo = "lower --connections, or wait a minute until the kernel has freed the ports of closed connections"
    else:
        why = os.strerror(error.errno) if error.errno else str(error)
        todo = f"start the server, or check the {'path' if address.unix else 'port'}"
    raise ConfigError(f"--url {address} cannot be reached ({why}): {todo}") from error


def check_limits(connections: int, servers: int) -> None:
    """Raises ConfigError if this machine cannot open the connections to all servers and to a null server."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = (
        connections * (servers + 1) + len(list(Path("/proc/self/fd").iterdir())) + _FREE_DESCRIPTORS
    )
    if needed > soft:
        if hard != resource.RLIM_INFINITY and needed > hard:
            raise ConfigError(
                f"--connections {connections} needs {needed} file descriptors, but the limit is {hard}: "
                "lower --connections, or raise it with `ulimit -Hn`"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    with suppress(OSError, ValueError):
        low, high = map(int, _EPHEMERAL.read_text().split())
        ports = high - low + 1
        if connections > ports:
            raise ConfigError(
                f"--connections {connections} exceeds the {ports} ports that this machine has for connections to "
                f"one server ({_EPHEMERAL}): lower --connections, or name more servers with --url"
            )
