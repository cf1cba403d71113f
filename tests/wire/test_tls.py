"""Servers with TLS: certificates and names are verified, and time stamps are recorded as without TLS."""

import re
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from harness.core.config.address import Address, parse_address
from harness.errors import ConfigError
from harness.remote import Request
from harness.wire.connections import Server, tls_context
from harness.wire.grpc.calls import CallLink, Calls
from harness.wire.remote_backend import Link
from tests.stand_ins.servers.certificate import self_signed
from tests.stand_ins.servers.grpc_server import GrpcServer
from tests.wire.grpc.test_calls import flown as called
from tests.wire.grpc.test_calls import request
from tests.wire.test_flights import flown, opened, read_request, served

_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n" + bytes(200_000)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return self_signed(tmp_path_factory.mktemp("tls"))


@contextmanager
def tls_served(certificate: Path) -> Iterator[Address]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    def answer(peer: socket.socket, _number: int) -> None:
        with suppress(ssl.SSLError), context.wrap_socket(peer, server_side=True) as secured:
            while read_request(secured):
                secured.sendall(_OK)

    with served(answer) as server:
        yield server.address._replace(host="localhost", tls=True)


def trusting(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=certificate.with_suffix(".crt"))


def test_requests_of_any_size_are_answered_and_stamped(certificate: Path) -> None:
    with tls_served(certificate) as address:
        server = Server(address=address, tls=trusting(certificate))
        with opened(server, 2) as flights:
            done = flown(flights, [1, 100, 20_000, 3_000_000])
            assert not [f.error for f in done if f.error]
            assert all(f.reply is not None and len(f.reply.body) == 200_000 for f in done)
            assert all(f.arrived_ns <= f.read_ns for f in done)
            assert any(f.arrived_ns for f in flown(flights, [1] * 50))


def test_the_blocking_link_speaks_tls(certificate: Path) -> None:
    with tls_served(certificate) as address:
        link = Link(Server(address=address, tls=trusting(certificate)), 10)
        for size in (1, 1_000_000):
            assert len(link.exchange(Request("/", (), (bytes(size),))).body) == 200_000
        link.close()


def refusal(server: Server) -> str:
    with pytest.raises(ConfigError) as refused:
        Link(server, 10).exchange_at_start(Request("/", (), (b"x",)))
    text = str(refused.value)
    assert "\n" not in text
    return text


def test_untrusted_certificate_is_refused(certificate: Path) -> None:
    with tls_served(certificate) as address:
        text = refusal(Server(address=address, tls=tls_context(insecure=False)))
        assert "its certificate is not trusted: self-signed certificate" in text
        assert "--insecure" in text
        link = Link(Server(address=address, tls=tls_context(insecure=True)), 10)
        assert link.exchange(Request("/", (), (b"x",))).status == 200
        link.close()


def test_a_certificate_of_another_name_is_refused(certificate: Path) -> None:
    with tls_served(certificate) as address:
        text = refusal(
            Server(address=address._replace(host="127.0.0.1"), tls=trusting(certificate))
        )
    assert "its certificate is not trusted" in text
    assert "127.0.0.1" in text


def test_a_server_without_tls_is_reported_in_one_line() -> None:
    def plain(peer: socket.socket, _number: int) -> None:
        peer.recv(100)
        peer.sendall(b"HTTP/1.1 400 no\r\n\r\n")

    with served(plain) as server:
        address = server.address._replace(tls=True)
        text = refusal(Server(address=address, tls=tls_context(insecure=True)))
    assert "TLS failed" in text


@contextmanager
def grpc_served(certificate: Path) -> Iterator[Address]:
    with GrpcServer(tls=(certificate.read_bytes(), certificate.read_bytes())) as server:
        yield parse_address(server.url)


def asked(server: Server) -> bytes:
    calls = Calls([server], 2, request, 10)
    try:
        done = called(calls, range(6))
    finally:
        calls.close()
    assert not [flight.error for flight in done if flight.error]
    link = CallLink(server, 10)
    reply = link.exchange(request([1]))
    link.close()
    assert reply.status == 0, bytes(reply.body)
    return bytes(reply.body)


def test_calls_over_tls_are_answered(certificate: Path) -> None:
    with grpc_served(certificate) as address:
        assert asked(Server(address=address, tls=trusting(certificate)))


def test_a_certificate_of_an_authority_is_trusted_for_calls(
    certificate: Path, tmp_path: Path
) -> None:
    """Only the server's certificate is pinned; grpcio never sees the authority's certificate."""
    leaf = tmp_path / "leaf.pem"
    (tmp_path / "names").write_text("subjectAltName=DNS:*.host.example,DNS:localhost")
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    signed = ("-CA", str(certificate.with_suffix(".crt")), "-CAkey", str(certificate))
    named = ("-extfile", str(tmp_path / "names"), "-out", str(tmp_path / "crt"))
    for command in (
        ["req", *curve, "-subj", "/CN=x", "-keyout", str(leaf), "-out", f"{tmp_path}/asked"],
        ["x509", "-req", "-in", f"{tmp_path}/asked", *signed, "-days", "2", *named],
    ):
        subprocess.run(["openssl", *command], check=True, capture_output=True)
    leaf.write_bytes(leaf.read_bytes() + (tmp_path / "crt").read_bytes())
    with grpc_served(leaf) as address:
        assert asked(Server(address=address, tls=trusting(certificate)))
        # Any name is accepted, even one that the certificate contains only as a pattern.
        stranger = address._replace(host="127.0.0.1")
        assert asked(Server(address=stranger, tls=tls_context(insecure=True, grpc=True)))


@pytest.mark.parametrize(
    ("host", "insecure", "told"),
    [
        ("127.0.0.1", False, "its certificate is not trusted: IP address mismatch"),
        ("localhost", True, ""),
        ("127.0.0.1", True, ""),
    ],
)
def test_calls_to_a_certificate_of_another_name_need_to_be_insecure(
    certificate: Path, host: str, insecure: bool, told: str
) -> None:
    with grpc_served(certificate) as address:
        tls = tls_context(insecure=True) if insecure else trusting(certificate)
        server = Server(address=address._replace(host=host), tls=tls)
        if not told:
            assert asked(server)
            return
        with pytest.raises(ConfigError, match=told) as refused:
            Calls([server], 1, request, 10)
    assert "--insecure" in str(refused.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://host", "http://host"),
        ("http://host:80/", "http://host"),
        ("https://host:8443/a/b/", "https://host:8443/a/b"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("http+unix:///run/a%20b.sock", "http+unix:///run/a b.sock"),
        ("grpc://host:80/", "grpc://host:80"),
        ("grpc://[::1]:8001", "grpc://[::1]:8001"),
        ("grpcs://host:443", "grpcs://host:443"),
    ],
)
def test_addresses_are_written_as_they_are_read(text: str, shown: str) -> None:
    assert str(parse_address(text)) == shown


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "http+unix://",
            "does not contain the absolute path of a socket, e.g. http+unix:///run/server.sock",
        ),
        (
            "http+unix:///",
            "does not contain the absolute path of a socket, e.g. http+unix:///run/server.sock",
        ),
        (
            "http+unix://a.sock",
            "does not contain the absolute path of a socket, e.g. http+unix:///run/server.sock",
        ),
        ("grpc://host", "is not grpc://HOST:PORT, e.g. grpc://127.0.0.1:8001"),
        ("grpc://host:1/v2", "is not grpc://HOST:PORT, e.g. grpc://127.0.0.1:8001"),
        ("grpcs://host", "is not grpcs://HOST:PORT, e.g. grpcs://127.0.0.1:8001"),
        ("host:8000", "is not a server URL, e.g. http://127.0.0.1:8000"),
        (
            "http://host:70000",
            "has no port from 1 to 65535: give the server's port, e.g. http://127.0.0.1:8000",
        ),
        (
            "grpc://host:0",
            "has no port from 1 to 65535: give the server's port, e.g. grpc://127.0.0.1:8000",
        ),
    ],
)
def test_an_invalid_address_is_refused_with_an_example(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(f'{text!r} {told}')}$"):
        parse_address(text)


def test_refusal_of_a_missing_socket_advises_to_check_its_path(tmp_path: Path) -> None:
    address = Address(str(tmp_path / "no.sock"), 0, unix=True)
    with pytest.raises(
        ConfigError, match=r"\(No such file or directory\): start the server, or check the path$"
    ):
        Link(Server(address=address), 1).open_at_start()
