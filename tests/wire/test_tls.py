"""Servers behind TLS: certificates and names are verified, and the stamps are there as without TLS."""

import shutil
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
from harness.wire.remote_backend import Link
from tests.wire.test_flights import flown, opened, read_request, served

_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n" + bytes(200_000)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate of the name `localhost`, with its key in the same file."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl")
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", "/CN=localhost", "-keyout", str(path)]
    command += ["-addext", "subjectAltName=DNS:localhost", "-out", str(path.with_suffix(".crt"))]
    subprocess.run(command, check=True, capture_output=True)
    path.write_bytes(path.read_bytes() + path.with_suffix(".crt").read_bytes())
    return path


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


def test_a_certificate_that_nobody_trusts_is_refused(certificate: Path) -> None:
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


def test_a_server_without_tls_is_one_line() -> None:
    def plain(peer: socket.socket, _number: int) -> None:
        peer.recv(100)
        peer.sendall(b"HTTP/1.1 400 no\r\n\r\n")

    with served(plain) as server:
        address = server.address._replace(tls=True)
        text = refusal(Server(address=address, tls=tls_context(insecure=True)))
    assert "TLS failed" in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://host", "http://host"),
        ("http://host:80/", "http://host"),
        ("https://host:8443/a/b/", "https://host:8443/a/b"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("http+unix:///run/a%20b.sock", "http+unix:///run/a b.sock"),
    ],
)
def test_addresses_are_written_as_they_are_read(text: str, shown: str) -> None:
    assert str(parse_address(text)) == shown
