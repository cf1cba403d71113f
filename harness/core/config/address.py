"""Parses server addresses, and checks whether a server is on this machine or on a private network."""

import ipaddress
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from harness.core.shown.secrets import learn_from_urls

_PORTS = {"http": 80, "https": 443}
_GRPC = ("grpc", "grpcs")


class Address(NamedTuple):
    """The address at which a server listens."""

    host: str
    """Host name or IP address; for `http+unix`, the socket path."""
    port: int
    """0 for a Unix socket."""
    prefix: str = ""
    """Path that is put before each request's path, without a trailing slash."""
    tls: bool = False
    unix: bool = False
    grpc: bool = False

    @property
    def transport(self) -> str:
        """Value for BackendSetup.transport: http or grpc."""
        return "grpc" if self.grpc else "http"

    @property
    def authority(self) -> str:
        """Value of the Host header."""
        if self.unix:
            return "localhost"
        name = f"[{self.host}]" if ":" in self.host else self.host
        usual = None if self.grpc else _PORTS["https" if self.tls else "http"]
        return name if self.port == usual else f"{name}:{self.port}"

    def __str__(self) -> str:
        if self.unix:
            return f"http+unix://{self.host}"
        if self.grpc:
            return f"{'grpcs' if self.tls else 'grpc'}://{self.authority}"
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.prefix}"


def parse_address(text: str) -> Address:
    """Parses a server URL. Raises a ValueError that describes the fault."""
    learn_from_urls([text])
    parts = urlsplit(text)
    if parts.scheme != "http+unix":
        _check_port(text, parts)
    if parts.scheme == "http+unix":
        path = unquote(parts.netloc + parts.path)
        if not path.startswith("/") or path.endswith("/"):
            raise ValueError(
                f"{text!r} does not contain the absolute path of a socket, e.g. http+unix:///run/server.sock"
            )
        return Address(path, 0, unix=True)
    is_grpc = parts.scheme in _GRPC
    if is_grpc and not (parts.hostname and parts.port and not parts.path.strip("/")):
        raise ValueError(
            f"{text!r} is not {parts.scheme}://HOST:PORT, e.g. {parts.scheme}://127.0.0.1:8001"
        )
    if not (is_grpc or parts.scheme in _PORTS) or not parts.hostname:
        raise ValueError(f"{text!r} is not a server URL, e.g. http://127.0.0.1:8000")
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            "the URL contains a password: pass it with --header Authorization=env:NAME"
        )
    if parts.query or parts.fragment:
        raise ValueError(f"{text!r} has a query or a fragment: give the server's address alone")
    if is_grpc:
        return Address(parts.hostname, parts.port or 0, tls=parts.scheme == "grpcs", grpc=True)
    port = parts.port or _PORTS[parts.scheme]
    return Address(parts.hostname, port, parts.path.rstrip("/"), parts.scheme == "https")


def _check_port(text: str, parts: SplitResult) -> None:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise ValueError(
            f"{text!r} has no port from 1 to 65535: give the server's port, e.g. {parts.scheme}://127.0.0.1:8000"
        )


def is_private(peer: str) -> bool:
    """Returns whether an IP address, or '' for a Unix socket, belongs to this machine or a private network."""
    if not peer:
        return True
    address = ipaddress.ip_address(peer.partition("%")[0])
    return address.is_private or address.is_loopback or address.is_link_local
