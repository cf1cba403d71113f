"""A backend that uses a server through a remote plug-in."""

from contextlib import closing
from typing import Any

import pytest

from harness.core.config.address import parse_address
from harness.errors import ConfigError
from harness.remote import Request
from harness.wire.connections import Server
from harness.wire.remote_backend import Link, remote_backend
from tests.stand_ins.servers.bad_server import BadServer, garbage, since


class Plugin:
    def __init__(self, about: dict[str, object]) -> None:
        self.about = about

    def describe(self) -> dict[str, object]:
        return self.about


def described(about: dict[str, object]) -> Any:
    remote: Any = Plugin(about)
    server = Server(address=parse_address("http://127.0.0.1:1"), headers=(), tls=None)
    return remote_backend(remote, server, timeout_s=1.0).describe()


def test_a_server_on_some_device_is_remote() -> None:
    about: dict[str, object] = {"device": "remote: H100", "precision": "unknown"}
    assert described(about) == {**about, "url": "http://127.0.0.1:1"}


@pytest.mark.parametrize("about", [{"device": "cpu"}, {"device": "cuda (remote)"}, {}])
def test_a_device_of_this_machine_is_refused(about: dict[str, object]) -> None:
    """Bug: a run with such a device was accepted, with a doubt about the idle cores of this machine."""
    with pytest.raises(ConfigError) as caught:
        described(about)
    assert str(caught.value) == (
        f"describe() of Plugin returns the device {about.get('device', '')!r}, but a server answers: return a device that "
        "begins with `remote`"
    )


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"HELLO WORLD\r\n\r\n", "no HTTP/1.1 status line: b'HELLO WORLD'"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", "the connection ended within a reply"),
    ],
)
def test_broken_reply_before_a_run_names_the_next_step(sent: bytes, why: str) -> None:
    with BadServer(since(0, garbage(sent))) as server:
        link = Link(Server(address=parse_address(server.url)), 5.0)
        with closing(link), pytest.raises(ConfigError) as caught:
            link.exchange_at_start(Request("/v2/models/digits/infer"))
    assert str(caught.value) == (
        f"--url {server.url} does not speak HTTP/1.1 ({why}): read the server's log"
    )
