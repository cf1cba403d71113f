"""A backend that uses a server through a remote plug-in."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from typing import Any

import numpy as np
import pytest

from harness.backends.http_json import HttpJsonRemote
from harness.core.config.address import parse_address
from harness.errors import ConfigError
from harness.remote import Request
from harness.types import BackendSetup, Batch, TensorSpec
from harness.wire.connections import Server
from harness.wire.remote_backend import Link, RemoteBackend, remote_backend
from tests.stand_ins.servers.bad_server import BadServer, garbage, since
from tests.stand_ins.servers.json_services import Asked, serving_json

BATCH = Batch(1, {"x": np.zeros((1, 2), np.float32)})


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


@contextmanager
def json_backend(failing: range) -> Iterator[RemoteBackend]:
    """Yields the backend of a service that answers requests with these numbers with status 500."""
    number = count()

    def answer(_: Asked) -> tuple[int, Any]:
        return (500, {"detail": "boom"}) if next(number) in failing else (200, {"y": 1.5})

    inputs = (TensorSpec("x", "float32", ("batch", 2)),)
    options = {"body": '{"x": "{{x}}"}', "answer": "/y"}
    remote = HttpJsonRemote(
        BackendSetup(model=None, model_name="m", inputs=inputs, options=options)
    )
    with (
        serving_json(answer) as url,
        remote_backend(remote, Server(address=parse_address(url)), 5.0) as backend,
    ):
        yield backend


def test_server_that_fails_some_requests_does_not_prevent_the_run() -> None:
    """Bug: a service that failed every 10th request ended before the run, and the message blamed the inputs."""
    with json_backend(range(9, 100, 10)) as backend:
        assert [float(np.ravel(np.asarray(backend.infer(BATCH)))[0]) for _ in range(30)] == [
            1.5
        ] * 30


@pytest.mark.parametrize(
    ("failing", "end"),
    [
        (range(3, 100), "(2 of 5 test requests failed): read the server's log"),
        (
            range(100),
            "(2 of 2 test requests failed): check the model's inputs, or read the server's log",
        ),
    ],
)
def test_server_that_fails_twice_is_reported_with_the_count(failing: range, end: str) -> None:
    with json_backend(failing) as backend:
        for _ in range(failing.start):
            backend.infer(BATCH)
        with pytest.raises(ConfigError) as caught:
            backend.infer(BATCH)
        address = backend.server.address
    assert str(caught.value) == f"--url {address}: the server answered 500: boom {end}"
