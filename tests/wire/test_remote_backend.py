"""A backend that uses a server through a plug-in."""

from typing import Any

import pytest

from harness.core.config.address import parse_address
from harness.errors import ConfigError
from harness.wire.connections import Server
from harness.wire.remote_backend import remote_backend


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
    """Bug: such a run was accepted, and this machine's idle cores were doubted."""
    with pytest.raises(ConfigError) as caught:
        described(about)
    assert str(caught.value) == (
        f"describe() of Plugin returns the device {about.get('device', '')!r}, but a server answers: return a device that "
        "begins with `remote`"
    )
